#!/bin/sh
# cross_run.sh FORERUN "TABLE..." EMULATED... - checks that the program of this machine, with its reference kernels, and a program for
# another one, with each of these kernel tables, write the same text and the same logits_hash. EMULATED is the other
# program with its emulator in front. `compare` then compares drafters with plain decoding there.
set -eu
here=$1
tables=$2
shift 2
emulated=$*
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
value_of() { sed -n "s/.*\"$2\": \"\([^\"]*\)\".*/\1/p" "$1"; }

same() { # OPTION... of forerun run
    set -- run -m models/target.gguf -p "Once upon a time" -n 16 --seed 3 --threads 2 "$@"
    "$here" "$@" --kernels ref --stats-json "$out/here.json" >"$out/here"
    hash=$(value_of "$out/here.json" logits_hash)
    [ -n "$hash" ]
    for table in $tables; do
        $emulated "$@" --kernels "$table" --stats-json "$out/there.json" >"$out/there"
        if ! cmp -s "$out/here" "$out/there" || [ "$hash" != "$(value_of "$out/there.json" logits_hash)" ]; then
            echo "FAIL $emulated $* --kernels $table: $(cat "$out/there")" >&2
            exit 1
        fi
        echo "ok   logits_hash $hash, kernels $(value_of "$out/there.json" kernel_table): $*"
    done
}

same --temp 0 --draft none
same --temp 0 --draft ngram-trie --draft eagle:file=models/eagle.gguf
same --temp 0.8 --top-p 0.95 --draft ngram-trie
same --temp 0.8 --act q8 --kv q8 --draft sps:model=models/draft.gguf
for table in $tables; do
    $emulated compare -m models/target.gguf -p "The sum of 3 and 4 is" -n 12 --runs 1 --no-text --threads 2 --kernels "$table" \
        --draft ngram-trie --draft sps:model=models/draft.gguf >"$out/there" || { cat "$out/there" >&2; exit 1; }
    echo "ok   compare, kernels $table: all texts identical"
done

#!/bin/sh
# cross_run.sh FORERUN EMULATED... - the program of this machine and a program for another one must write the same text
# and the same logits_hash. EMULATED is the other program with its emulator in front.
set -eu
here=$1
shift
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
hash_of() { sed -n 's/.*"logits_hash": "\([0-9a-f]*\)".*/\1/p' "$1"; }

compare() { # OPTION... of forerun run
    set -- run -m models/target.gguf -p "Once upon a time" -n 16 --seed 3 --threads 2 "$@"
    "$here" "$@" --stats-json "$out/here.json" >"$out/here"
    $emulated "$@" --stats-json "$out/there.json" >"$out/there"
    [ -n "$(hash_of "$out/here.json")" ]
    if ! cmp -s "$out/here" "$out/there" || [ "$(hash_of "$out/here.json")" != "$(hash_of "$out/there.json")" ]; then
        echo "FAIL $emulated $*: $(cat "$out/there")" >&2
        exit 1
    fi
    echo "ok   logits_hash $(hash_of "$out/there.json"), kernels $(sed -n 's/.*"kernel_table": "\([^"]*\)".*/\1/p' "$out/there.json"): $*"
}

emulated=$*
compare --temp 0
compare --temp 0.8 --top-p 0.95 --draft ngram-trie
compare --temp 0.8 --act q8 --draft sps:model=models/draft.gguf

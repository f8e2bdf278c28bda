#!/bin/bash
# research/ngram_trie_tables.sh - Table 3 and Figure 4 of the N-Gram-Trie paper, from recorded answers (research/NGRAM-TRIE.md).
#
#   tokens per step for n = 8 .. 16 and prefix = 2 .. 5, as Markdown                          on standard output
#   the shares of steps by acceptance length, for the paper's rule and ours                 research/plots/ngram-trie-lengths.svg
#   tokens per step by n, a line for each prefix                                              research/plots/ngram-trie-table3.svg
#
# Environment: FORERUN (build/forerun), VOCAB (a GGUF file of the answers' vocabulary), TRACES (the answers, see `forerun replay
# --help`), OUT (build/ngram-trie). Needs jq and gnuplot. Acceptance does not depend on the machine.
set -euo pipefail
: "${FORERUN:=build/forerun}" "${VOCAB:=../shared/data/tokenizers/ggml-vocab-llama-spm.gguf}"
: "${TRACES:=../shared/data/traces/vicuna-7b-v1.3.spec-bench.jsonl}" "${OUT:=build/ngram-trie}"
mkdir -p "$OUT"
prefixes="2 3 4 5" lengths=$(seq 8 16)

replay() { # NAME SPEC: the JSON report, made once
  "$FORERUN" replay --vocab "$VOCAB" "$TRACES" --tree-budget 64 --json --draft "$2" > "$OUT/$1.json"
}

table() { # TITLE CATEGORY FILE-PREFIX
  printf '\n%s\n\n| n / L_p |' "$1"
  printf ' %s |' $prefixes
  printf '\n|---|---|---|---|---|\n'
  for n in $lengths; do
    printf '| %s |' "$n"
    for p in $prefixes; do printf ' %.2f |' "$(jq --arg c "$2" '.[$c].acceptance_length' "$OUT/$3-$n-$p.json")"; done
    printf '\n'
  done
}

for n in $lengths; do
  for p in $prefixes; do
    replay "live-$n-$p" "ngram-trie:rule=paper,n=$n,prefix=$p,live=1"
    replay "prompt-$n-$p" "ngram-trie:rule=paper,n=$n,prefix=$p"
  done
done
replay best ngram-trie
table "RAG, prompt and answer (live=1)" rag live
table "RAG, prompt alone (live=0)" rag prompt
table "All categories, live=1" all live
table "All categories, live=0" all prompt

for n in $lengths; do
  printf '%s' "$n"
  for p in $prefixes; do jq -j '"\t\(.rag.acceptance_length)"' "$OUT/live-$n-$p.json"; done
  printf '\n'
done > "$OUT/table3.tsv"

shares() { # FILE CATEGORY: percent of the steps of 1, 2, ... tokens
  jq -r --arg c "$2" '.[$c] | .steps as $n | .steps_by_length[] | . / $n * 100' "$OUT/$1.json"
}
paste <(seq 16) <(shares prompt-13-3 summarization) <(shares prompt-13-3 rag) <(shares live-13-3 summarization) \
  <(shares live-13-3 rag) <(shares best summarization) <(shares best rag) > "$OUT/lengths.tsv"
printf '\nSteps by acceptance length, %%: n = 13, L_p = 3\n\n'
printf '| tokens | summarization, live=0 | rag, live=0 | summarization, live=1 | rag, live=1 | summarization, rule=best | rag, rule=best |\n'
printf '|---|---|---|---|---|---|---|\n'
awk -F'\t' '{ printf "| %s%s |", $1, $1 == 16 ? " and more" : ""; for (i = 2; i <= NF; i++) printf " %.1f |", $i; print "" }' "$OUT/lengths.tsv"

gnuplot <<GNUPLOT
set terminal svg size 680,360 background rgb 'white' font 'sans,13'
set datafile separator tab
set grid ytics
set output 'research/plots/ngram-trie-lengths.svg'
set title 'N-Gram-Trie (n = 13, L_p = 3, prompt alone): share of steps by acceptance length, %'
set style data histogram
set style histogram clustered gap 1
set style fill solid 0.85 border -1
set logscale y
set yrange [0.1:100]
set xlabel 'tokens of a step'
plot '$OUT/lengths.tsv' using 2:xtic(1) title 'summarization', '' using 3 title 'rag'
unset logscale y
set output 'research/plots/ngram-trie-table3.svg'
set title 'N-Gram-Trie (prompt and answer): tokens of a pass, rag'
set xlabel 'n'
set yrange [*:*]
set xtics 1
set key bottom right
plot for [i=2:5] '$OUT/table3.tsv' using 1:i with linespoints title sprintf('L_p = %d', i)
GNUPLOT

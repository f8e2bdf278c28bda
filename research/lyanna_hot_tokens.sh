#!/bin/bash
# research/lyanna_hot_tokens.sh - Figure 7 of the Lyanna paper: the share of a text that its most frequent words make up.
#
# Counts the tokens of the training corpus by the vocabulary of each file, prints the share of the most frequent tenth,
# quarter (the paper's 94.3 % for LLaMA-2-7B) and half of the vocabulary, and draws the cumulative shares into
# research/plots/lyanna-hot-tokens.svg. Does the same for the target's own answers, on which its drafters are trained, if
# they exist.
#
# Environment: FORERUN (build/forerun), TARGET (models/target.gguf), VOCAB (a GGUF file with a vocabulary of 32,000), CORPUS
# (a folder of *.train.jsonl.zst), BYTES (of each kind of text, 1000000), DATA (build/learned; answers.jsonl there is made
# by `research/learned.sh data`), OUT (build/hot-tokens). Needs jq, zstd and gnuplot.
set -euo pipefail
: "${FORERUN:=build/forerun}" "${TARGET:=models/target.gguf}" "${VOCAB:=../shared/data/tokenizers/ggml-vocab-llama-spm.gguf}"
: "${CORPUS:=../shared/data/corpus}" "${BYTES:=1000000}" "${DATA:=build/learned}" "${OUT:=build/hot-tokens}"
mkdir -p "$OUT"

for file in "$CORPUS"/*.train.jsonl.zst; do
  zstdcat "$file" 2> /dev/null | jq -r .text | head -c "$BYTES" || true # head ends the pipe
done | iconv -c -f UTF-8 -t UTF-8 > "$OUT/corpus.txt"
[ ! -f "$DATA/answers.jsonl" ] || awk 'NR % 8 == 1' "$DATA/answers.jsonl" | jq -r '.prompt + .response' > "$OUT/answers.txt"

shares() { # NAME GGUF TEXT: lines of "share of the vocabulary, share of the text"; %
  local size file="$OUT/$1-$3.tsv"
  [ -f "$OUT/$3.txt" ] || return 0
  size=$("$FORERUN" inspect "$2" --json | jq '.key_values["tokenizer.ggml.tokens"].count')
  "$FORERUN" tokenize -m "$2" -f "$OUT/$3.txt" | tr ' ' '\n' | awk '{ n[$1]++ } END { for (token in n) print n[token] }' | sort -rn |
    awk -v V="$size" '{ n[NR] = $1; sum += $1 }
      END { for (i = 1; i <= V; i++) { s += n[i]; if (i % int(V / 256) == 0 || i == V) printf "%.3f\t%.3f\n", 100 * i / V, 100 * s / sum } }' > "$file"
  awk -v name="$1, $3" -v V="$size" '!a && $1 >= 10 { a = $2 } !q && $1 >= 24.99 { q = $2 } !h && $1 >= 49.99 { h = $2 }
    END { printf "| %s | %d | %.1f | %.1f | %.1f |\n", name, V, a, q, h }' "$file"
}

printf '| vocabulary, text | tokens | tenth, %% | quarter, %% | half, %% |\n|---|---|---|---|---|\n'
for text in corpus answers; do
  shares shipped "$TARGET" $text
  shares llama-2 "$VOCAB" $text
done
gnuplot <<GNUPLOT
set terminal svg size 560,340 background rgb 'white' font 'sans,13'
set datafile separator tab
set output 'research/plots/lyanna-hot-tokens.svg'
set title 'Share of the text that the most frequent tokens are, %'
set xlabel 'most frequent tokens, % of the vocabulary'
set yrange [0:100]
set grid
set key bottom right
set arrow from 25,0 to 25,100 nohead dashtype 2
plot '$OUT/shipped-corpus.tsv' with lines lw 2 title 'shipped, 4096 tokens', '$OUT/llama-2-corpus.tsv' with lines lw 2 title 'Llama 2, 32,000 tokens'
GNUPLOT

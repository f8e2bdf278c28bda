#!/bin/bash
# research/lyanna_requests.sh STAGE... - Figs. 8 to 11 of Lyanna's paper: throughput of 1 to 16 requests at once, relative to
# plain decoding in the same run, of sps, ngram-trie, eagle, lyanna in the paper's form without live corrections, and lyanna in the
# separate form with them.
#
#   paper     the shipped target with the paper's shape and baselines: 12 nodes of depth 3, a tree of the draft model, and
#             lookahead-trie, which has seen the answers to other questions             OUT/paper-12-3.json
#   shipped   the shipped target: 4, 8 and 16 nodes of depth 5                         OUT/shipped-B-5.json
#   grown     the same text from 32 layers whose weights are read from memory: 4, 8, 16 nodes of depth 5  OUT/grown-B-5.json
#   report    all measured cells as Markdown, and as OUT/requests.tsv
#   plot      research/plots/lyanna-requests.svg (gnuplot)
#   all       these in turn: fifteen minutes of two quiet cores of a Zen 4, an hour of older ones, mostly for `grown`
#
# Environment: FORERUN (build/forerun), TARGET (models/target.gguf), DRAFTERS (models, a folder), PAPER_FORM (the folder's
# lyanna-paper.gguf, a Lyanna of the paper's form; `paper` measures it), OUT (build/requests),
# PROMPTS (bench/prompts/questions.jsonl, at least 16), WARM_UP (the questions whose answers lookahead-trie has
# seen; bench/prompts/study.jsonl), BENCH (more options of `forerun bench`, such as --raw). Needs jq and gnuplot.
set -euo pipefail
: "${FORERUN:=build/forerun}" "${TARGET:=models/target.gguf}" "${DRAFTERS:=models}" "${OUT:=build/requests}"
: "${PAPER_FORM:=$DRAFTERS/lyanna-paper.gguf}" "${PROMPTS:=bench/prompts/questions.jsonl}" "${WARM_UP:=bench/prompts/study.jsonl}" "${BENCH:=}"
REQUESTS=1,2,4,8,16
mkdir -p "$OUT"

compare() { # NAME TARGET TOKENS BUDGET EAGLE LYANNA PAPER_FORM
  "$FORERUN" bench -m "$2" "$PROMPTS" -n "$3" $BENCH --ignore-eos --runs 1 --chain none --parallel $REQUESTS --tree-budget "$4" \
    --json "$OUT/$1-$4-5.json" --draft "sps:model=$DRAFTERS/draft.gguf,length=5" --draft ngram-trie \
    --draft "eagle:file=$5,top=4,depth=5" --draft "lyanna:file=$7,depth=5,live=0" --draft "lyanna:file=$6,depth=5"
}

stage_paper() {
  "$FORERUN" bench -m "$TARGET" "$PROMPTS" -n 64 $BENCH --ignore-eos --runs 1 --chain none --parallel $REQUESTS --tree-budget 12 \
    --json "$OUT/paper-12-3.json" --warm-up "$WARM_UP" --draft "rsd-s:model=$DRAFTERS/draft.gguf,width=4,depth=3" \
    --draft lookahead-trie --draft "eagle:file=$DRAFTERS/eagle.gguf,top=4,depth=3" \
    --draft "lyanna:file=$PAPER_FORM,depth=3,live=0" --draft "lyanna:file=$DRAFTERS/lyanna.gguf,depth=3,live=0" \
    --draft "lyanna:file=$DRAFTERS/lyanna.gguf,depth=3"
}

stage_shipped() {
  for budget in 4 8 16; do
    compare shipped "$TARGET" 64 $budget "$DRAFTERS/eagle.gguf" "$DRAFTERS/lyanna.gguf" "$PAPER_FORM"
  done
}

stage_grown() {
  make -s build/release/grow_model build/release/bench/bench_lend
  build/release/grow_model "$TARGET" --layers 32 --ffn 16384 -o "$OUT/deep.gguf"
  for file in "$DRAFTERS/eagle.gguf" "$DRAFTERS/lyanna.gguf" "$PAPER_FORM"; do
    build/release/bench/bench_lend "$file" "$OUT/deep.gguf" "$OUT/deep-$(basename "$file")"
  done
  for budget in 4 8 16; do
    compare grown "$OUT/deep.gguf" 24 $budget "$OUT/deep-eagle.gguf" "$OUT/deep-lyanna.gguf" "$OUT/deep-$(basename "$PAPER_FORM")"
  done
}

cells() { # every measured cell: target, nodes, depth, requests, method, speed-up, tokens per step
  local file name
  for file in "$OUT"/{paper,shipped,grown}-*.json; do
    [ -e "$file" ] || continue
    name=$(basename "$file" .json)
    jq -r --arg name "$name" '($name | split("-")) as $n | .summary[] | select(.category == "all") |
      [$n[0], $n[1], $n[2], .n_parallel, (.method | split(":")[0] + (if test("lyanna-paper|paper/lyanna") then "-paper" else "" end) + (if contains("live=0") then ", live=0" else "" end)), .speed_up.mean, .acceptance_length] | @tsv' "$file"
  done
}

stage_report() {
  cells > "$OUT/requests.tsv"
  printf '| target | nodes | depth | draft | tokens per step | 1 request | 2 | 4 | 8 | 16 |\n|---|---|---|---|---|---|---|---|---|---|\n'
  awk -F'\t' '$5 != "plain" {
    key = $1 " | " $2 " | " $3 " | `" $5 "`"
    if (!(key in row)) { order[++n] = key; tokens[key] = sprintf("%.2f", $7) }
    row[key] = row[key] sprintf(" | %.2f", $6) }
    END { for (i = 1; i <= n; i++) print "| " order[i] " | " tokens[order[i]] row[order[i]] " |" }' "$OUT/requests.tsv"
}

stage_plot() {
  local target budget i=0
  {
    cat <<'HEAD'
set terminal svg size 960,620 background rgb 'white' font 'sans,12'
set output 'research/plots/lyanna-requests.svg'
set multiplot layout 2,3 title 'Throughput relative to plain decoding, by requests at once (depth 5)'
set logscale x 2
set xtics (1, 2, 4, 8, 16)
set xrange [1:16] # given, so that a panel whose cells have not been measured stays empty
set yrange [0:*]
set grid ytics
set key top right samplen 1
HEAD
    for target in shipped grown; do
      for budget in 4 8 16; do
        printf "set title '%s target, %s nodes'\nplot 1 notitle with lines lc rgb 'gray'" $target $budget
        i=0
        for method in sps ngram-trie eagle 'lyanna-paper, live=0' lyanna; do
          i=$((i + 1))
          printf ', "< awk -F \\"\\t\\" -v m=\\"%s\\" -v t=%s -v b=%s '"'"'$1 == t && $2 == b && $3 == 5 && $5 == m {print $4, $6}'"'"' %s/requests.tsv" with linespoints lc %s pt 7 title "%s"' \
            "$method" $target $budget "$OUT" $i "$method"
        done
        printf '\n'
      done
    done
    printf 'unset multiplot\n'
  } > "$OUT/plot.gp"
  gnuplot "$OUT/plot.gp"
}

stage_all() { for stage in paper shipped grown report plot; do "stage_$stage"; done; }

[ $# -gt 0 ] || { sed -n '2,19s/^# \{0,1\}//p' "$0"; exit 2; }
for stage in "$@"; do "stage_$stage"; done

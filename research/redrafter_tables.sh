#!/bin/bash
# research/redrafter_tables.sh STAGE... - tables and figures of the ReDrafter paper on our target.
#
#   table3      tokens/s by beam width (1 .. 64) and batch (1 .. 80), relative to plain decoding of the same batch. It
#               measures times, so run it on a quiet machine
#   packing     Fig. 6, right: the same with width 45, with packed candidates and with rows for each candidate; a quiet
#               machine, too (its left half is research/redrafter_packing.py)
#   categories  Fig. 5: acceptance by category of the held-out prompts (acceptance does not depend on the machine)
#
# At most 4096 rows run in a step (EXECUTOR_MAX_ROWS), so each of 80 requests gets 47 nodes, whatever its beam; table3 prints
# the number of drafted nodes. Environment: FORERUN (build/forerun), TARGET (models/target.gguf), DRAFTER
# (models/redrafter.gguf), DATA (build/learned, made by `research/learned.sh data`), OUT (build/redrafter). Needs jq.
set -euo pipefail
: "${FORERUN:=build/forerun}" "${TARGET:=models/target.gguf}" "${DRAFTER:=models/redrafter.gguf}"
: "${DATA:=build/learned}" "${OUT:=build/redrafter}"
mkdir -p "$OUT"
widths="1 2 4 8 16 32 64" batches="1 2 4 8 16 32 48 80"

held_out() { # NAME OPTIONS...
  local name=$1
  shift
  "$FORERUN" bench -m "$TARGET" "$DATA/heldout.jsonl" --raw --chain none --json "$OUT/$name.json" "$@" > "$OUT/$name.txt"
}

of_all() { # FILE METHOD BATCH JQ-EXPRESSION
  jq -r --arg m "$2" --argjson b "$3" \
    ".summary[] | select(.category == \"all\" and .n_parallel == \$b and (.method == \"plain\") == (\$m == \"plain\")) | $4" "$OUT/$1.json"
}

stage_table3() {
  for w in $widths; do # 80 prompts at least, so that the largest batch is full
    held_out "table3-w$w" --limit 24 -n 32 --runs 1 --parallel "${batches// /,}" --tree-budget $((w * 5)) \
      --draft "redrafter:file=$DRAFTER,width=$w,length=5"
  done
  printf '| batch | plain, tokens/s |'
  printf ' width %s |' $widths
  printf '\n|---|---|'
  printf '%.0s---|' $widths
  for b in $batches; do
    printf '\n| %s | %s |' "$b" "$(of_all table3-w1 plain "$b" '.tokens_per_s.mean | round')"
    for w in $widths; do
      printf ' %s |' "$(of_all "table3-w$w" drafted "$b" '"\(.speed_up.mean * 100 | round / 100) (\(.drafted_per_step | round) nodes)"')"
    done
  done
  printf '\n'
}

stage_packing() {
  held_out packing --limit 4 -n 32 --runs 1 --parallel 1,2,4,8,16 --tree-budget 225 --draft "redrafter:file=$DRAFTER,width=45" \
    --draft "redrafter:file=$DRAFTER,width=45,packed=0"
  printf '| batch | rows of a step: packed, not packed | tokens/s, of plain decoding: packed, not packed |\n|---|---|---|\n'
  jq -r '[.summary[] | select(.category == "all" and .method != "plain")] | group_by(.n_parallel)[] | sort_by(.method) |
    "| \(.[0].n_parallel) | " + (map(.drafted_per_step | round | tostring) | join(", ")) + " | " +
    (map(.speed_up.mean * 100 | round / 100 | tostring) | join(", ")) + " |"' "$OUT/packing.json"
}

# A row for each category: tokens per step with beams of width 4 and 8.
stage_categories() {
  held_out categories --limit 9 -n 96 --runs 1 --tree-budget 16 --draft "redrafter:file=$DRAFTER" --draft "redrafter:file=$DRAFTER,width=8"
  printf '| category | width 4 | width 8 |\n|---|---|---|\n'
  jq -r '[.summary[] | select(.method != "plain")] | group_by(.category)[] |
    "| \(.[0].category) | " + (map(.acceptance_length * 100 | round / 100 | tostring) | join(" | ")) + " |"' "$OUT/categories.json"
}

[ $# -gt 0 ] || { sed -n '2,14s/^# \{0,1\}//p' "$0"; exit 2; }
for stage in "$@"; do "stage_$stage"; done

#!/bin/bash
# research/drafters_table.sh STAGE... - all learned drafters beside each other: one target, the same data, and the same processor time for
# each. The drafters are those that `research/learned.sh forms` leaves.
#
#   nodes      4, 8, 16 and 32 nodes at temperatures 0, 0.7 and 1; answers of 100 tokens, one request at a time
#   long       answers of 1,000 tokens; 16 nodes, the three temperatures, one request at a time
#   requests   1, 2, 4 and 8 requests at once; 16 nodes, greedy, answers of 100 tokens
#   report     these three as Markdown, with what has been measured so far
#   quantised  what a drafter that was trained for a 16-bit target loses on a quantised one, and what `train --init` gains there; this
#              stage measures and prints its own table
#
# Not measured are long answers and several requests with other numbers of nodes, and several requests at a temperature. Every drafter is
# measured by itself, beside plain decoding, with the defaults of its method, so that a new one can be added later. A stage that was
# stopped goes on where it was. For ten drafters and the shipped target `nodes` takes some seven minutes of two cores, `long` five and
# `requests` six. tokens/s of single runs vary; tokens per step do not. Memory is what an engine takes beside that of plain decoding, to
# a few MB.
#
# Environment: FORERUN (build/forerun), TARGET (models/target.gguf), DRAFTERS (build/learned, the folder of the drafters), FORMS (all of
# `research/learned.sh forms`), SEED (1: the files FORM.1.gguf; empty: FORM.gguf), PROMPTS (DRAFTERS/heldout.jsonl), OUT
# (build/drafters-table), LIMIT (4: questions of each category; `long` asks a quarter of them), BENCH (more options of `forerun bench`).
# For the target of research/large_vocabulary.sh: TARGET=build/large-vocabulary/target.gguf DRAFTERS=build/large-vocabulary
# FORMS="eagle lyanna" SEED= LIMIT=2.
# For `quantised`: WHOLE (models/f16/target.gguf), TYPE (Q4_0), METHOD (eagle3), MINUTES (3, of one core: of the first training; the
# others take a third of it), ANSWERS (DRAFTERS/answers.jsonl), RECORDS (300: own answers of the quantised target). Needs jq.
set -euo pipefail
shopt -s inherit_errexit
: "${FORERUN:=build/forerun}" "${TARGET:=models/target.gguf}" "${DRAFTERS:=build/learned}" "${SEED=1}" "${OUT:=build/drafters-table}"
: "${FORMS:=eagle hass paper separate redrafter hydra hydra-plus hydra-own medusa space eagle3 dflash dspark mtp}" "${PROMPTS:=$DRAFTERS/heldout.jsonl}" "${LIMIT:=4}"
: "${BENCH:=}" "${WHOLE:=models/f16/target.gguf}" "${TYPE:=Q4_0}" "${METHOD:=eagle3}" "${MINUTES:=3}" "${ANSWERS:=$DRAFTERS/answers.jsonl}"
: "${RECORDS:=300}"
TEMPERATURES="0 0.7 1"
mkdir -p "$OUT"

file_of() { echo "$DRAFTERS/$1${SEED:+.$SEED}.gguf"; } # FORM

forms() { # those whose drafters exist
  local form
  for form in $FORMS; do
    if [ -e "$(file_of "$form")" ]; then echo "$form"; else echo "drafters_table.sh: there is no $(file_of "$form")" >&2; fi
  done
}

method_of() { "$FORERUN" inspect --json "$1" | jq -r .drafter.method; } # FILE

# A measurement of a drafter; nothing if it was finished before.
cell() { # STAGE FORM SUFFIX OPTIONS...
  local out=$OUT/$1-$2-$3.json form=$2 file
  file=$(file_of "$2")
  shift 3
  [ ! -e "$out" ] || return 0
  "$FORERUN" bench -m "$TARGET" "$PROMPTS" --raw --runs 1 --chain none $BENCH --json "$out.part" --draft "$(method_of "$file"):file=$file" \
    "$@" > "$OUT/log" 2>&1 || { cat "$OUT/log" >&2; return 1; }
  jq --arg form "$form" --argjson bytes "$(stat -L -c %s "$file")" '{form: $form, file_bytes: $bytes, memory_bytes: .methods[1].memory_bytes,
    cpu, threads, commit, model_hash, summary}' "$out.part" > "$out.short"
  rm "$out.part"
  mv "$out.short" "$out"
}

stage_nodes() {
  local form nodes temp
  for form in $(forms); do
    for temp in $TEMPERATURES; do
      for nodes in 4 8 16 32; do
        cell nodes "$form" "$nodes-$temp" --limit "$LIMIT" -n 100 --temp "$temp" --seed 3 --tree-budget "$nodes"
      done
    done
  done
}

# The answers go on after the end of the text, and beyond the length of the target's training where that is shorter.
stage_long() {
  local form temp
  for form in $(forms); do
    for temp in $TEMPERATURES; do
      cell long "$form" "16-$temp" --limit $(((LIMIT + 3) / 4)) -n 1000 -c 1536 --ignore-eos --temp "$temp" --seed 3 --tree-budget 16
    done
  done
}

stage_requests() {
  local form
  for form in $(forms); do
    cell requests "$form" 16-0 --limit "$LIMIT" -n 100 --parallel 1,2,4,8 --tree-budget 16
  done
}

# ---- the report --------------------------------------------------------------------------------------------------------------------------

# What the programs below use: the sums of the drafter and of plain decoding, numbers in few digits, and MB.
JQ='def sums: .summary[] | select(.category == "all" and .method != "plain");
  def plain: .summary[] | select(.category == "all" and .method == "plain");
  def digits($n): if . == null then "" else . * pow(10; $n) | round / pow(10; $n) | tostring end;
  def mb: if . == null then "" else . / 1e6 | digits(1) end;
  def ms($s): sums | 1000 * $s / .n_steps;
  def identical: sums | if .n_identical == .n_answers then "" else " (\(.n_answers - .n_identical) texts differ)" end;'

# The rows of a stage with measurements of all temperatures.
rows_by_temperature() { # STAGE NODES...
  local stage=$1 form nodes temp files
  shift
  for form in $FORMS; do
    for nodes in "$@"; do
      files=()
      for temp in $TEMPERATURES; do
        [ ! -e "$OUT/$stage-$form-$nodes-$temp.json" ] || files+=("$OUT/$stage-$form-$nodes-$temp.json")
      done
      [ ${#files[@]} = 3 ] || continue
      jq -rs --arg nodes "$nodes" "$JQ"' "| \(.[0].form) | \($nodes) | " +
        ([.[] | sums.acceptance_length | digits(2)] | join(" | ")) + " | " +
        ([.[] | sums.tokens_per_s.mean | digits(0)] | join(", ")) + " | " + ([.[] | sums.speed_up.mean | digits(2)] | join(", ")) + " | " +
        ([.[] | ms(sums.draft_s) | digits(2)] | join(", ")) + " | " + ([.[] | ms(sums.forward_s + sums.verify_s) | digits(2)] | join(", ")) +
        " | \([.[].memory_bytes] | min | mb) | \(.[0].file_bytes | mb) |" + ([.[] | identical] | add)' "${files[@]}"
    done
  done
}

temperature_head() {
  printf '| drafter | nodes | tokens per step, T 0 | T 0.7 | T 1 | tokens/s, T 0, 0.7, 1 | of plain | draft, ms a step | verify, ms a step | memory, MB | file, MB |\n'
  printf '|---|---|---|---|---|---|---|---|---|---|---|\n'
}

stage_report() {
  local file
  for file in "$OUT"/{nodes,long,requests}-*.json; do
    [ ! -e "$file" ] || { jq -r '"\(.cpu), \(.threads) threads, commit \(.commit); model hash \(.model_hash)"' "$file"; break; }
  done
  printf '\nAnswers of at most 100 tokens, one request at a time:\n\n'
  temperature_head
  rows_by_temperature nodes 4 8 16 32
  printf '\nAnswers of 1,000 tokens, one request at a time:\n\n'
  temperature_head
  rows_by_temperature long 16
  printf '\nSeveral requests at once, 16 nodes, greedy, answers of at most 100 tokens; tokens/s of all requests, of plain decoding in brackets:\n\n'
  printf '| drafter | tokens per step | 1 request | 2 | 4 | 8 |\n|---|---|---|---|---|---|\n'
  for file in $(for form in $FORMS; do echo "$OUT/requests-$form-16-0.json"; done); do
    [ ! -e "$file" ] || jq -r "$JQ"' "| \(.form) | \([sums] | .[0].acceptance_length | digits(2)) | " + ([[sums], [plain]] | transpose | map(
      "\(.[0].tokens_per_s.mean | digits(0)) (\(.[1].tokens_per_s.mean | digits(0)))") | join(" | ")) + " |"' "$file"
  done
}

# ---- quantised targets -------------------------------------------------------------------------------------------------------------------

# A training of METHOD on TARGET for that many minutes of a core; nothing if it was finished before.
train_for() { # TARGET DATA OUTPUT MINUTES OPTIONS...
  local target=$1 data=$2 out=$3 minutes=$4 resume= steps
  shift 4
  [ ! -e "$out" ] || return 0
  if [ ! -e "$out.steps" ]; then
    rm -f "$OUT/probe.gguf"*
    "$FORERUN" train "$METHOD" -m "$target" --data "$data" -o "$OUT/probe.gguf" --steps 6 --batch 8 -t 1 --valid 0 "$@" > "$OUT/log" 2>&1
    jq -rs --argjson minutes "$minutes" '[5, (60 * $minutes * (length - 1) / (.[-1].cpu_seconds - .[0].cpu_seconds) | floor)] | max' \
      "$OUT/probe.gguf.log.jsonl" > "$out.steps"
  fi
  steps=$(cat "$out.steps")
  [ ! -e "$out.checkpoint" ] || resume=--resume
  "$FORERUN" train "$METHOD" -m "$target" --data "$data" -o "$out" --steps "$steps" --batch 8 -t 1 --valid 0 --decay linear --final-lr 0 \
    $resume "$@" >&2
}

# The same drafter without the name of its target, as others publish it.
lend() { # DRAFTER TARGET OUTPUT
  make -s build/release/bench/bench_lend
  [ -e "$3" ] || build/release/bench/bench_lend "$1" "$2" "$3"
}

quantised_row() { # NAME TARGET FILE
  local temp row="| $1 |" name
  for temp in $TEMPERATURES; do
    name=$OUT/quantised-$(basename "$3" .gguf)-$(basename "$2" .gguf)-$temp.json
    [ -e "$name" ] || { "$FORERUN" bench -m "$2" "$PROMPTS" --raw --limit $((2 * LIMIT)) -n 64 --runs 1 --chain none --temp "$temp" --seed 3 \
      --tree-budget 16 --json "$name.part" --draft "$METHOD:file=$3" > "$OUT/log" 2>&1 && mv "$name.part" "$name"; }
    row="$row $(jq -r "$JQ"' sums.acceptance_length | digits(2)' "$name") |"
  done
  echo "$row"
}

# The third and the fourth row have had the same training in all, the one on the whole target and the other on the quantised one.
stage_quantised() {
  local quantised=$OUT/$TYPE.gguf own=$OUT/own.$TYPE.jsonl third after
  third=$(jq -n "$MINUTES / 3")
  after="after $(jq -n "$third * 60 | round") s more"
  [ -e "$quantised" ] || "$FORERUN" quantize "$WHOLE" "$quantised" --type "$TYPE" >&2
  [ -e "$OUT/asked.jsonl" ] || jq -c '{prompt: (.prompt // empty)}' "$ANSWERS" | awk -v n="$RECORDS" 'NR % 40 == 7 && ++k <= n' > "$OUT/asked.jsonl"
  [ -e "$own" ] || { "$FORERUN" distill-data -m "$quantised" "$OUT/asked.jsonl" -o "$own.part.jsonl" -n 96 --draft suffix >&2 && mv "$own.part.jsonl" "$own"; }
  train_for "$WHOLE" "$ANSWERS" "$OUT/whole.gguf" "$MINUTES" --lr 0.004
  train_for "$WHOLE" "$ANSWERS" "$OUT/more.gguf" "$third" --lr 0.001 --seed 2 --init "$OUT/whole.gguf"
  lend "$OUT/whole.gguf" "$quantised" "$OUT/lent.$TYPE.gguf"
  lend "$OUT/more.gguf" "$quantised" "$OUT/lent-more.$TYPE.gguf"
  train_for "$quantised" "$own" "$OUT/adapted.$TYPE.gguf" "$third" --lr 0.001 --init "$OUT/lent.$TYPE.gguf"
  train_for "$quantised" "$own" "$OUT/new.$TYPE.gguf" "$third" --lr 0.004
  printf '\n| `%s` and its target | tokens per step, T 0 | T 0.7 | T 1 |\n|---|---|---|---|\n' "$METHOD"
  quantised_row "trained for the 16-bit target, on it" "$WHOLE" "$OUT/whole.gguf"
  quantised_row "the same file, on the target in $TYPE" "$quantised" "$OUT/lent.$TYPE.gguf"
  quantised_row "$after for the 16-bit target, on the one in $TYPE" "$quantised" "$OUT/lent-more.$TYPE.gguf"
  quantised_row "$after by \`train --init\`, on $RECORDS answers of the target in $TYPE" "$quantised" "$OUT/adapted.$TYPE.gguf"
  quantised_row "trained on these answers only, for $(jq -n "$third * 60 | round") s" "$quantised" "$OUT/new.$TYPE.gguf"
}

[ $# -gt 0 ] || { sed -n '2,29s/^# \{0,1\}//p' "$0"; exit 2; }
for stage in "$@"; do "stage_$stage"; done

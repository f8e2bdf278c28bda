#!/bin/bash
# research/large_vocabulary.sh STAGE... - the paper's figures on Lyanna for a target with the 32,000 tokens of Llama 2, whose LM head
# costs what the paper says that it costs. The target is a small transformer that is trained here.
#
#   target    the target: 8 layers of width 256, STEPS steps of 4,096 tokens; and a draft model   OUT/target.gguf, OUT/draft.gguf
#   data      its answers, as research/learned.sh makes them                       OUT/answers.jsonl, OUT/heldout.jsonl
#   drafters  eagle (HASS), lyanna in the separate form with all tokens and with HOT hot tokens, and in the paper's form: MINUTES of
#             one core each
#   tables    tokens per step on held-out prompts in the paper's shape (12 nodes, depth 3) and in ours (16 nodes, depth 5), at
#             temperatures 0 and 1                                                 OUT/shape-*.json
#   hot       held-out accuracy of steps 1, 2, 3 with all tokens and with hot tokens, and the size of the files (Table 2)
#   fr_spec   eagle with logits for all tokens and for HOT tokens, alone and together with ngram-trie: tokens per step and rates
#   requests  Figs. 8 to 11: throughput of 1 to 16 requests relative to plain decoding      OUT/paper-12-3.json
#   grown     the same with weights that are read from memory: the target with 32 layers that give the same text
#                                                                                  OUT/grown/paper-12-3.json
#   heads     Fig. 13: the LM head in one pass and step by step, and the parts of a proposal
#   report    the figures of `tables` and `requests` as Markdown
#
# Environment: FORERUN (build/forerun), BUILD (build/release), VOCAB (a GGUF file with the vocabulary), CORPUS (a folder of
# KIND.train.jsonl.zst), OUT (build/large-vocabulary), STEPS (600), MINUTES (20), HOT (8000), EVERY (4: a quarter of the texts).
# Interrupted trainings go on when their stage is run again. Needs jq and zstd; `fr_spec`, `requests`, `grown` and
# `heads` want a quiet machine.
set -euo pipefail
: "${FORERUN:=build/forerun}" "${BUILD:=build/release}" "${VOCAB:=../shared/data/tokenizers/ggml-vocab-llama-spm.gguf}"
: "${CORPUS:=../shared/data/corpus}" "${OUT:=build/large-vocabulary}" "${STEPS:=600}" "${MINUTES:=20}" "${HOT:=8000}" "${EVERY:=4}"
export FORERUN CORPUS MINUTES EVERY TARGET="$OUT/target.gguf" DATA="$OUT" OUT
mkdir -p "$OUT"

train_model() { # NAME STEPS LAYERS WIDTH
  local resume=
  [ -e "$OUT/corpus.jsonl.zst" ] || cat "$CORPUS"/*.train.jsonl.zst > "$OUT/corpus.jsonl.zst"
  [ ! -e "$OUT/$1.gguf.checkpoint" ] || resume=--resume
  [ -e "$OUT/$1.gguf" ] || "$FORERUN" train target --vocab "$VOCAB" --data "$OUT/corpus.jsonl.zst" -o "$OUT/$1.gguf" --steps "$2" \
    --layers "$3" --width "$4" --heads 4 --kv-heads 2 --ff $(($4 * 3)) --ctx 1024 --batch 16 --lr 0.003 --optimizer muon \
    --valid 0.002 --type q8_0 --name "$1 with a large vocabulary" -t 1 $resume
}

stage_target() {
  train_model target "$STEPS" 8 256
  train_model draft "$STEPS" 1 64
}

stage_data() { research/learned.sh data; }

stage_drafters() {
  [ -e "$OUT/eagle.gguf" ] || METHODS=eagle research/learned.sh drafters
  [ -e "$OUT/lyanna.gguf" ] || METHODS=lyanna LYANNA="--hot-tokens 0" research/learned.sh drafters
  [ -e "$OUT/hot/lyanna.gguf" ] || OUT=$OUT/hot METHODS=lyanna LYANNA="--hot-tokens $HOT" research/learned.sh drafters
  [ -e "$OUT/paper/lyanna.gguf" ] || OUT=$OUT/paper METHODS=lyanna LYANNA="--form paper --hot-tokens 0" research/learned.sh drafters
}

stage_tables() {
  local temp shape depth
  for temp in 0 1; do
    for shape in 12:3 16:5; do
      depth=${shape#*:}
      "$FORERUN" bench -m "$TARGET" "$OUT/heldout.jsonl" --raw --limit 9 -n 96 --runs 1 --chain none --temp $temp --tree-budget "${shape%:*}" \
        --json "$OUT/shape-${shape%:*}-$depth-t$temp.json" --draft "eagle:file=$OUT/eagle.gguf,top=4,depth=$depth" \
        --draft "lyanna:file=$OUT/lyanna.gguf,top=4,depth=$depth,live=0" --draft "lyanna:file=$OUT/lyanna.gguf,top=4,depth=$depth" \
        --draft "lyanna:file=$OUT/hot/lyanna.gguf,top=4,depth=$depth" \
        --draft "lyanna:file=$OUT/paper/lyanna.gguf,top=4,depth=$depth,live=0"
    done
  done
}

stage_hot() {
  local name
  printf '| tokens with token info | step 1, %% | step 2, %% | step 3, %% | MB |\n|---|---|---|---|---|\n'
  for name in lyanna hot/lyanna; do
    jq -rs --arg name "$name" --argjson mb "$(stat -c %s "$OUT/$name.gguf" | awk '{ printf "%.1f", $1 / 1e6 }')" --arg hot "$HOT" '
      [.[] | select(.valid_accuracy)][-1].valid_accuracy[0:3] | map(. * 1000 | round / 10 | tostring) |
      "| \(if $name == "lyanna" then "all" else $hot end) | \(join(" | ")) | \($mb) |"' "$OUT/$name.gguf.log.jsonl"
  done
}

# A step at a learning rate of nothing gives the drafter a list of tokens and leaves its weights as they are.
stage_fr_spec() {
  mkdir -p "$OUT/hot"
  [ -e "$OUT/hot/eagle.gguf" ] || "$FORERUN" train eagle -m "$TARGET" --data "$OUT/answers.jsonl" --init "$OUT/eagle.gguf" \
    --head-tokens "$HOT" --steps 1 --lr 1e-12 -o "$OUT/hot/eagle.gguf"
  "$FORERUN" bench -m "$TARGET" "$OUT/heldout.jsonl" --raw --limit 9 -n 96 --runs 3 --chain none --tree-budget 16 --json "$OUT/fr-spec.json" \
    --draft "eagle:file=$OUT/eagle.gguf" --draft "eagle:file=$OUT/hot/eagle.gguf" --draft "eagle:file=$OUT/hot/eagle.gguf+ngram-trie"
}

# The trie of the n-gram baseline has seen the answers to other prompts than those that are measured.
stage_requests() {
  awk 'NR % 22 == 0' "$DATA/heldout.jsonl" > "$DATA/seen.jsonl"
  awk 'NR % 2 == 1' "$DATA/heldout.jsonl" > "$DATA/asked.jsonl"
  DRAFTERS=$OUT PAPER_FORM=$OUT/paper/lyanna.gguf PROMPTS=$DATA/asked.jsonl WARM_UP=$DATA/seen.jsonl BENCH="--raw --limit 4" \
    research/lyanna_requests.sh paper
}

stage_grown() {
  local grown=$OUT/grown name
  make -s "$BUILD/grow_model" "$BUILD/bench/bench_lend"
  mkdir -p "$grown/paper"
  "$BUILD/grow_model" "$TARGET" --layers 32 --ffn 16384 -o "$grown/target.gguf"
  for name in eagle lyanna paper/lyanna; do "$BUILD/bench/bench_lend" "$OUT/$name.gguf" "$grown/target.gguf" "$grown/$name.gguf"; done
  cp "$OUT/draft.gguf" "$grown/draft.gguf"
  (TARGET=$grown/target.gguf OUT=$grown && stage_requests)
}

stage_heads() {
  make -s "$BUILD/bench/bench_lyanna"
  "$BUILD/bench/bench_lyanna" "$TARGET" 512 "$HOT" 5 4
}

stage_report() {
  local file
  printf '| nodes, depth, temperature | draft | tokens per step | of plain |\n|---|---|---|---|\n'
  for file in "$OUT"/shape-*.json; do
    [ -e "$file" ] || continue
    jq -r --arg shape "$(basename "$file" .json | sed 's/^shape-\([0-9]*\)-\([0-9]*\)-t/\1, \2, /')" --arg out "$OUT/" '.summary[] |
      select(.category == "all" and .method != "plain") | "| \($shape) | `\(.method | split($out) | join(""))` | \(.acceptance_length * 100 | round / 100) | \(.speed_up.mean * 100 | round / 100) |"' "$file"
  done
  research/lyanna_requests.sh report
  OUT=$OUT/grown research/lyanna_requests.sh report
}

[ $# -gt 0 ] || { sed -n '2,24s/^# \{0,1\}//p' "$0"; exit 2; }
for stage in "$@"; do "stage_$stage"; done

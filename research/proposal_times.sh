#!/usr/bin/env bash
# research/proposal_times.sh - how long each drafter with weights takes to propose a tree of 16 nodes, greedily and at temperature 1,
# for three sizes of the vocabulary: a table as Markdown on standard output (research/SPEED.md).
#
# The shipped target and its draft model are grown to the vocabulary and to a width of 288 (`grow_model`), and each learned method is trained for one
# step on them, because the time of a proposal does not depend on what was learned. The time at temperature 1 includes the noise of all
# nodes. Every figure is the median of RUNS runs (5) of one thread.
#
# Environment: BUILD (build/release, with forerun and grow_model), OUT (build/proposal-times), RUNS. Needs jq.
set -euo pipefail
: "${BUILD:=build/release}" "${OUT:=build/proposal-times}" "${RUNS:=5}"
mkdir -p "$OUT"
learned="eagle lyanna medusa hydra redrafter"
models="sps rsd-c rsd-s"

prompt="Once upon a time, there was a little dog who lived in a house near the forest."
data="$OUT/data.jsonl"
for i in $(seq 32); do
  printf '{"prompt": "%s", "response": " It liked to run and play with its friend number %d, and it was happy all day long."}\n' "$prompt" "$i"
done > "$data"

grow() { # VOCABULARY: target-V.gguf and draft-V.gguf
  for name in target draft; do
    [ -e "$OUT/$name-$1.gguf" ] || "$BUILD/grow_model" "models/$name.gguf" --dim 288 --vocab "$1" -o "$OUT/$name-$1.gguf"
  done
}

spec() { # METHOD VOCABULARY
  case " $models " in
    *" $1 "*) echo "$1:model=$OUT/draft-$2.gguf" ;;
    *) echo "$1:file=$OUT/$1-$2.gguf" ;;
  esac
}

train() { # METHOD VOCABULARY
  [ -e "$OUT/$1-$2.gguf" ] || "$BUILD/forerun" train "$1" -m "$OUT/target-$2.gguf" --data "$data" --steps 1 --batch 1 -t 2 -o "$OUT/$1-$2.gguf" >&2
}

milliseconds() { # SPEC VOCABULARY TEMPERATURE: of one proposal
  for _ in $(seq "$RUNS"); do
    "$BUILD/forerun" run -m "$OUT/target-$2.gguf" -p "$prompt" -n 64 --ignore-eos -t 1 --draft "$1" --tree-budget 16 --temp "$3" --seed 1 \
      --stats-json "$OUT/stats.json" > /dev/null 2>&1
    jq '1000 * .draft_s / .proposals' "$OUT/stats.json"
  done | sort -g | sed -n "$(((RUNS + 1) / 2))p"
}

vocabularies="4096 32000 152000"
echo "| ms for 16 nodes | 4,096: greedy | T 1 | 32,000: greedy | T 1 | 152,000: greedy | T 1 |"
echo "|---|---|---|---|---|---|---|"
for v in $vocabularies; do
  grow "$v"
  for method in $learned; do train "$method" "$v"; done
done
for method in $learned $models; do
  printf '| `%s` |' "$method"
  for v in $vocabularies; do
    for t in 0 1; do printf ' %.2f |' "$(milliseconds "$(spec "$method" "$v")" "$v" "$t")"; done
  done
  printf '\n'
done

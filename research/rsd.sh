#!/bin/bash
# research/rsd.sh FOLDER [ANSWERS.jsonl [LARGE]] - the runs of research/RSD.md: both experiments at three temperatures, with 40
# prompts and 5 seeds. Run it in the root of the project, after `make`.
#
# With ANSWERS.jsonl, the target's own answers (research/learned.sh data), also for a second pair, whose draft model is a tiny one
# that is trained here. With LARGE, the folder of research/large_vocabulary.sh, also for its target and draft model, which have a
# vocabulary of 32,000.
#
# Writes tables, JSON and plots to FOLDER; a run whose JSON exists is not repeated. One core. Efficiency does not depend on other
# load; rates do, so run it under chrt -r 1 on a machine where nothing else is measured.
# Environment: FORERUN (build/forerun), TEMPS (1 0.3 0.7), RUNS (5), PROMPTS (bench/prompts/study.jsonl).
set -euo pipefail
: "${FORERUN:=build/forerun}" "${TEMPS:=1 0.3 0.7}" "${RUNS:=5}" "${PROMPTS:=bench/prompts/study.jsonl}"
out=${1:?usage: research/rsd.sh FOLDER [ANSWERS.jsonl [LARGE]]}
answers=${2-}
large=${3-}
mkdir -p "$out"

experiments() { # PREFIX OPTIONS...
  local prefix=$1 experiment t name
  shift
  for experiment in length budget; do
    for t in $TEMPS; do
      name=$prefix$experiment-t$t
      [ -e "$out/$name.json" ] || "$FORERUN" study "$experiment" -f "$PROMPTS" -t 1 -n 32 --runs "$RUNS" --temp "$t" --json "$out/$name.json" \
        --plot "$out/rsd-$prefix$experiment" "$@" > "$out/$name.txt"
    done
  done
}

experiments ""
if [ "$answers" ]; then
  draft=$out/second-draft.gguf
  [ -e "$draft" ] || "$FORERUN" train target --vocab models/target.gguf --data "$answers" -o "$draft" --layers 1 --width 64 --heads 2 \
    --steps 300 -t 1
  experiments second- --draft-model "$draft"
fi
[ -z "$large" ] || experiments large- -m "$large/target.gguf" --draft-model "$large/draft.gguf"

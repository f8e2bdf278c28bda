#!/bin/sh
# The runs of research/RSD.md: both experiments at three temperatures, with 40 prompts and 5 seeds; and the same with a second
# pair of models, whose draft model is a tiny one that is trained here. Run it in the root of the project, after `make`:
#     research/rsd.sh FOLDER [ANSWERS.jsonl]
# Writes tables, JSON and plots to FOLDER. One core; efficiency does not depend on other load, rates do.
# ANSWERS.jsonl: the target's own answers (forerun distill-data); with them the second pair is run, too.
set -e
out=${1:?usage: research/rsd.sh FOLDER [ANSWERS.jsonl]}
mkdir -p "$out"
for experiment in length budget; do
    for t in 1 0.3 0.7; do
        nice -n 19 build/forerun study $experiment -t 1 -n 32 --runs 5 --temp $t --json "$out/$experiment-t$t.json" \
            --plot "$out/rsd-$experiment" > "$out/$experiment-t$t.txt"
    done
done
[ -n "$2" ] || exit 0
draft=$out/second-draft.gguf
[ -e "$draft" ] || nice -n 19 build/forerun train target --vocab models/target.gguf --data "$2" -o "$draft" --layers 1 --width 64 \
    --heads 2 --steps 300 -t 1
nice -n 19 build/forerun study length -t 1 -n 32 --runs 5 --temp 1 --draft-model "$draft" --json "$out/second-length-t1.json" \
    --plot "$out/rsd-second-length" > "$out/second-length-t1.txt"

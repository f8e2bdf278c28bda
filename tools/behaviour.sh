#!/usr/bin/env bash
# behaviour.sh [PROGRAM] - prints one line for each combination of drafter, temperature and activation precision: the hash of the logits,
# a hash of the tokens, and how many tokens were drafted and accepted. Two builds behave alike if `diff` finds no difference:
#     tools/behaviour.sh build/release/forerun > after.txt
# It runs in the root of the project, on the shipped models, with one thread and a fixed budget, so that no line depends on time.
set -eu
program=${1:-build/forerun}
stats=$(mktemp)
trap 'rm -f "$stats"' EXIT
drafters="none ngram-trie ngram-trie:rule=paper,live=1 pld llma suffix lookahead-trie recycling lookahead prediction
  sps:model=models/draft.gguf rsd-c:model=models/draft.gguf rsd-s:model=models/draft.gguf specinfer:model=models/draft.gguf
  spectr:model=models/draft.gguf eagle:file=models/eagle.gguf lyanna:file=models/lyanna.gguf medusa:file=models/medusa.gguf
  hydra:file=models/hydra.gguf redrafter:file=models/redrafter.gguf suffix+eagle:file=models/eagle.gguf"
for rule in sampled recursive; do
  for drafter in $drafters; do
    for temperature in 0 0.8 1; do
      for act in q16 q8; do
        if [ $rule != sampled ] && { [ $temperature = 0 ] || [[ $drafter != *:*=models/* ]] || [[ $drafter = *+* ]]; }; then continue; fi
        if "$program" run -m models/target.gguf -p "Once upon a time, there was a little dog who" -n 96 --ignore-eos -t 1 \
          --draft "$drafter" --tree-budget 8 --temp $temperature --seed 5 --act $act --verify $rule --stats-json "$stats" >/dev/null 2>&1
        then
          python3 - "$stats" "$rule $drafter T=$temperature $act" <<'PY'
import hashlib, json, sys
s = json.load(open(sys.argv[1]))
tokens = hashlib.sha256(json.dumps(s["tokens"]).encode()).hexdigest()[:16]
print(sys.argv[2], "logits", s.get("logits_hash"), "tokens", tokens, "drafted", s["drafted"], "accepted", s["accepted"])
PY
        else
          echo "$rule $drafter T=$temperature $act refused"
        fi
      done
    done
  done
done

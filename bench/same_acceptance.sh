#!/bin/bash
# bench/same_acceptance.sh TARGET.gguf SPEC QUESTIONS.jsonl - llama.cpp's benchmark client against `forerun serve`, beside `forerun bench`
# with the same questions, as a Markdown table: both must see the same acceptance. The exit status is 1 if the share of accepted drafts
# or the number of tokens for each that was not drafted differ by more than 1 % in some category.
#
#   CLIENT      llama.cpp's speed_bench.py, which is in its folder speed-bench (needs python3-requests). It is run as it is, but reads
#               QUESTIONS.jsonl in the place of a data set that it would fetch
#   FORERUN (build/forerun), TOKENS of an answer (128), BUDGET (8 nodes), PARALLEL (1: requests at once), LIMIT (8 questions of each
#   category), PORT (8991)
#
# SPEC is what --draft takes, such as eagle:file=models/eagle.gguf. QUESTIONS.jsonl has SPEED-Bench's layout: question_id, category, turns.
# Answers are greedy. The client does not count steps. Each adds a token that was not drafted, except the last one of some answers, so that
# the last column is a little more than the tokens per step. Drafters that remember answers depend on the order of the questions, which is
# another one in the server if PARALLEL is above 1. Needs curl and jq.
set -euo pipefail
[ $# = 3 ] || { sed -n '2,17s/^# \{0,1\}//p' "$0"; exit 2; }
target=$1 spec=$2
: "${CLIENT:=speed_bench.py}" "${FORERUN:=build/forerun}" "${TOKENS:=128}" "${BUDGET:=8}" "${PARALLEL:=1}" "${LIMIT:=8}" "${PORT:=8991}"
[ -e "$CLIENT" ] || { echo "same_acceptance.sh: there is no $CLIENT: set CLIENT to llama.cpp's speed_bench.py" >&2; exit 2; }
folder=$(mktemp -d)
server=
trap '[ -z "$server" ] || { kill "$server" && wait "$server"; } 2>/dev/null || true; rm -rf "$folder"' EXIT

# Both read the same questions: the first LIMIT of each category, whose ids the client expects to be strings.
jq -sc --argjson limit "$LIMIT" '[.[] | {question_id: (.question_id | tostring), category: (.category // "all questions"), turns}] |
  group_by(.category)[] | .[:$limit][]' "$3" > "$folder/questions.jsonl"

# What the client imports: the data set and, where it is not installed, the bar of its progress.
mkdir "$folder/modules"
cat > "$folder/modules/datasets.py" <<'PYTHON'
import json, os

class Rows(list):
    def __getitem__(self, key):
        return [row[key] for row in self] if isinstance(key, str) else list.__getitem__(self, key)

def get_dataset_config_names(repository):
    return ["qualitative"]

def load_dataset(repository, **options):
    with open(os.environ["QUESTIONS"]) as lines:
        return Rows(json.loads(line) for line in lines)
PYTHON
python3 -c 'import tqdm' 2>/dev/null || echo 'def tqdm(items, **options): return items' > "$folder/modules/tqdm.py"

"$FORERUN" serve -m "$target" --draft "$spec" --tree-budget "$BUDGET" --parallel "$PARALLEL" --port "$PORT" --quiet > "$folder/log" 2>&1 &
server=$!
until curl -sf "127.0.0.1:$PORT/health" > /dev/null; do
  kill -0 $server 2>/dev/null || { cat "$folder/log" >&2; exit 1; }
  sleep 0.2
done
QUESTIONS=$folder/questions.jsonl PYTHONPATH=$folder/modules python3 "$CLIENT" --url "127.0.0.1:$PORT" --osl "$TOKENS" \
  --concurrency "$PARALLEL" --output "$folder/client.json" > "$folder/client.log" 2>&1 || { cat "$folder/client.log" >&2; exit 1; }
"$FORERUN" bench -m "$target" "$folder/questions.jsonl" -n "$TOKENS" --runs 1 --chain none --tree-budget "$BUDGET" --draft "$spec" \
  --json "$folder/bench.json" > "$folder/bench.log" 2>&1 || { cat "$folder/bench.log" >&2; exit 1; }

jq -rn --slurpfile client "$folder/client.json" --slurpfile bench "$folder/bench.json" '
  def figures: {n_generated, share: (if .drafted > 0 then .accepted / .drafted else 0 end), tokens: (.n_generated / (.n_generated - .accepted))};
  def near($a; $b): ($a - $b | fabs) <= 0.01 * $b;
  def round3: . * 1000 | round / 1000;
  ($client[0].results | group_by(.category) | map({key: .[0].category, value: ({n_generated: (map(.completion_tokens) | add),
    drafted: (map(.draft_n) | add), accepted: (map(.draft_n_accepted) | add)} | figures)}) | from_entries) as $of_client |
  [$bench[0].summary[] | select(.method != "plain" and .category != "all") | .category as $category | $of_client[$category] as $a |
    figures as $b | {category: $category, same: (near($a.share; $b.share) and near($a.tokens; $b.tokens)),
      row: "| \($category) | \($a.n_generated), \($b.n_generated) | \($a.share | round3), \($b.share | round3) | \($a.tokens | round3), \($b.tokens | round3) |"}] |
  "| category | tokens: client, bench | accepted of drafted | tokens for each that was not drafted |", "|---|---|---|---|", .[].row,
  "", if all(.same) then "Both agree within 1 %." else "They differ by more than 1 %: \(map(select(.same | not).category) | join(", ")).\n" | halt_error(1) end'

#!/bin/bash
# bench/same_text.sh TARGET.gguf DRAFT.gguf PROMPTS.jsonl - how many greedy texts change if a draft model drafts, and what it gains: forerun
# beside llama-server, as a Markdown table.
#
# This is the protocol of llama.cpp's issue 25618: each server answers N prompts greedily, first plainly, then with drafts of one token by
# DRAFT.gguf. Decoding is greedy both times, so that the texts should be equal. Every server is started afresh for each of them, with one
# place, and no prompt is taken from its cache. tokens/s is what the servers say of decoding.
#
#   PEER        a command that runs llama-server, such as "chroot /tmp/sid llama-server" (docs/BENCH.md shows where to get it); without it
#               the table has forerun only
#   PEER_ROOT   the beginning of the files' paths that PEER does not see (a chroot; empty)
#   FORERUN (build/forerun), N (75 prompts), TOKENS of an answer (128), WIDTHS ("1": tokens of a draft), THREADS (2), PORT (8990)
#
# PROMPTS.jsonl has "turns", of which the first is taken, or "prompt"; they are raw text. Needs curl and jq.
set -euo pipefail
[ $# = 3 ] || { sed -n '2,16s/^# \{0,1\}//p' "$0"; exit 2; }
target=$1 draft=$2 prompts=$3
: "${FORERUN:=build/forerun}" "${PEER:=}" "${PEER_ROOT:=}" "${N:=75}" "${TOKENS:=128}" "${WIDTHS:=1}" "${THREADS:=2}" "${PORT:=8990}"
folder=$(mktemp -d)
server=

stop_server() {
  [ -z "$server" ] || { kill "$server" && wait "$server"; } 2>/dev/null || true
  server=
}
trap 'stop_server; rm -rf "$folder"' EXIT

# The answers of a server, a line of JSON for each.
answers() { # FILE COMMAND...
  local file=$1 request
  shift
  "$@" > "$folder/log" 2>&1 &
  server=$!
  until curl -sf "127.0.0.1:$PORT/health" > /dev/null; do
    kill -0 $server 2>/dev/null || { tail -5 "$folder/log" >&2; echo "same_text.sh: this server did not start: $*" >&2; exit 1; }
    sleep 0.2
  done
  while read -r request; do
    curl -sf "127.0.0.1:$PORT/completion" -H 'Content-Type: application/json' -d "$request" |
      jq -c '{content, n: .timings.predicted_n, ms: .timings.predicted_ms}'
  done < "$folder/requests" > "$folder/$file"
  stop_server
  [ "$(wc -l < "$folder/$file")" = "$n" ] || { echo "same_text.sh: not every prompt was answered by: $*" >&2; exit 1; }
}

# A line of the table: how fast PLAIN and DRAFTED are, and how many of their texts differ.
compare() { # NAME WIDTH PLAIN DRAFTED
  jq -rn --arg name "$1" --arg width "$2" --slurpfile plain "$folder/$3" --slurpfile drafted "$folder/$4" '
    def speed: (map(.n) | add) / (map(.ms) | add) * 1000;
    def round1: . * 10 | round / 10;
    ([range($plain | length) | select($plain[.].content != $drafted[.].content)] | length) as $differ |
    "| \($name) | \($width) | \($plain | speed | round1) | \($drafted | speed | round1) | \(($drafted | speed) / ($plain | speed) * 100 | round / 100) | \($differ) of \($plain | length) |"'
}

jq -nc --argjson n "$N" --argjson tokens "$TOKENS" 'limit($n; inputs) |
  {prompt: (.turns[0] // .prompt), n_predict: $tokens, temperature: 0, cache_prompt: false}' "$prompts" > "$folder/requests"
n=$(wc -l < "$folder/requests")

echo "$(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo | head -1), threads: $THREADS; $(basename "$target") with drafts of $(basename "$draft"); greedy, $n prompts, answers of at most $TOKENS tokens"
echo
echo "| server | tokens of a draft | plain, tokens/s | drafted, tokens/s | ratio | texts that differ |"
echo "|---|---|---|---|---|---|"
answers forerun.plain "$FORERUN" serve -m "$target" --draft none -t "$THREADS" --parallel 1 --port "$PORT" --quiet
for width in $WIDTHS; do
  answers forerun.drafted "$FORERUN" serve -m "$target" --draft "sps:model=$draft,length=$width" --tree-budget "$width" -t "$THREADS" \
    --parallel 1 --port "$PORT" --quiet
  compare "$("$FORERUN" --version | head -1)" "$width" forerun.plain forerun.drafted
done
[ "$PEER" ] || exit 0
peer() { # FILE OPTION...
  local file=$1
  shift
  # shellcheck disable=SC2086
  answers "$file" $PEER -m "${target#"$PEER_ROOT"}" -t "$THREADS" -np 1 --port "$PORT" "$@"
}
peer peer.plain
for width in $WIDTHS; do
  peer peer.drafted --spec-type draft-simple -md "${draft#"$PEER_ROOT"}" --spec-draft-n-max "$width"
  compare "llama-server $($PEER --version 2>&1 | sed -n 's/^version: \([^ ]*\).*/\1/p')" "$width" peer.plain peer.drafted
done

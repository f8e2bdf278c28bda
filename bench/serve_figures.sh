#!/bin/bash
# bench/serve_figures.sh [STAGE...] - the figures of `forerun serve` under load, as the Markdown of docs/SERVER.md. All stages by
# default; some 20 minutes on a machine that does nothing else.
#
#   plan      tokens per second with the server's drafters against "draft": "none", at 1 to 32 clients
#   streams   256 streams at once: the time that the event loop adds, the gaps between events, and the time from a token to its
#             event
#   soak      32 mixed clients, a third of which hang up, and one request in twenty malformed: compares the answers with plain
#             decoding's, and watches memory
#
# Environment: FORERUN (build/forerun), LOAD (build/release/bench/bench_serve), MODEL (models/target.gguf), DRAFTS (options such
# as "--draft eagle:file=FILE"; empty: auto), THREADS (all cores), CLIENTS ("1 2 4 8 16 32"), ROUNDS of each (5), TOKENS of an
# answer (64), SOAK_SECONDS (600), OUT (build/serve-figures). Needs jq. Plain and drafting runs take turns on the same server, and
# the table has the median of the ratios of neighbours, so that a slow minute hurts both.
set -euo pipefail
: "${FORERUN:=build/forerun}" "${LOAD:=build/release/bench/bench_serve}" "${MODEL:=models/target.gguf}" "${DRAFTS=}"
: "${THREADS:=$(nproc)}" "${CLIENTS:=1 2 4 8 16 32}" "${ROUNDS:=5}" "${TOKENS:=64}" "${SOAK_SECONDS:=600}" "${OUT:=build/serve-figures}"
mkdir -p "$OUT"
server=

stop_server() {
  [ -z "$server" ] || { kill "$server" && wait "$server"; } 2>/dev/null || true
  server=
}
trap stop_server EXIT

start_server() { # OPTION...
  : > "$OUT/server.txt"
  # shellcheck disable=SC2086
  "$FORERUN" serve -m "$MODEL" $DRAFTS -t "$THREADS" --port 0 --quiet "$@" > "$OUT/server.txt" 2> "$OUT/server.log" &
  server=$!
  until grep -q listening "$OUT/server.txt"; do
    kill -0 "$server" 2>/dev/null || { cat "$OUT/server.log" >&2; exit 1; }
    sleep 0.2
  done
  port=$(sed 's/.*://' "$OUT/server.txt")
}

median() { sort -g | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }

load() { # NAME OPTION...
  local name=$1
  shift
  "$LOAD" --port "$port" --pid "$server" --max-tokens "$TOKENS" --json "$OUT/$name.json" "$@" > "$OUT/$name.txt"
}

# The number of requests lets each run take some seconds; all answers are complete, because their tokens are counted.
stage_plan() {
  start_server
  load warm --clients 8 --requests 64 --no-check
  echo "| clients | plain, tokens/s | with drafts | ratio | first token p50, plain | with drafts |"
  echo "|---|---|---|---|---|---|"
  for c in $CLIENTS; do
    for round in $(seq "$ROUNDS"); do
      n=$((c < 8 ? 32 : 4 * c))
      load "plain-$c-$round" --clients "$c" --requests "$n" --seed "$round" --no-check --draft none
      load "draft-$c-$round" --clients "$c" --requests "$n" --seed "$round" --no-check
    done
    figure() { jq -r "$2" "$OUT/$1-$c"-*.json | median; }
    ratio=$(for round in $(seq "$ROUNDS"); do
      jq -rs '.[1].tokens_per_s / .[0].tokens_per_s' "$OUT/plain-$c-$round.json" "$OUT/draft-$c-$round.json"
    done | median)
    printf '| %d | %.0f | %.0f | %.2f | %.1f ms | %.1f ms |\n' "$c" "$(figure plain .tokens_per_s)" "$(figure draft .tokens_per_s)" \
      "$ratio" "$(figure plain .first_token.p50_ms)" "$(figure draft .first_token.p50_ms)"
  done
  stop_server
}

stage_streams() {
  start_server --parallel 256 --kv-tokens $((256 * (TOKENS + 96))) # for all, so that none gives way to another
  load streams --clients 256 --requests 1024 --streamed 100 --no-check
  jq -r '"256 streams: the event loop answers within \(.health.p50_ms) ms (p50), \(.health.p99_ms) ms (p99); between two events " +
    "\(.between_events.p50_ms) ms (p50), \(.between_events.p99_ms) ms (p99); \(.tokens_per_s) tokens/s"' "$OUT/streams.json"
  load added --clients 256 --requests 1024 --kinds 35 --added --no-check
  jq -r '"256 streams, from outside: from a token to its event \(.token_to_event.p50_ms) ms (p50), " +
    "\(.token_to_event.p99_ms) ms (p99); \(.tokens_per_s) tokens/s"' "$OUT/added.json"
  stop_server
}

stage_soak() {
  start_server
  load soak --clients 32 --seconds "$SOAK_SECONDS" --hang-up 33 --malformed 5 --retries 1
  cat "$OUT/soak.txt"
  stop_server
}

[ "$#" -gt 0 ] || set -- plan streams soak
for stage; do "stage_$stage"; done

#!/bin/bash
# bench/ranks_figures.sh [STAGE...] - what it costs to divide a model among ranks, as Markdown tables for docs/CLUSTER.md. All stages
# by default; some 10 minutes on a machine that does nothing else. Goals are in parentheses.
#
#   network      the time of a forward of 1, 4, 8 and 16 rows that two ranks compute over networks of several speeds, beside what the
#                cost model says (within 15 %; how many are is printed below the table); four minutes
#   one-machine  plain decoding by two ranks of one thread each, beside one process of two threads (at least 0.95 of its tokens/s)
#   memory       the peak of the memory of each rank of 1, 2 and 4, if it packs the weights of the model's file, and if it copies them
#                from a file of packed weights (1.1 file / ranks + what one process needs besides its weights)
#
# Why ranks lose time on one machine: they read the same memory as the threads of one process, and a forward has 4 L + 2 exchanges
# besides. Why they are measured there: what is lost is the price of dividing, without that of a network.
#
# A network is a pair of interfaces between two namespaces (tools/ranks_namespaces.sh), so `network` needs root, mpirun and tc. Its
# speed is limited by the kernel. A delay is not, because the kernel module for that (sch_netem) is often missing: it is added to
# each exchange by the ranks themselves (FORERUN_RANKS_NETWORK, comm_slow_down in src/compute/ranks/comm.h), so that it is one way
# and exact. The two cores also compute what a network card would do: checksums, copies and the limit.
#
# Memory is what the kernel counts for a process, sampled until it ends: Rss, every page that it has mapped, also pages of files and
# of the memory that ranks share; and Pss, in which a page that k processes have mapped counts 1/k. A rank on a machine of its own
# would have its Rss.
#
# Environment: FORERUN (build/forerun), BENCH (build/release/bench/bench_ranks), OUT (build/ranks-figures), MODEL (a model of the shape
# of TinyLlama 1.1B, which is made in OUT), NETWORKS ("MBIT_S:DELAY_US ...", where 0 Mbit/s is no limit), SECONDS_EACH of a network (20),
# ROUNDS of one-machine (5), TOKENS of a text (64), RANKS of memory besides 1 ("2 4"). Needs jq. The two sides of one-machine take turns, and
# the ratio is the median of the ratios of neighbours, so that a slow minute hurts both. If other programs run, `chrt -r 1` before
# the command gives it the cores; the stage `network` is disturbed by that, because the kernel's own work has to wait, too.
set -euo pipefail
: "${FORERUN:=build/forerun}" "${BENCH:=build/release/bench/bench_ranks}" "${OUT:=build/ranks-figures}" "${MODEL:=$OUT/model.gguf}"
: "${NETWORKS:=0:0 10000:0 1000:0 0:100 0:500 0:1000}" "${SECONDS_EACH:=20}" "${ROUNDS:=5}" "${TOKENS:=64}" "${RANKS:=2 4}"
mkdir -p "$OUT"
folder=$(mktemp -d)
. "$(dirname "$0")/../tools/ranks_namespaces.sh"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export XDG_CACHE_HOME=$folder # neither packed weights nor costs of earlier runs

clean_up() {
  remove_namespaces
  rm -rf "$folder"
}
trap clean_up EXIT

[ -e "$MODEL" ] || build/release/grow_model models/target.gguf --preset tinyllama-1.1b -o "$MODEL"
text="-m $MODEL --draft none --ignore-eos --seed 1 -n $TOKENS -c 256"
file_mb=$(($(stat -c %s "$MODEL") / 1000000))

# The machine and the command, above a table.
say() {
  printf '%s; %s cores; %s of %d MB: `%s`\n\n' "$(sed -n 's/^model name\s*: //p' /proc/cpuinfo | head -1)" "$(nproc)" \
    "$(basename "$MODEL")" $file_mb "$*"
}

median() { sort -g | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }

name_of() { # MBIT_S DELAY_US
  local limit="no limit"
  [ "$1" = 0 ] || limit=$(awk "BEGIN { print $1 / 1000 }")" Gbit/s"
  [ "$2" = 0 ] && echo "$limit" || echo "$limit, $(awk "BEGIN { print $2 / 1000 }") ms more"
}

stage_network() {
  local network mbit_s delay_us
  make_namespaces || { echo "network namespaces cannot be made here; this needs root and iproute2" >&2; exit 1; }
  say "SECONDS_EACH=$SECONDS_EACH bench/ranks_figures.sh network"
  echo "| network | an exchange | rows | T | curve | error | in exchanges | price | error |"
  echo "|---|---|---|---|---|---|---|---|---|"
  for network in $NETWORKS; do
    mbit_s=${network%:*} delay_us=${network#*:}
    limit_network "$mbit_s"
    $(between_namespaces) --bind-to none -x FORERUN_RANKS_NETWORK="$delay_us,0" \
      "$BENCH" "$MODEL" "$SECONDS_EACH" "$(name_of "$mbit_s" "$delay_us")"
  done | tee "$folder/rows"
  awk -F'|' 'function is_near(error) { return error + 0 >= -15 && error + 0 <= 15 }
    { curve += is_near($7); price += is_near($10) }
    END { printf "\nWithin 15 %%: %d of %d by the curve, %d by the formula.\n", curve, NR, price }' "$folder/rows"
}

decode() { # NAME OPTION...: tokens per second
  local name=$1
  shift
  # shellcheck disable=SC2086
  "$FORERUN" run $text -p "Once upon a time" --stats-json "$folder/$name.json" "$@" > /dev/null
  jq .tokens_per_s "$folder/$name.json"
}

stage_one-machine() {
  local round one two
  say "ROUNDS=$ROUNDS TOKENS=$TOKENS bench/ranks_figures.sh one-machine"
  "$FORERUN" repack -m "$MODEL" > /dev/null
  for ((round = 0; round < ROUNDS; round++)); do
    one=$(decode one -t 2)
    two=$(decode two --ranks 2 -t 1)
    echo "$one $two $(awk "BEGIN { print $two / $one }")"
    cmp -s <(jq .logits_hash "$folder/one.json") <(jq .logits_hash "$folder/two.json") || { echo "two ranks gave other logits" >&2; exit 1; }
  done > "$folder/rounds"
  echo "| one process of two threads, tokens/s | two ranks of one thread | ratio | an exchange |"
  echo "|---|---|---|---|"
  printf '| %.1f | %.1f | %.3f | %s |\n' "$(cut -d' ' -f1 "$folder/rounds" | median)" "$(cut -d' ' -f2 "$folder/rounds" | median)" \
    "$(cut -d' ' -f3 "$folder/rounds" | median)" \
    "$(jq -r '.ranks | "\(.latency_s * 1e7 | round / 10) us, \(.bytes_per_s / 1e7 | round / 100) GB/s"' "$folder/two.json")"
  rm -rf "$folder/forerun"
}

# Runs a text on N ranks, and prints the peaks of Rss and of Pss of its largest rank in MB.
peak_of() { # N
  local pid
  # shellcheck disable=SC2086
  "$FORERUN" run $text -p "Once upon a time" -t 1 --ranks "$1" > /dev/null &
  pid=$!
  while kill -0 $pid 2>/dev/null; do
    for rank in $pid $(pgrep -P $pid || true); do
      awk '/^VmHWM:/ { rss = $2 } /^Pss:/ { pss = $2 } END { if (rss) print rss / 1000 * 1.024, pss / 1000 * 1.024 }' \
        "/proc/$rank/status" "/proc/$rank/smaps_rollup" 2>/dev/null || true
    done
    sleep 0.05
  done | awk '{ if ($1 > rss) rss = $1; if ($2 > pss) pss = $2 } END { print rss, pss }'
  wait $pid
}

stage_memory() {
  local source n rss pss besides
  say "RANKS=\"$RANKS\" bench/ranks_figures.sh memory"
  echo "| weights from | ranks | Rss of the largest, MB | Pss, MB | 1.1 file / ranks + besides |"
  echo "|---|---|---|---|---|"
  for source in "the model's file" "packed weights"; do
    [ "$source" = "the model's file" ] || "$FORERUN" repack -m "$MODEL" > /dev/null
    for n in 1 $RANKS; do
      read -r rss pss < <(peak_of "$n")
      [ "$n" != 1 ] || besides=$(awk "BEGIN { print $rss - $file_mb }")
      awk -v rss="$rss" -v pss="$pss" -v n="$n" "BEGIN { most = 1.1 * $file_mb / n + $besides
        printf \"| $source | %d | %.0f | %.0f | %.0f%s |\n\", n, rss, pss, most, (rss > most ? \": exceeded\" : \"\") }"
    done
  done
  rm -rf "$folder/forerun"
}

[ "$#" -gt 0 ] || set -- network one-machine memory
for stage; do
  "stage_$stage"
  echo
done

#!/bin/bash
# bench/peers.sh FILE.gguf... - forerun beside llama.cpp on the same files, machine and threads, as a Markdown table: T(n)/T(1), and
# the tokens/s of a prefill. The programs take turns in each round; the median over a program's rounds counts.
#
#   PEER        a command that runs llama-bench; needed. Debian has it only in sid, so the easy way is a folder of its own:
#                   debootstrap --variant=minbase --include=llama.cpp-tools sid /tmp/sid
#                   PEER="chroot /tmp/sid llama-bench" PEER_ROOT=/tmp/sid bench/peers.sh /tmp/sid/tmp/Q8_0.gguf
#   PEER_ROOT   the beginning of the files' paths that PEER does not see (a chroot; empty)
#   PEER_FLAGS  its settings (-fa on -lm none: its fastest here; others: -ctk q8_0 -ctv q8_0)
#   NODE_PEER   a folder where `npm install node-llama-cpp` ran: a second peer, which is faster if Debian's llama.cpp was
#               built without its matrix kernels for many rows (`nm -D libggml-cpu-zen4.so | grep llamafile_sgemm` shows that)
#   FORERUN (build/forerun), ROUNDS (3), ROWS (1,4,8,16,32,64,512; ascending), CONTEXT (128), THREADS (2)
#
# On a CPU with AMX the peers should use it. The line above the table names the CPU, the CPU library that llama-bench loads, and
# whether node-llama-cpp uses AMX. If they do not use it, there is a warning on standard error: llama.cpp needs a build with
# -DGGML_NATIVE=ON on such a machine, or with -DGGML_CPU_ALL_VARIANTS=ON -DGGML_BACKEND_DL=ON (the variant sapphirerapids).
#
# forerun computes the logits of all rows, as verification needs them; llama-bench those of the last row, node-llama-cpp none.
# `chrt -r 1 bench/peers.sh ...` keeps other programs away from all alike. Needs jq.
set -euo pipefail
[ $# -gt 0 ] && [ -n "${PEER:-}" ] || { sed -n '2,21s/^# \{0,1\}//p' "$0"; exit 2; }
: "${PEER_ROOT:=}" "${PEER_FLAGS:=-fa on -lm none}" "${NODE_PEER:=}" "${FORERUN:=build/forerun}"
: "${ROUNDS:=3}" "${ROWS:=1,4,8,16,32,64,512}" "${CONTEXT:=128}" "${THREADS:=2}"
times=$(mktemp) notes=$(mktemp)
trap 'rm -f "$times" "$notes"' EXIT

# A line for each measurement: {"name", "rows", "seconds"}.
llama_bench() { # FILE
  $PEER -m "${1#"$PEER_ROOT"}" -t "$THREADS" -p "$ROWS" -n 0 -d "$CONTEXT" -r 3 $PEER_FLAGS -o json 2>>"$notes" |
    jq -c '.[] | {name: "llama-bench", rows: .n_prompt, seconds: (.samples_ns | sort | .[length / 2 | floor] / 1e9)}'
}
node_llama_cpp() { # FILE
  node "$(dirname "$0")/peer_node.mjs" "$NODE_PEER" "$1" "$THREADS" "$CONTEXT" "$ROWS" 2> >(tee -a "$notes" >&2) | jq -c '{name: "node-llama-cpp"} + .'
}
forerun() { # FILE FORM
  "$FORERUN" perf -m "$1" -t "$THREADS" --rows "$ROWS" --ctx "$CONTEXT" --act "$2" --parts 1 --json |
    jq -c --arg name "forerun $2" '.forward[] | {$name, rows, seconds}'
}

for ((round = 1; round <= ROUNDS; round++)); do
  for file; do
    echo "round $round of $ROUNDS: $file" >&2
    {
      llama_bench "$file"
      [ -z "$NODE_PEER" ] || node_llama_cpp "$file"
      forerun "$file" q8
      forerun "$file" q16
    } | jq -c --arg file "$(basename "$file" .gguf)" '{$file} + .' >> "$times"
  done
done

cpu=$(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo | head -1)
if grep -qw amx_int8 /proc/cpuinfo; then amx="with AMX"; else amx="without AMX"; fi
library=$(sed -n 's/.*loaded CPU backend from .*\/\(libggml-cpu[^/ ]*\).*/\1/p' "$notes" | sort -u | head -1)
node_amx=$(sed -n 's/.*\(AMX_INT8 = [01]\).*/\1/p' "$notes" | sort -u | head -1)
echo "${cpu:-unknown CPU}, $amx, $THREADS threads, context $CONTEXT; llama-bench: ${library:-one CPU library}" \
     "${NODE_PEER:+; node-llama-cpp: ${node_amx:-AMX_INT8 = 0}}"
echo
if [ "$amx" = "with AMX" ]; then
  case $library in '' | *sapphirerapids*) ;; *) echo "llama-bench does not use AMX: it loaded $library" >&2 ;; esac
  [ -z "$NODE_PEER" ] || [ "$node_amx" = "AMX_INT8 = 1" ] || echo "node-llama-cpp does not use AMX" >&2
fi

jq -rs --argjson rows "[$ROWS]" '
  def median: sort | if length % 2 == 1 then .[length / 2 | floor] else (.[length / 2] + .[length / 2 - 1]) / 2 end;
  def digits($n): . * pow(10; $n) | round / pow(10; $n) | tostring;
  def line: "| " + join(" | ") + " |";
  $rows[0] as $least | $rows[-1] as $most |
  (["", "", "T(\($least)) ms"] + [$rows[1:][] | "T(\(.))/T(\($least))"] + ["tokens/s of \($most)"] | line),
  ([range($rows | length + 3) | "---"] | line),
  (group_by(.file)[] | group_by(.name)[] | . as $all |
    ($rows | map(. as $n | [$all[] | select(.rows == $n) | .seconds] | median)) as $s |
    ([$all[0].file, $all[0].name, ($s[0] * 1000 | digits(1))] + [$s[1:][] / $s[0] | digits(2)] + [$most / $s[-1] | digits(1)]) | line)
' "$times"

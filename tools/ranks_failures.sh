#!/bin/bash
# tools/ranks_failures.sh [ROUNDS [PROGRAM]]: lets ranks fail at random, and checks that the group ends as it should.
#
# Each round starts a text or a server with three ranks (RANKS), by --ranks or by mpirun, kills or stops one at random while it starts, in
# prefill, in decoding or while the server is idle, and checks that within two seconds the other ranks have ended and one sentence names the
# rank. After a rank is killed, mpirun itself may be the first to notice and print the sentence. mpirun needs up to a second more to
# end. Where root may make network namespaces, rounds of a third kind start one rank in each of two, and cut the network between them: then
# both ranks must end. LAUNCHERS="fork mpi cut" chooses the kinds. The two seconds need a machine with some time for each process.
# 50 rounds take five to ten minutes.
rounds=${1:-50}
program=${2:-build/forerun}
folder=$(mktemp -d)
. "$(dirname "$0")/ranks_namespaces.sh"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
model=models/target.gguf
for i in $(seq 3000); do echo "The little dog went to the park and saw $i big red balls."; done > "$folder/long.txt"
failed=0

clean_up() {
  remove_namespaces
  rm -rf "$folder"
}
trap clean_up EXIT
if [ -z "$LAUNCHERS" ]; then
  LAUNCHERS="fork mpi"
  make_namespaces 2>/dev/null && LAUNCHERS="fork mpi cut"
elif [[ " $LAUNCHERS " = *" cut "* ]]; then
  make_namespaces || exit 1
fi

now_ms() { echo $(($(date +%s%N) / 1000000)); }
pick() { shift $((RANDOM % $#)); echo "$1"; }

# The processes of ranks 0, 1, ... of the command with process id $1.
list_ranks() {
  if [ "$launcher" = fork ]; then
    echo "$1" $(pgrep -P "$1" | sort -n)
  else
    for rank in $(seq 0 $((ranks - 1))); do
      for pid in $(if [ "$launcher" = cut ]; then ip netns pids $here; ip netns pids $there; else pgrep -P "$1"; fi); do
        tr '\0' '\n' < "/proc/$pid/environ" 2>/dev/null | grep -qx "OMPI_COMM_WORLD_RANK=$rank" && echo "$pid"
      done
    done
  fi
}

is_running() { [ -e "/proc/$1" ] && ! grep -q '^State:.Z' "/proc/$1/status" 2>/dev/null; }

# Starts the command, and waits until all ranks have started and it is at its work.
start_command() {
  $start > "$folder/out" 2> "$folder/err" < /dev/null &
  command=$!
  for i in $(seq 100); do
    sleep $([ $moment = start ] && echo 0.01 || echo 0.1)
    pids=($(list_ranks $command))
    [ ${#pids[@]} = $ranks ] || continue
    if [ $moment = start ]; then # over MPI, until the rank counts beats, which the others watch while all join
      [ $launcher = fork ] || [ "$i" -gt 20 ] || grep -qs /forerun-ranks- "/proc/${pids[$victim]}/maps" || continue
      return 0
    fi
    [ $moment = idle ] && ! grep -q 'http://' "$folder/err" && continue
    [ $moment = decoding ] && ! [ -s "$folder/out" ] && continue
    [ $moment = prefill ] && [ "$i" -lt 12 ] && continue
    return 0
  done
  return 1
}

one_round() {
  launcher=$(pick $LAUNCHERS)
  signal=$(pick KILL STOP)
  ranks=${RANKS:-3}
  moment=$(pick start prefill decoding idle)
  victim=$((RANDOM % ranks))
  what="$launcher, SIG$signal to rank $victim, $moment"
  if [ $launcher = cut ]; then
    ranks=2 victim=1 moment=$(pick prefill decoding idle)
    what="the network is cut, $moment"
    ip -n $here link set eth0 up
    for n in $here $there; do until ip -n $n link show eth0 | grep -q 'state UP'; do sleep 0.01; done; done
  fi
  case $moment in
    start | prefill) args="run -m $model --draft none -t 1 -f $folder/long.txt -n 10 -c 60000" ;;
    decoding) args="run -m $model --draft none -t 1 -n 50000 -c 60000 --ignore-eos -p Once" ;;
    idle)     args="serve -m $model --draft none -t 1 --port 0" ;;
  esac
  case $launcher in
    fork) start="$program $args --ranks $ranks" ;;
    mpi) start="mpirun --oversubscribe -n $ranks $program $args" ;;
    cut) start="$(between_namespaces) $program $args" ;;
  esac
  # On a busy machine mpirun sometimes cannot start its daemons, so that there is nothing to fail yet.
  for try in 1 2 3; do
    start_command && break
    grep -q 'unable to reliably start' "$folder/err" || break
    echo "mpirun did not start its daemons (try $try)"
    wait $command
  done
  [ $moment = start ] || sleep 0.$((RANDOM % 9))
  others=()
  for i in $(seq 0 $((ranks - 1))); do [ "$i" = $victim ] && [ $launcher != cut ] || others+=("${pids[$i]}"); done
  start_ms=$(now_ms)
  if [ $launcher = cut ]; then ip -n $here link set eth0 down; else kill -$signal "${pids[$victim]}"; fi
  while [ $(($(now_ms) - start_ms)) -lt 5000 ]; do
    left=0
    for pid in "${others[@]}"; do is_running "$pid" && left=1; done
    [ $left = 0 ] && break
    sleep 0.02
  done
  took_ms=$(($(now_ms) - start_ms))
  [ $launcher = fork ] && [ $victim = 0 ] && kill -KILL $command 2>/dev/null # the stopped process is the command itself
  for i in $(seq 100); do is_running $command || break; sleep 0.02; done
  kill -KILL $command 2>/dev/null
  wait $command 2>/dev/null
  status=$?
  named=no
  grep -qE "rank $victim of $ranks has died|process rank $victim with PID" "$folder/err" && named=yes
  # The sentence of forked ranks is printed by rank 0.
  [ $launcher = fork ] && [ $victim = 0 ] && named=yes
  if [ $took_ms -gt 2000 ] || [ $status = 0 ] || [ $named = no ]; then
    echo "FAILED: $what: ended after $took_ms ms, status $status, named: $named"
    cat "$folder/err"
    failed=$((failed + 1))
  else
    echo "$what: ended after $took_ms ms"
  fi
  for pid in "${pids[@]}"; do kill -KILL "$pid" 2>/dev/null; done
  end_namespaces
}

for round in $(seq "$rounds"); do one_round; done
echo "$((rounds - failed)) of $rounds rounds passed"
[ $failed = 0 ]

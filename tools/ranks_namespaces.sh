# shellcheck shell=bash disable=SC2086,SC2154
# tools/ranks_namespaces.sh - two network namespaces as two machines, for scripts that start a rank in each; to be read with `source`.
#
# Linux gives each network namespace interfaces of its own, and a pair of them (veth) is a cable: what enters one end leaves at the
# other. Programs in two namespaces therefore see each other over TCP only, as on two machines that share nothing but a network, while
# files, processes and the clock are those of one machine. What happens to a cable can be done to the pair:
#
#   ip -n $here link set eth0 down          cuts it; `up` joins it again
#   limit_network 1000                      limits each direction to 1000 Mbit/s; `limit_network 0` removes the limit
#
# mpirun reaches another machine by ssh; it gets a program in its place (an agent) that starts its command in the other namespace, so
# no server is needed. The caller must be root, sets `folder` to a folder of its own, and calls remove_namespaces when it ends.
#
# A limit is a token bucket (tc-tbf): bytes may pass as long as there are tokens, which come at the rate and of which at most the
# burst is kept. A network card has no such store: each byte takes its time. Ranks exchange some kilobytes at a time and compute in
# between, when tokens come, so a part of each exchange passes at the speed of memory. The burst is therefore as small as the timers
# of a virtual machine allow, what the network carries in 100 us (12.5 KB at 1 Gbit/s): with less, the rate is not reached. What cannot
# pass yet waits in a queue that holds all that ranks send at once. Kernels without sch_tbf refuse the limit.
here=ranks-$$-here there=ranks-$$-there

# Ends everything in the two namespaces.
end_namespaces() { for n in $here $there; do ip netns pids $n 2>/dev/null | xargs -r kill -KILL; done || true; }

remove_namespaces() {
  end_namespaces
  for n in $here $there; do ip netns del $n 2>/dev/null; done || true
}

# Makes the two namespaces, and what mpirun runs in the place of ssh.
make_namespaces() {
  ip netns add $here && ip netns add $there && ip link add eth0 netns $here type veth peer name eth0 netns $there &&
    ip -n $here addr add 10.77.0.1/24 dev eth0 && ip -n $there addr add 10.77.0.2/24 dev eth0 || return 1
  for n in $here $there; do ip -n $n link set lo up && ip -n $n link set eth0 up || return 1; done
  printf '#!/bin/sh\nshift\nexec ip netns exec %s sh -c "$*"\n' $there > "$folder/agent" && chmod +x "$folder/agent"
}

# The beginning of a command line that starts two ranks, one in each namespace; the options of mpirun follow, then the program.
between_namespaces() {
  echo "ip netns exec $here mpirun --mca plm_rsh_agent $folder/agent --mca btl_tcp_if_include eth0 --mca oob_tcp_if_include eth0" \
    "--host 10.77.0.1,10.77.0.2 -n 2"
}

limit_network() { # MBIT_S
  local n burst=$(($1 * 100 / 8 > 3000 ? $1 * 100 / 8 : 3000))
  for n in $here $there; do
    tc -n $n qdisc del dev eth0 root 2>/dev/null || true
    [ "$1" = 0 ] || tc -n $n qdisc add dev eth0 root tbf rate "$1mbit" burst $burst limit 16mb || return 1
  done
}

#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# run_world programs in which a rank fails: which ranks report it, exit codes, and the reaction of launch -r.
#
#   tests/chaos/world.sh LAUNCH FAULTY_RANK
set -uo pipefail

launch=$(realpath "$1") rank=$(realpath "$2")
at=$(mktemp -d)
trap 'rm -rf "$at"' EXIT
cd "$at" || exit 1
failures=0
expect() {  # WHAT WANTED GOT
  [ "$2" = "$3" ] && return
  echo "$1: expected $2, got $3"
  sed 's/^/    /' log
  failures=$((failures + 1))
}
run() { timeout -s KILL 60 "$@" >log 2>&1; }  # COMMAND...
count() { grep -c -- "$1" log; }

run "$launch" -n 3 "$rank" --fault hang
expect "a rank that hangs: both others say so" 2 "$(count 'not there: rank 1$')"
run "$launch" -n 4 -r 3 -m 12 "$rank" --fault hang --who 3 --checkpoint none
expect "a rank that hangs is one place that is lost" "0 4 ranks,3 ranks" "$? $(grep ' ranks$' log | paste -sd,)"
# An exception of any type is reported to the other ranks.
run "$launch" -n 3 "$rank" --fault comm_error
expect "an error of communication of its own" "3 1 2" "$? $(count '^my own failure') $(count 'rank 1 gave up: my own failure')"
run "$launch" -n 3 "$rank" --fault int
expect "an exception of another type" "1 1 2" "$? $(count '^an exception') $(count 'rank 1 gave up: an exception')"
for n in 0 3; do  # threads, and processes
  if [ $n = 0 ]; then WEFT_RANKS=3 run "$rank" --fault return; else run "$launch" -n 3 "$rank" --fault return; fi
  expect "the code of a rank that ends early: $n" 7 $?
done
RANK=0 WORLD_SIZE=1 OMPI_COMM_WORLD_SIZE=2 run "$rank"
expect "variables that contradict each other" "2 1" "$? $(count 'WORLD_SIZE=1 contradicts OMPI_COMM_WORLD_SIZE=2')"
OMPI_COMM_WORLD_SIZE=1 run "$launch" -n 2 "$rank"
expect "launch under mpirun" 0 $?
# A failure of every rank does not count as the loss of one.
GLOO_SOCKET_IFNAME=eth77 run "$launch" -n 3 -r 3 "$rank" --checkpoint none
expect "an interface that is not there" "2 yes 0" "$? $(grep -q 'cannot use the network interface eth77' log && echo yes) $(count 'going on')"
python3 -c 'import socket, time
s = socket.create_server(("127.0.0.1", 0))
print(s.getsockname()[1], flush=True)
time.sleep(1000)' >port &
holder=$!
until [ -s port ]; do sleep 0.05; done
MASTER_PORT=$(cat port) run "$launch" -n 3 -r 3 "$rank" --checkpoint none
expect "a port that is in use" "2 1 0" "$? $(count 'cannot listen on 127.0.0.1') $(count 'going on')"
kill $holder
# Started by hand: two processes with contradictory variables.
export MASTER_ADDR=127.0.0.1 MASTER_PORT
by_hand() {  # WORLD_SIZE RANK LOG
  WORLD_SIZE=$1 RANK=$2 timeout -s KILL 60 "$rank" >"$3" 2>&1 &
}
free_port() { MASTER_PORT=$(python3 -c 'import socket; print(socket.create_server(("127.0.0.1", 0)).getsockname()[1])'); }
free_port
by_hand 2 0 log.0
by_hand 3 1 log.1
wait
cat log.0 log.1 >log
expect "different sizes" 2 "$(count 'WORLD_SIZE is 2 on rank 0 and 3 on rank 1')"
free_port
for n in 0 1 2; do by_hand 2 $((n > 0)) log.$n; done
wait
cat log.0 log.1 log.2 >log
expect "a rank twice: the second process says so, and no other has an error" "1 0" \
  "$(count 'another process of this job is rank 1 already') $(count 'rank 0')"
unset MASTER_PORT MASTER_ADDR
WEFT_RANKS=3 run "$rank" --fault hang
expect "a rank that is a thread, and hangs" "3 1" "$? $(count 'not there: rank 1$')"

[ $failures -eq 0 ] && echo "faults in run_world: all checks passed"
exit $((failures > 0))

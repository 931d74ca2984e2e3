#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The launcher with ranks that fail in every way: exit codes, signals, no processes left behind, restarts, growth.
#
#   tests/chaos/launch.sh build/examples/launch
set -uo pipefail

launch=$(realpath "$1")
at=$(mktemp -d)
trap 'xargs -r kill -9 <"$at/all_pids" 2>/dev/null; rm -rf "$at"' EXIT
: >"$at/all_pids"
failures=0
expect() {  # WHAT WANTED GOT
  [ "$2" = "$3" ] && return
  echo "$1: expected $2, got $3"
  failures=$((failures + 1))
}
new() { rm -rf "$at/case" && mkdir "$at/case" && cd "$at/case" || exit 1; }
# A rank: records its identity, then runs the shell commands.
rank() { printf '%s\n' 'echo $$ >>pids; echo $$ >>'"$at"'/all_pids; echo "$WORLD_SIZE $RANK $*" >>ranks' "$1" >rank.sh; }
left() {  # how many processes of the case still live; waits for at most a minute
  local pid n=0
  for ((i = 0; i < 200; ++i)); do
    n=0
    while read -r pid; do kill -0 "$pid" 2>/dev/null && n=$((n + 1)); done <pids
    [ $n -eq 0 ] && break
    sleep 0.3
  done
  echo $n
}
# Ranks write `ready` once their signal handlers are set.
ready='echo >>ready'
started() { until [ -e ready ] && [ "$(wc -l <ready)" -ge "$1" ]; do sleep 0.05; done; }

new && rank 'echo $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR >>local; [ -n "$MASTER_PORT" ] && [ ${#WEFT_JOB_TOKEN} = 32 ]'
"$launch" -n 3 bash rank.sh a b
expect "a job that is done" 0 $?
expect "who ranks are" "3 0 a b,3 1 a b,3 2 a b" "$(sort ranks | paste -sd,)"
expect "who they are on this machine" "0 3 127.0.0.1,1 3 127.0.0.1,2 3 127.0.0.1" "$(sort local | paste -sd,)"

new && rank '[ $RANK = 2 ] && { sleep 0.3; exit 7; }; exit 3'
"$launch" -n 3 bash rank.sh
expect "the code of the rank at fault, not of the first to end" 7 $?

new && rank '[ $RANK = 1 ] && kill -9 $$; exit 3'
"$launch" -n 2 bash rank.sh
expect "a rank that is killed" 137 $?

new
for bad in "" "-n 0 true" "-n x true" "-c udp true" "-m 2 true" "-r 1 true" "-n 4 -r 1 -m 6 x --checkpoint c" "-p 2 true" "-n 4 -r 1 -p 3 x --checkpoint c" "-z true"; do
  # shellcheck disable=SC2086
  "$launch" $bad >out 2>&1
  expect "bad use: $bad" "2 1" "$? $(wc -l <out)"
done
"$launch" -n 2 ./is_not_there 2>/dev/null
expect "a program that is not there" 127 $?

new && rank '[ $RANK = 1 ] && kill -STOP $$; [ $RANK = 0 ] && exit 3; trap "" TERM; sleep 1000 & echo $! >>pids; wait; wait'
"$launch" -n 3 bash rank.sh
expect "stopped ranks, and such as ignore SIGTERM, are ended" 143 $?
expect "and nobody is left" 0 "$(left)"

new && rank "trap 'echo saved >>saved; exit 130' TERM; $ready; sleep 1000 & wait"
"$launch" -n 3 bash rank.sh &
job=$!
started 3 && kill -TERM $job
wait $job
expect "asked to end" 130 $?
expect "ranks save" 3 "$(wc -l <saved)"

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
if command -v mpirun >/dev/null; then
  new && rank "trap 'echo saved >>saved; exit 130' USR1; $ready; sleep 1000 & wait"
  "$launch" -n 1 -c mpi bash rank.sh 2>log &
  job=$!
  started 1 && kill -TERM $job
  wait $job
  expect "asked to end through mpirun" "130 saved" "$? $(cat saved)"
fi

new && rank "trap '' TERM INT; $ready; while :; do sleep 0.1; done"
"$launch" -n 2 -g 1 bash rank.sh &
job=$!
started 2 && kill -INT $job
wait $job
expect "ranks that do not end are killed" 137 $?

for how in "gloo 600" "mpi 600" "mpi 1"; do  # at once when told a second time, before or after this grace period
  read -r comm grace <<<"$how"
  [ $comm = gloo ] || command -v mpirun >/dev/null || continue
  new && rank "trap '' TERM INT USR1; $ready; sleep 1000 & echo \$! >>pids; while :; do sleep 0.1; done"
  "$launch" -n 2 -c "$comm" -g "$grace" bash rank.sh 2>log &
  job=$!
  started 2
  for wait in 1.3 0.3 0.3; do  # a third time changes nothing
    kill -INT $job 2>/dev/null
    sleep $wait
  done
  wait $job
  code=$?
  [ "$grace" = 1 ] || expect "told to end three times, $comm" "130 1" "$code $(grep -c "asked to save and end" log)"
  expect "nobody is left when told three times, $how" 0 "$(left)"
done

for how in direct mpi; do  # processes that a rank has started end, too
  new && rank "sleep 1000 & echo \$! >>pids; trap '' TERM; $ready; wait; wait"
  if [ $how = mpi ]; then
    command -v mpirun >/dev/null || continue
    rank "$ready; sleep 1000"
    "$launch" -n 2 -c mpi bash rank.sh &
  else
    "$launch" -n 2 bash rank.sh &
  fi
  job=$!
  started 2 && kill -KILL $job
  wait $job 2>/dev/null
  expect "nobody is left when the launcher is killed: $how" 0 "$(left)"
done

new && rank '[ $RANK = 1 ] || trap "sleep 0.3; exit 130" TERM  # rank 1 does not hear yet that it is asked
[ -e died ] || { [ $RANK = 3 ] && { : >died; kill -9 $$; }; exit 3; }
[ $WORLD_SIZE = 4 ] && exit 0
sleep 1000 & wait'
"$launch" -n 4 -r 5 -b 2 bash rank.sh --checkpoint run 2>log
expect "a supervised job that loses a rank" 0 $?
expect "goes on with those left, and grows again" "4 0 --checkpoint run --comm gloo --accumulate 1,2 0 --checkpoint run --comm gloo --accumulate 2 --resume,4 0 --checkpoint run --comm gloo --accumulate 1 --resume" \
  "$(grep ' 0 ' ranks | paste -sd,)"
expect "and says so" 2 "$(grep -c "going on" log)"
expect "nobody is left of it" 0 "$(left)"

for code in 2 1; do
  new && rank "exit $code"
  "$launch" -n 2 -r 5 bash rank.sh --checkpoint run 2>log
  expect "a supervised job that cannot go on" "$code 2" "$? $(wc -l <ranks)"
done

new && rank 'exit 3'
"$launch" -n 4 -r 1 bash rank.sh --checkpoint run 2>log
expect "no place is lost where no rank failed on its own account" "3 8" "$? $(grep -c '^4 ' ranks)"

new && rank '[ $RANK = 1 ] && exit 1; exit 3'
"$launch" -n 2 -r 2 bash rank.sh --checkpoint run 2>log
expect "restarts are bounded" "3 2" "$? $(grep -c "going on" log)"

new && rank "trap 'exit 130' TERM; $ready; sleep 1000 & wait"
"$launch" -n 2 -r 5 bash rank.sh --checkpoint run &
job=$!
started 2 && kill -TERM $job
wait $job
expect "a supervised job that is asked to end" "130 2" "$? $(wc -l <ranks)"

[ $failures -eq 0 ] && echo "the launcher: all checks passed"
exit $((failures > 0))

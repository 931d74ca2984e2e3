#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Ranks under mpirun, one of which throws, loses a store, hangs, is stopped or is killed: the message and the exit code arrive, and the
# right rank is named. WEFT_CHAOS_ROUNDS is the number of rounds, WEFT_CHAOS_FAULTS selects faults.
#
#   tests/chaos/ranks_mpi.sh weft_test_comm_mpi_ranks weft_test_chaos_mpi_program
set -uo pipefail

unit=$1 program=$2
at=$(mktemp -d)
trap 'rm -rf "$at"' EXIT
failures=0 crashes=0 rounds=${WEFT_CHAOS_ROUNDS:-1} faults=${WEFT_CHAOS_FAULTS:-throws loses hangs stopped killed}
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
fail() {
  echo "$1"
  cat "$at/out"
  failures=$((failures + 1))
}

# Whether mpirun itself (Open MPI 4.1) crashed after it aborted a job; its exit code is then meaningless.
crashed() { grep -qa "PMIx_server_finalize" "$at/out" && crashes=$((crashes + 1)); }

for test in "ranks that disagree are named" "a rank that is late*" "a message that is too short*" "a message that is too long*" \
  "a message of another type*" "a part of an all_to_all*" "a rank that gives up*"; do
  until timeout 120 mpirun -n 3 "$unit" "$test" >"$at/out" 2>&1; do
    crashed || { fail "$test"; break; }
  done
done

# run WHAT VICTIM: runs a job of 3 ranks; sets its exit code and output.
run() {
  rm -f "$at"/pid.*
  timeout 120 mpirun -n 3 "$program" "$1" "$2" "$at" >"$at/out" 2>&1 &
  local job=$!
  case $1 in
    stopped | killed)
      until [ -s "$at/pid.$2" ] || ! kill -0 $job; do sleep 0.05; done
      sleep 0.$((RANDOM % 5))
      if [ "$1" = stopped ]; then kill -STOP "$(cat "$at/pid.$2")"; else kill -KILL "$(cat "$at/pid.$2")"; fi
      ;;
  esac
  wait $job
  code=$?
  if [ $code -eq 139 ] && crashed; then run "$@"; fi
}

# Whether the output and the exit code are as required.
named() {
  local blamed
  blamed=$(grep -a "not there" "$at/out")
  case $1 in
    throws) [ $code -eq 2 ] && grep -qa "program: the disk is full" "$at/out" && [ "$(grep -ca "program: weft: rank $2 gave up: the disk is full" "$at/out")" -eq 2 ] ;;
    loses) [ $code -eq 3 ] && [ "$(grep -ca "program: weft: rank $2 gave up: the store is lost" "$at/out")" -eq 2 ] ;;
    hangs | stopped) [ $code -eq 3 ] && [ -n "$blamed" ] && ! grep -qva "not there: rank $2, which does not answer" <<<"$blamed" ;;
    killed) [ $code -eq 137 ] && tr '\n' ' ' <"$at/out" | grep -qa "process rank $2 with PID [0-9]* on [^.]* signal 9" ;;
  esac
}

run 'done' 0
[ $code -eq 0 ] || fail "a job that is done: code $code"
for what in $faults; do
  before=$failures
  for ((round = 0; round < rounds; ++round)); do
    run "$what" $((round % 3))
    named "$what" $((round % 3)) || fail "rank $((round % 3)): $what: code $code"
  done
  echo "$what: $rounds rounds, $((failures - before)) wrong"
done
[ $crashes -eq 0 ] || echo "mpirun itself has crashed $crashes times; what it ran then was run again"
[ $failures -eq 0 ] && echo "ranks under mpirun: all checks passed"
exit $((failures > 0))

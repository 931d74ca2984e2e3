#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Ranks under mpirun of which one throws, hangs, is stopped or is killed: the message and the exit code arrive, and the
# right rank is named. WEFT_CHAOS_ROUNDS says how often.
#
#   tests/chaos/ranks_mpi.sh weft_test_comm_mpi_ranks weft_test_chaos_mpi_program
set -uo pipefail

unit=$1 program=$2
at=$(mktemp -d)
trap 'rm -rf "$at"' EXIT
failures=0 rounds=${WEFT_CHAOS_ROUNDS:-3}
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
fail() {
  echo "$1"
  cat "$at/out"
  failures=$((failures + 1))
}

for test in "ranks that disagree are named" "a rank that is late*" "a message that is too short*" "a message that is too long*" \
  "a message of another type*" "a rank that gives up*"; do
  timeout 120 mpirun -n 3 "$unit" "$test" >"$at/out" 2>&1 || fail "$test"
done

# run WHAT VICTIM: the code and the output of a job of 3
run() {
  rm -f "$at"/pid.*
  timeout 120 mpirun -n 3 "$program" "$1" "$2" "$at" >"$at/out" 2>&1 &
  local job=$!
  case $1 in
    stopped | killed)
      until [ -s "$at/pid.$2" ]; do sleep 0.05; done
      sleep 0.$((RANDOM % 5))
      if [ "$1" = stopped ]; then kill -STOP "$(cat "$at/pid.$2")"; else kill -KILL "$(cat "$at/pid.$2")"; fi
      ;;
  esac
  wait $job
  code=$?
}

run done 0
[ $code -eq 0 ] || fail "a job that is done: code $code"
for ((round = 0; round < rounds; ++round)); do
  victim=$((round % 3))
  run throws $victim
  [ $code -eq 2 ] && grep -q "program: the disk is full" "$at/out" && [ "$(grep -c "program: weft: rank $victim gave up: the disk is full" "$at/out")" -eq 2 ] ||
    fail "rank $victim throws: code $code"
  for what in hangs stopped; do
    run $what $victim
    [ $code -eq 3 ] && [ "$(grep -c "not there: rank $victim, which does not answer" "$at/out")" -ge 1 ] && ! grep "not there" "$at/out" | grep -qv "not there: rank $victim, which" ||
      fail "rank $victim $what: code $code"
  done
  run killed $victim
  [ $code -eq 137 ] && grep -q "process rank $victim with PID .* signal 9" "$at/out" || fail "rank $victim is killed: code $code"
done
[ $failures -eq 0 ] && echo "ranks under mpirun: all checks passed"
exit $((failures > 0))

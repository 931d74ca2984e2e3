#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Many ranks: bitwise identical under every strategy, on threads, over TCP and under mpirun; another number of ranks resumes a checkpoint.
. "$(dirname "$0")/common.sh"

many=("${small[@]}" --steps 20 --deterministic)
logs=()
# traced NAME RANKS: checks that the trace has the steps of all ranks.
traced() {
  python3 - "$at/$1.json" "$2" <<'CHECK'
import collections, json, sys
steps = collections.Counter(e["pid"] for e in json.load(open(sys.argv[1]))["traceEvents"] if e["name"] == "step")
assert set(steps) == set(range(int(sys.argv[2]))) and min(steps.values()) >= 20, steps  # rank 0 counts memory beforehand
CHECK
}
train one "${many[@]}" --accumulate 4
for strategy in ddp zero1 zero2 zero3; do
  train $strategy "${many[@]}" --ranks 2 --accumulate 2 --strategy $strategy --profile "$at/$strategy.json"
  traced $strategy 2
  logs+=($strategy)
done
train hybrid "${many[@]}" --ranks 4 --strategy hybrid:2 --recompute block --offload all
train before "${many[@]}" --steps 10 --ranks 4 --strategy zero3 --checkpoint "$at/regrouped"
train after "${many[@]}" --ranks 2 --accumulate 2 --strategy zero1 --checkpoint "$at/regrouped" --resume
logs+=(hybrid before after)
for comm in ${WEFT_TEST_COMM:-}; do
  case $comm in
    gloo)
      run gloo "$launch" -n 4 "$job" "${many[@]}" --comm gloo --strategy zero3 --log "$at/gloo.jsonl" --profile "$at/gloo.json"
      traced gloo 4 ;;
    mpi) run mpi mpirun --oversubscribe -n 2 "$job" "${many[@]}" --comm mpi --accumulate 2 --strategy zero2 --log "$at/mpi.jsonl" ;;
  esac
  logs+=("$comm")
done
same_bits one "${logs[@]}"

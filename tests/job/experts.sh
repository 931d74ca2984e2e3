#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Expert parallelism: the losses of one rank, on threads, over TCP and under mpirun; another number of ranks resumes a checkpoint, and
# weights go through one file.
. "$(dirname "$0")/common.sh"

few=("${small[@]}" --steps 20 --experts 4:2 --seed 3)  # no token is close to a tie between two experts
whole=("${few[@]}" --accumulate 4)
train one "${whole[@]}" --eval-every 6 --sample 20
train first "${whole[@]}" --steps 1 --lr 1e-300 --mesh ep=2 --accumulate 2 --save "$at/first.safetensors"  # the initial parameters
logs=()
divided() {  # NAME FLAGS...: the same steps on other ranks
  train "$1" "${few[@]}" "${@:2}"
  logs+=("$1")
}
divided ep2 --mesh ep=2 --accumulate 2 --eval-every 6 --sample 20
divided ep4 --mesh ep=4 --accumulate 1
divided dp2_ep2 --mesh dp=2,ep=2 --accumulate 1 --offload optimizer
divided fsdp2_ep2 --mesh fsdp=2,ep=2 --accumulate 1
divided zero2_ep2 --mesh fsdp=2,ep=2 --strategy zero2 --accumulate 1
divided zero1 --ranks 2 --strategy zero1 --accumulate 2
divided copies --ranks 2 --accumulate 2
divided tp2_ep2 --mesh tp=2,ep=2 --accumulate 2 --eval-every 6 --sample 20
divided cp2_ep2 --mesh cp=2,ep=2 --accumulate 2 --eval-every 6
divided pp2_ep2 --mesh pp=2,ep=2 --accumulate 2 --eval-every 6 --sample 20
divided every_axis --mesh pp=2,fsdp=2,cp=2,ep=2,tp=2 --accumulate 1
divided started --mesh ep=2 --accumulate 2 --seed 2 --init "$at/first.safetensors"

train before "${few[@]}" --steps 6 --mesh dp=2,ep=2 --accumulate 1 --checkpoint "$at/kept"
cp -r "$at/kept" "$at/again"
cp -r "$at/kept" "$at/sharded"
divided resumed_alone --accumulate 4 --checkpoint "$at/kept" --resume
divided resumed_sharded --mesh fsdp=2,ep=2 --accumulate 1 --checkpoint "$at/sharded" --resume
divided resumed --mesh ep=4 --accumulate 1 --checkpoint "$at/again" --resume
for comm in ${WEFT_TEST_COMM:-}; do
  case $comm in
    gloo) start=("$launch" -n 2) ;;
    mpi) start=(mpirun --oversubscribe -n 2) ;;
  esac
  run "$comm" "${start[@]}" "$job" "${few[@]}" --comm "$comm" --mesh ep=2 --accumulate 2 --log "$at/$comm.jsonl"
  logs+=("$comm")
done
same_bits --within 1e-5 one before "${logs[@]}"

figure() { grep -o "\"$2\": [0-9.e+-]*" "$at/$1.jsonl" | tail -n 1 | cut -d ' ' -f 2; }
[ "$(figure ep4 param_bytes)" -lt "$(figure ep2 param_bytes)" ] || { echo "every rank has all experts"; exit 1; }
awk -v a="$(figure one eval_loss)" -v b="$(figure ep2 eval_loss)" 'BEGIN { exit !(a - b < 1e-4 && b - a < 1e-4) }' ||
  { echo "another loss of evaluation"; exit 1; }
[ "$(tail -n 1 "$at/one.out")" = "$(tail -n 1 "$at/ep2.out")" ] || { echo "another sample"; exit 1; }

[ "${WEFT_TEST_LARGE:-0}" = 1 ] || exit 0
few=("${small[@]}" --steps 200 --lr 5e-4 --experts 4:2 --seed 3)
train long "${few[@]}" --accumulate 4
logs=()
divided long_ep2 --mesh ep=2 --accumulate 2
divided long_ep4 --mesh ep=4 --accumulate 1
divided long_shards --mesh fsdp=2,ep=2 --accumulate 1
divided long_positions --mesh cp=2,ep=2 --accumulate 2
same_bits --within 1e-3 long "${logs[@]}"

#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Tensor and sequence parallelism: the losses of one rank, combined with every other axis, on threads and over TCP; at most the predicted
# memory; another number of ranks resumes a checkpoint of sharded layers, and weights go through one file.
. "$(dirname "$0")/common.sh"

few=("${small[@]}" --heads 4 --context 17 --steps 20)
whole=("${few[@]}" --accumulate 2)
train one "${whole[@]}" --eval-every 10
train first "${whole[@]}" --steps 1 --lr 1e-300 --mesh tp=2 --save "$at/first.safetensors"  # the initial parameters
logs=()
divided() {  # NAME FLAGS...: the same steps on a mesh
  train "$1" "${few[@]}" "${@:2}"
  logs+=("$1")
}
divided tp2 --mesh tp=2 --accumulate 2
divided positions --mesh tp=2 --sequence-parallel --accumulate 2 --eval-every 10 --sample 5
divided stages --mesh pp=2,tp=2 --sequence-parallel --microbatches 2
divided shards --mesh fsdp=2,tp=2 --sequence-parallel --accumulate 1
divided started --mesh dp=2,tp=2 --accumulate 1 --seed 2 --init "$at/first.safetensors"

train before "${whole[@]}" --steps 10 --mesh tp=2 --sequence-parallel --checkpoint "$at/kept"
cp -r "$at/kept" "$at/again"
divided resumed_alone --accumulate 2 --checkpoint "$at/kept" --resume
divided resumed --mesh pp=2,tp=2 --microbatches 2 --checkpoint "$at/again" --resume
for comm in ${WEFT_TEST_COMM:-}; do
  case $comm in
    gloo) start=("$launch" -n 2) ;;
    mpi) start=(mpirun --oversubscribe -n 2) ;;
  esac
  run "$comm" "${start[@]}" "$job" "${whole[@]}" --comm "$comm" --mesh tp=2 --sequence-parallel --log "$at/$comm.jsonl"
  logs+=("$comm")
done
same_bits --within 1e-5 one before "${logs[@]}"

figure() { grep -o "\"$2\": [0-9.e+-]*" "$at/$1.jsonl" | tail -n 1 | cut -d ' ' -f 2; }
for name in tp2 positions stages; do
  [ "$(figure $name peak_bytes)" -le "$(figure $name predicted_peak_bytes)" ] || { echo "$name: more memory than predicted"; exit 1; }
done
[ "$(figure positions predicted_peak_bytes)" -lt "$(figure tp2 predicted_peak_bytes)" ] || { echo "positions save no memory"; exit 1; }
awk -v a="$(figure one eval_loss)" -v b="$(figure positions eval_loss)" 'BEGIN { exit !(a - b < 1e-4 && b - a < 1e-4) }' ||
  { echo "another loss of evaluation"; exit 1; }

[ "${WEFT_TEST_LARGE:-0}" = 1 ] || exit 0
few=("${small[@]}" --heads 4 --context 17 --steps 150 --lr 5e-4)  # later, a norm of a row of almost equal elements amplifies rounding
train long "${few[@]}" --accumulate 2
logs=()
divided long_tp2 --mesh tp=2 --accumulate 2
divided long_tp4 --mesh tp=4 --sequence-parallel --accumulate 2
divided long_stages --mesh pp=2,tp=2 --sequence-parallel --microbatches 2
divided long_shards --mesh fsdp=2,tp=2 --accumulate 1
same_bits --within 1e-3 long "${logs[@]}"

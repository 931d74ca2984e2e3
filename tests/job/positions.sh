#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Context parallelism with ring attention and with Ulysses: the losses of one rank, combined with every other axis, on threads, over TCP
# and under mpirun; the predicted memory; another number of ranks resumes a checkpoint.
. "$(dirname "$0")/common.sh"

few=("${small[@]}" --heads 4 --context 17 --steps 20)
whole=("${few[@]}" --accumulate 2)
train one "${whole[@]}" --eval-every 6 --sample 20
logs=()
divided() {  # NAME FLAGS...: the same steps on a mesh
  train "$1" "${few[@]}" "${@:2}"
  logs+=("$1")
}
divided ring --mesh cp=2 --accumulate 2 --eval-every 6 --sample 20 --recompute block:1
divided ulysses --mesh cp=2 --context-parallel ulysses --accumulate 2 --eval-every 6
divided three --mesh cp=3 --accumulate 2
divided copies --mesh dp=2,cp=2 --accumulate 1
divided shards --mesh fsdp=2,cp=2 --context-parallel ulysses --accumulate 1
divided layers --mesh cp=2,tp=2 --accumulate 2
divided stages --mesh pp=2,cp=2 --microbatches 2 --eval-every 6 --timeline "$at/stages.svg"

train before "${whole[@]}" --steps 6 --mesh cp=2 --checkpoint "$at/kept"
cp -r "$at/kept" "$at/again"
divided resumed_alone --accumulate 2 --checkpoint "$at/kept" --resume
divided resumed --mesh dp=2,cp=2 --context-parallel ulysses --accumulate 1 --checkpoint "$at/again" --resume
for comm in ${WEFT_TEST_COMM:-}; do
  case $comm in
    gloo) start=("$launch" -n 2) ;;
    mpi) start=(mpirun --oversubscribe -n 2) ;;
  esac
  for kind in ring ulysses; do
    run "${comm}_$kind" "${start[@]}" "$job" "${whole[@]}" --comm "$comm" --mesh cp=2 --context-parallel $kind --log "$at/${comm}_$kind.jsonl"
    logs+=("${comm}_$kind")
  done
done
same_bits --within 1e-5 one before "${logs[@]}"

figure() { grep -o "\"$2\": [0-9.e+-]*" "$at/$1.jsonl" | tail -n 1 | cut -d ' ' -f 2; }
for name in ring ulysses three copies shards layers; do
  [ "$(figure $name peak_bytes)" -eq "$(figure $name predicted_peak_bytes)" ] || { echo "$name: not the memory that was predicted"; exit 1; }
done
[ "$(figure ulysses activation_bytes)" -lt "$(figure one activation_bytes)" ] || { echo "divided positions save no memory"; exit 1; }
for name in ring ulysses stages; do
  awk -v a="$(figure one eval_loss)" -v b="$(figure $name eval_loss)" 'BEGIN { exit !(a - b < 1e-4 && b - a < 1e-4) }' ||
    { echo "$name: another loss of evaluation"; exit 1; }
done
[ "$(tail -n 1 "$at/one.out")" = "$(tail -n 1 "$at/ring.out")" ] || { echo "another sample"; exit 1; }

[ "${WEFT_TEST_LARGE:-0}" = 1 ] || exit 0
few=("${small[@]}" --heads 4 --context 17 --steps 150 --lr 5e-4)  # later, a norm of a row of almost equal elements amplifies rounding
train long "${few[@]}" --accumulate 2
logs=()
divided long_ring --mesh cp=3 --accumulate 2
divided long_ulysses --mesh cp=2 --context-parallel ulysses --accumulate 2
divided long_layers --mesh cp=2,tp=2 --accumulate 2
divided long_stages --mesh pp=2,cp=2 --microbatches 2
same_bits --within 1e-3 long "${logs[@]}"

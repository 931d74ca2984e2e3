#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# A pipeline stage is killed: the job continues from its checkpoint, with as many ranks as form whole copies of the model, and reaches
# the losses of an undisturbed run. In the long form, so does a job with tensor, context or expert parallelism.
. "$(dirname "$0")/common.sh"

long=(--data "$text" --layers 2 --heads 2 --width 64 --context 32 --batch 4 --threads 1 --steps 60 --lr 1e-3)
code=0
"$launch" -n 3 "$job" "${long[@]}" --comm gloo --mesh pp=2,dp=auto >"$at/odd.out" 2>&1 || code=$?
[ $code -eq 2 ] && grep -q "pp 2 with dp auto needs a multiple of 2 ranks, but there are 3" "$at/odd.out" ||
  { echo "three ranks: exit code $code"; tail -n 5 "$at/odd.out"; exit 1; }

# killed AXIS [FLAGS...]: runs four ranks, two of which together hold the model, and kills one. The log covers all parts of the run.
killed() {
  local axis=$1 log="$at/$1.jsonl" out="$at/$1.out"
  "$launch" -n 4 -r 1 -m 8 -p 2 "$job" "${long[@]}" "${@:2}" --mesh "$axis=2,dp=auto" --checkpoint "$at/$axis" --checkpoint-every 10 \
    --log "$log" >"$out" 2>&1 &
  supervisor=$!
  trap 'kill $supervisor 2>/dev/null || true' EXIT
  until [ -e "$log" ] && [ "$(grep -c loss_hex "$log")" -ge 15 ]; do
    kill -0 $supervisor || { echo "the run ended before a rank was killed"; tail -n 20 "$out"; exit 1; }
    sleep 0.05
  done
  kill -9 "$(pgrep -n -P $supervisor -x "$(basename "$job")")"  # the youngest rank; in a pipeline, a last stage
  wait $supervisor || { echo "exit code $?"; tail -n 20 "$out"; exit 1; }
  grep "the job of 4 ranks ended with code .* going on from the last checkpoint with 2$" "$out"
  local meshes  # of each part of the run, in its first line
  meshes=$(grep -o '"mesh": [^}]*}' "$log")
  [ "$(grep -c "\"$axis\": 2" <<<"$meshes")" -eq 2 ] && [ "$(grep -c '"dp": 2' <<<"$meshes")" -eq 1 ] ||
    { echo "not a run of four ranks, then of two: $meshes"; exit 1; }
}

train undisturbed "${long[@]}" --accumulate 8 --deterministic
killed pp --deterministic
same_bits undisturbed pp

[ "${WEFT_TEST_LARGE:-0}" = 1 ] || exit 0
killed tp --sequence-parallel
killed cp
same_bits --within 1e-4 undisturbed tp cp
train undisturbed_experts "${long[@]}" --experts 4:2 --accumulate 16  # ranks along ep have separate micro-batches
killed ep --experts 4:2
same_bits --within 1e-4 undisturbed_experts ep

#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# A stage of a pipeline is killed: the job goes on from its checkpoint with the ranks that make whole copies of the model, to the
# losses of a run that was left alone.
. "$(dirname "$0")/common.sh"

long=(--data README.md --layers 2 --heads 2 --width 64 --context 32 --batch 4 --threads 1 --steps 60 --lr 1e-3 --deterministic)
mesh=(--mesh "pp=2,dp=auto")
code=0
"$launch" -n 3 "$job" "${long[@]}" --comm gloo "${mesh[@]}" >"$at/odd.out" 2>&1 || code=$?
[ $code -eq 2 ] && grep -q "pp 2 with dp auto needs a multiple of 2 ranks, there are 3" "$at/odd.out" ||
  { echo "three ranks: exit code $code"; tail -n 5 "$at/odd.out"; exit 1; }

train undisturbed "${long[@]}" --accumulate 8
"$launch" -n 4 -r 1 -m 8 -p 2 "$job" "${long[@]}" "${mesh[@]}" --checkpoint "$at/supervised" --checkpoint-every 10 \
  --log "$at/supervised.jsonl" >"$at/supervised.out" 2>&1 &
supervisor=$!
trap 'kill $supervisor 2>/dev/null || true' EXIT
until [ -e "$at/supervised.jsonl" ] && [ "$(grep -c loss_hex "$at/supervised.jsonl")" -ge 15 ]; do
  kill -0 $supervisor || { echo "the run ended before a rank was killed"; tail -n 20 "$at/supervised.out"; exit 1; }
  sleep 0.05
done
kill -9 "$(pgrep -n -P $supervisor -x "$(basename "$job")")"  # the youngest rank: a last stage
wait $supervisor || { echo "exit code $?"; tail -n 20 "$at/supervised.out"; exit 1; }
grep "the job of 4 ranks ended with code .* going on from the last checkpoint with 2$" "$at/supervised.out"
for ranks in 4 2; do  # of each part of the run, in its first line
  grep -q "\"mesh\": {\"pp\": 2$([ $ranks -eq 2 ] || echo ', "dp": 2')}" "$at/supervised.jsonl" ||
    { echo "no run of $ranks ranks"; grep -o '"mesh": [^}]*}' "$at/supervised.jsonl"; exit 1; }
done
same_bits undisturbed supervised

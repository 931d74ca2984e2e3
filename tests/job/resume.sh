#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The main job learns, resumes bitwise identically, keeps two checkpoints, and does not continue from a damaged one; with a hook whose
# memory is not saved, it says so.
. "$(dirname "$0")/common.sh"

train whole "${small[@]}" --steps 40
train parts "${small[@]}" --steps 20 --checkpoint "$at/checkpoint"
train parts "${small[@]}" --steps 40 --checkpoint "$at/checkpoint" --resume
same_bits parts whole  # the parts contain every step of the whole run
for figure in '2 "config"' '40 "loss_hex"'; do  # the second run starts where the first ended
  [ "$(grep -c "${figure#* }" "$at/parts.jsonl")" -eq "${figure%% *}" ] || { echo "not $figure in $at/parts.jsonl"; exit 1; }
done
kept=("$at"/checkpoint/step-*)
[ ${#kept[@]} -eq 2 ] || { echo "--keep is not 2: ${kept[*]}"; exit 1; }

cp -r "$at/checkpoint" "$at/damaged"
: >"$at/damaged/latest"
cp "$at/whole.jsonl" "$at/untouched.jsonl"
code=0
"$job" "${small[@]}" --steps 44 --checkpoint "$at/damaged" --resume --log "$at/untouched.jsonl" >"$at/damaged.out" 2>&1 || code=$?
if [ $code -eq 0 ] || ! grep -q "damaged/latest: is damaged" "$at/damaged.out" || ! cmp "$at/whole.jsonl" "$at/untouched.jsonl"; then
  echo "a damaged checkpoint: exit code $code"
  cat "$at/damaged.out"
  exit 1
fi

for steps in 4 8; do
  train hooked "${small[@]}" --steps $steps --ranks 2 --hook topk:0.1 --checkpoint "$at/hooked" --resume
  grep -q 'warning: with --hook topk:0.1, a run resumed from a checkpoint is not bitwise identical' "$at/hooked.out" || {
    echo "no word of a hook that remembers:"; cat "$at/hooked.out"; exit 1; }
done
train plain "${small[@]}" --steps 1 --ranks 2 --hook bf16 --checkpoint "$at/plain"
if grep 'resumed from a checkpoint' "$at/plain.out"; then exit 1; fi

#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Bad use is answered with one line and exit code 2.
. "$(dirname "$0")/common.sh"

run saved "$job" "${small[@]}" --steps 1 --save "$at/small.safetensors"
while read -r bad; do
  code=0
  # shellcheck disable=SC2086
  timeout 120 "$job" $bad >"$at/out" 2>&1 </dev/null || code=$?
  if [ $code -ne 2 ] || [ "$(wc -l <"$at/out")" -ne 1 ]; then
    echo "train_gpt $bad: exit code $code"
    cat "$at/out"
    exit 1
  fi
done <<BAD

--nonsense
--data /nonexistent
--data /dev/null
--data README.md --heads 3 --width 32
--data README.md --steps x
--data README.md --steps 0
--data README.md --steps 2 --warmup 3 --lr-schedule cosine
--data README.md --context 99999999
--data README.md --ranks 2 --strategy single
--data README.md --ranks 3 --strategy hybrid:2
--data README.md --strategy zero4
--data README.md --comm gloo --ranks 0
--data README.md --hook powersgd
--data README.md --precision f16 --hook bf16
--data README.md --precision fp8
--data README.md --device gpu
--data README.md --device opencl:99
--data README.md --device cpu:x
--data README.md --memory-limit 1K
--data README.md --memory-limit 0
--data README.md --recompute block:9
--data README.md --offload params
--data README.md --strategy zero2 --hook bf16
--data README.md --mesh pp=2,pp=2
--data README.md --mesh tp=3
--data README.md --mesh tp=auto
--data README.md --mesh pp=auto --ranks 2
--data README.md --mesh dp=auto
--data README.md --sequence-parallel
--data README.md --experts 4:5
--data README.md --experts 0:1
--data README.md --experts 4:0
--data README.md --experts 4
--data README.md --experts four:2
--data README.md --experts 4:2x
--data README.md --experts -4:2
--data README.md --mesh ep=2
--data README.md --mesh tp=2 --experts 4:2 --sequence-parallel
--data README.md --mesh dp=2,ep=2 --strategy zero2 --experts 4:2
--data README.md --experts 4:2 --recompute block
--data README.md --experts 4:2 --memory-limit 1G
--data README.md --experts 4:2 --precision bf16
--data README.md --experts 4:2 --mesh dp=2 --hook local:2
--data README.md --context-parallel ring
--data README.md --mesh tp=2 --context-parallel ulysses
--data README.md --mesh cp=2 --context-parallel rings
--data README.md --mesh cp=auto
--data README.md --mesh cp=4 --context 3
--data README.md --mesh cp=2,tp=2 --sequence-parallel
--data README.md --mesh cp=2 --hook local:2
--data README.md --mesh cp=2 --precision f16
--data README.md --mesh tp=2 --precision f16
--data README.md --mesh dp=2 --strategy zero2
--data README.md --mesh pp=2 --ranks 3
--data README.md --mesh pp=2 --schedule 2f2b
--data README.md --mesh pp=2 --schedule interleaved:2 --microbatches 3
--data README.md --mesh pp=2 --schedule /nonexistent.csv
--data README.md --mesh pp=2 --stages 1,1
--data README.md --mesh pp=2 --stages 1,x
--data README.md --mesh pp=8
--data README.md --schedule 1f1b
--data README.md --schedule cosine
--data README.md --timeline x.svg
--data README.md --init README.md
--data README.md --eval-data README.md
--data README.md --eval-every 1 --eval-data /nonexistent
--data README.md --init $at/small.safetensors --width 64
BAD

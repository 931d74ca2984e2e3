#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The main job computes the same on an OpenCL device as on the CPU.
. "$(dirname "$0")/common.sh"

if ! compgen -G "/etc/OpenCL/vendors/*.icd" >/dev/null; then
  echo "no OpenCL driver in /etc/OpenCL/vendors"
  [ "${WEFT_TEST_DEVICE:-}" = opencl ] && exit 1
  exit 77
fi
train cpu "${small[@]}" --steps 20
train opencl "${small[@]}" --steps 20 --device opencl
same_bits --within 1e-5 cpu opencl
train numbered "${small[@]}" --steps 20 --device opencl:0
same_bits opencl numbered
"$job" --list-devices >"$at/devices"
grep -q '^opencl:0 .* MiB, OpenCL' "$at/devices" && grep -q '^cpu:0 ' "$at/devices" || { cat "$at/devices"; exit 1; }

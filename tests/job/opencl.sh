#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The main job on an OpenCL device computes what it computes on the CPU.
. "$(dirname "$0")/common.sh"

if ! compgen -G "/etc/OpenCL/vendors/*.icd" >/dev/null; then
  echo "no OpenCL driver in /etc/OpenCL/vendors"
  [ "${WEFT_TEST_DEVICE:-}" = opencl ] && exit 1
  exit 77
fi
train cpu "${small[@]}" --steps 20
train opencl "${small[@]}" --steps 20 --device opencl
same_bits --within 1e-5 cpu opencl

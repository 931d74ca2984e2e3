#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The package of tests/gpu.sh starts on a machine that has only a C library and bash, and reports that there is no GPU. The whole
# script also runs on the fake driver, which computes on the CPU. Needs root and debootstrap.
#
#   pack.sh FAKES FOLDER              FAKES: the folder of the fake driver, compiler and cuBLASLt
set -euo pipefail
fakes=$1 at=$2 root=$2/root code=0
[ "$(id -u)" = 0 ] && command -v debootstrap >/dev/null || { echo "needs root and debootstrap"; exit 77; }
mkdir -p "$at"
[ -x "$root/usr/bin/bash" ] || debootstrap --variant=minbase bookworm "$root" >"$at/debootstrap.log"
rm -rf "$root/pack"
tests/gpu.sh --pack "$root/pack"
chroot "$root" env -i PATH=/usr/bin:/bin /pack/gpu.sh --rehearse
chroot "$root" env -i PATH=/usr/bin:/bin /pack/gpu.sh || code=$?
[ $code -eq 3 ] || { echo "without a GPU: exit code $code, not 3"; exit 1; }
printf '#!/bin/sh\necho a CPU that plays a GPU\n' >"$at/nvidia-smi" && chmod +x "$at/nvidia-smi"
PATH=$at:$PATH LD_LIBRARY_PATH=$fakes "$root/pack/gpu.sh" --quick --json "$at/figures.json"
python3 -m json.tool "$at/figures.json" >"$at/figures.txt"

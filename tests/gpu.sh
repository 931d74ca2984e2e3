#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Tests and measures weft on an NVIDIA GPU, within nine minutes. Needs a driver, CUDA 13 and cmake; no network.
#
#   tests/gpu.sh              builds here, then runs
#   tests/gpu.sh --pack DIR   builds and puts the programs and the libraries they need into DIR; needs no GPU
#   tests/gpu.sh --bin DIR    runs the programs of such a DIR
#
# Exit code 3: there is no GPU.
set -euo pipefail
cd "$(dirname "$0")/.."
mode=${1:-run}
programs=(tests/weft_test_law_device_test examples/train_gpt benchmarks/weft_benchmark_device)

build() {
  cmake -S . -B build/gpu -DCMAKE_BUILD_TYPE=Release -DWEFT_NATIVE=OFF -DWEFT_BUILD_BENCHMARKS=ON \
    -DWEFT_WITH_CUDA=ON >/dev/null
  cmake --build build/gpu -j "$(nproc)" --target weft_test_law_device_test weft_example_train_gpt weft_benchmark_device \
    -- --no-print-directory >build/gpu/build.log 2>&1 || { tail -n 40 build/gpu/build.log; exit 1; }
}
pack() {
  mkdir -p "$1"
  for program in "${programs[@]}"; do
    cp "build/gpu/$program" "$1"
    ldd "build/gpu/$program" | awk '/libtbb|libstdc|libgcc/ {print $3}' | xargs -I{} cp -L {} "$1"
  done
}

if [ "$mode" = --pack ]; then
  build
  pack "${2:?a folder}"
  exit 0
fi
if ! nvidia-smi -L >/dev/null 2>&1; then
  echo "no NVIDIA GPU on this machine"
  exit 3
fi
if [ "$mode" = --bin ]; then
  at=$(cd "${2:?a folder}" && pwd)
else
  build
  at=$PWD/build/gpu/packed
  pack "$at"
fi
export LD_LIBRARY_PATH=$at:/usr/local/cuda/lib64:${LD_LIBRARY_PATH:-}
out=$(mktemp -d)
failed=0

echo "== every kind of program on the GPU against the reference"
WEFT_TEST_DEVICE=cuda timeout 180 "$at/weft_test_law_device_test" || failed=1

echo "== train_gpt"
# train NAME FLAGS...: tokens per second of the last step, and the losses of CPU and GPU side by side.
train() {
  local name=$1
  shift
  timeout 120 "$at/train_gpt" --data README.md docs include --device cuda --log "$out/$name.jsonl" "$@" >"$out/$name.txt" 2>&1 ||
    { tail -n 5 "$out/$name.txt"; failed=1; return 0; }
  rows+=("| train_gpt $name | $(tail -n 1 "$out/$name.jsonl" | sed 's/.*"tokens_per_s": \([0-9.]*\).*/\1/') tokens/s |")
}
rows=()
train "L4 C128" --steps 100
timeout 120 "$at/train_gpt" --data README.md docs include --device cpu --steps 100 --log "$out/cpu.jsonl" >/dev/null 2>&1 || failed=1
python3 - "$out/L4 C128.jsonl" "$out/cpu.jsonl" <<'P' || failed=1
import json, sys
runs = [[json.loads(line).get("loss") for line in open(path)][1:] for path in sys.argv[1:]]
worst = max(abs(a - b) / b for a, b in zip(*runs))
print(f"largest relative difference of losses between GPU and CPU over {len(runs[0])} steps: {worst:.2e}")
sys.exit(worst > 1e-2 or len(runs[0]) != 100)
P
train "L6 C384 T256 B8" --layers 6 --heads 6 --width 384 --context 256 --batch 8 --steps 30
train "L12 C768 V50304 T256 B4" --layers 12 --heads 12 --width 768 --context 256 --batch 4 --vocab 50304 --steps 15

echo
timeout 120 "$at/weft_benchmark_device" cuda || failed=1
printf '%s\n' "${rows[@]}"
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
exit $failed

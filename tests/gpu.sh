#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Tests and measures weft on an NVIDIA GPU, within nine minutes. Needs a driver, and NVRTC and cuBLASLt of CUDA 12 or 13,
# which it looks for where LD_LIBRARY_PATH says, beside nvcc, where the loader looks and among Python's packages.
#
#   tests/gpu.sh [--json FILE] [--quick]               builds here, then runs; needs cmake and CUDA's headers
#   tests/gpu.sh --pack DIR                            builds, and puts all that a run needs into DIR; needs no GPU
#   DIR/gpu.sh [--json FILE] [--quick]                 runs on a machine that has glibc, bash and a driver; no network
#   DIR/gpu.sh --rehearse                              what can be tried of DIR without a GPU
#
# Prints a short table last; FILE gets the same figures as JSON. --quick: small sizes, for a look at the script itself.
# Exit code 1: something failed; 3: there is no GPU, or no NVRTC or cuBLASLt.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
kernel_tests=(weft_test_gpu_index_add_test weft_test_gpu_copies_and_products_test weft_test_gpu_kernel_text_test)
programs=(tests/weft_test_law_device_test tests/weft_test_gpu_nccl_world examples/train_gpt benchmarks/weft_benchmark_device
          "${kernel_tests[@]/#/tests/}")
mode=run pack='' json='' quick=0
while [ $# -gt 0 ]; do
  case $1 in
    --pack) mode=pack pack=${2:?a folder}; shift ;;
    --rehearse) mode=rehearse ;;
    --json) json=$(realpath -m "${2:?a file}"); shift ;;
    --quick) quick=1 ;;
    *) sed -n '3,15s/^# \{0,1\}//p' "$0"; exit 2 ;;
  esac
  shift
done

# Programs for any machine with AVX2 and no older C library than this one's; nothing else is linked but that.
build() {
  local targets=(weft_example_train_gpt weft_benchmark_device)
  cmake -S . -B build/gpu -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS=-march=x86-64-v3 "-DCMAKE_EXE_LINKER_FLAGS=-static-libstdc++ -static-libgcc" \
    -DWEFT_NATIVE=OFF -DWEFT_BUILD_BENCHMARKS=ON -DWEFT_WITH_CUDA=ON -DWEFT_WITH_TBB=OFF -DWEFT_WITH_MPI=OFF -DWEFT_WITH_GLOO=OFF >/dev/null
  if grep -q 'weft_doctest_headers:PATH=/' build/gpu/CMakeCache.txt; then targets+=(weft_test_law_device_test weft_test_gpu_nccl_world "${kernel_tests[@]}")
  else echo "without doctest: the law tests are not built"; fi
  cmake --build build/gpu -j "${JOBS:-$(nproc)}" --target "${targets[@]}" -- --no-print-directory >build/gpu/build.log 2>&1 ||
    { tail -n 40 build/gpu/build.log; exit 1; }
}
pack_into() {
  local program
  mkdir -p "$1/data"
  for program in "${programs[@]}"; do
    [ ! -x "build/gpu/$program" ] || install -s "build/gpu/$program" "$1"
  done
  cp README.md LICENSE docs/*.md "$1/data"
  cp tests/gpu.sh "$1"
}

if [ -x "$here/train_gpt" ]; then
  at=$here
else
  cd "$here/.."
  build
  at=${pack:-$PWD/build/gpu/packed}
  rm -rf "$at/data"
  pack_into "$at"
  [ $mode != pack ] || { du -sh "$at"; exit 0; }
fi
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
failed=0 figures=() rows=() began=$SECONDS

# stage NAME LIMIT COMMAND...: its output in $out/NAME.txt; whether it ended well within LIMIT seconds. Tests that left out what
# this machine does not have end with code 77 (tests/skip.hpp); WEFT_TEST_DEVICE names what it must have.
stage() {
  local name=$1 limit=$2 start=$SECONDS code=0
  shift 2
  timeout -k 5 "$limit" env LD_LIBRARY_PATH="${libraries:-}" WEFT_KERNEL_CACHE="$out/kernels" "$@" >"$out/$name.txt" 2>&1 || code=$?
  [ $code -ne 124 ] || echo "not within $limit s" >>"$out/$name.txt"
  figures+=("\"$name\": {\"exit_code\": $code, \"seconds\": $((SECONDS - start))}")
  [ $code -ne 77 ] || { code=0; echo "== $name: without"; grep -o 'skipped without .*' "$out/$name.txt" | sort -u || true; }
  [ $code -eq 0 ] || { failed=1; echo "== $name: exit code $code"; tail -n 5 "$out/$name.txt"; }
  return $code
}
# check NAME COMMAND...: a finding, by the command's success.
check() {
  local name=$1 good=true
  shift
  "$@" || { good=false; failed=1; echo "== $name: no"; }
  figures+=("\"$name\": $good")
  rows+=("$name | $([ $good = true ] && echo yes || echo NO)")
}
# train NAME FLAGS...: trains on the packed texts and logs into $out/NAME.jsonl.
train() {
  local name=$1
  shift
  stage "$name" 100 "$at/train_gpt" --data "$at/data" --log "$out/$name.jsonl" "$@"
}
field() { grep -o "\"$2\": [^,}]*" "$out/$1.jsonl" | sed 's/.*: //; s/"//g'; }
# The middle of the steps' rates, without the first two.
rate() { field "$1" tokens_per_s | tail -n +3 | sort -n | awk '{v[NR] = $1} END {print NR ? v[int((NR + 1) / 2)] : 0}'; }
measured() {
  figures+=("\"$1 tokens_per_s\": $(rate "$1")")
  rows+=("train_gpt $1 | $(rate "$1") tokens/s")
}
same_bits() { [ -n "$(field "$1" loss_hex)" ] && [ "$(field "$1" loss_hex)" = "$(field "$2" loss_hex)" ]; }
# Losses of two runs, step by step within a part of each other.
near() {
  paste <(field "$1" loss) <(field "$2" loss) | awk -v most="$3" '
    NF == 2 {d = ($1 - $2) / $2; if (d < 0) d = -d; if (!(d <= most)) wrong = 1; if (d > worst) worst = d; ++n} NF != 2 {wrong = 1}
    END {printf "largest relative difference of %d losses: %.2e\n", n, worst; exit wrong || n == 0}'
}
as_planned() {
  local figure
  for figure in peak_bytes reserved_bytes; do
    [ -n "$(field "$1" predicted_$figure)" ] && [ "$(field "$1" predicted_$figure)" = "$(field "$1" $figure | tail -n 1)" ] || return 1
  done
}
falls() { field "$1" loss | awk 'NR == 1 {first = $1} {last = $1} END {exit !(NR > 1 && last < first)}'; }

finish() {
  [ -z "$json" ] || { printf '{\n  "device": "%s",\n  "seconds": %d,\n  "failed": %d' "$1" $((SECONDS - began)) $failed
                      [ ${#figures[@]} -eq 0 ] || printf ',\n  %s' "${figures[@]}"; printf '\n}\n'; } >"$json"
  printf '\n%s\n\n| what | found |\n|---|---|\n' "$1"
  [ ${#rows[@]} -eq 0 ] || printf '| %s |\n' "${rows[@]}"
  exit $failed
}
small=(--layers 2 --heads 2 --width 32 --context 16 --batch 4 --lr 3e-3 --threads 1)

# Without a GPU: the programs start, say what is missing, and compute on the CPU.
says() { grep -q "$2" "$out/$1.txt" || { cat "$out/$1.txt"; return 1; }; }
if [ $mode = rehearse ]; then
  local_code=0
  if [ -x "$at/weft_test_law_device_test" ] && stage law 120 "$at/weft_test_law_device_test"; then
    check "law tests, CPU and OpenCL where it is" says law SUCCESS
  fi
  train cpu "${small[@]}" --device cpu --steps 20 || true
  check "trains on the CPU" falls cpu
  check "planned bytes are used bytes" as_planned cpu
  "$at/train_gpt" --data "$at/data" "${small[@]}" --device cuda --steps 1 >"$out/cuda.txt" 2>&1 || local_code=$?
  check "train_gpt says that there is no GPU" says cuda 'libcuda.so.1 is not on this machine\|cuInit'
  check "with exit code 2" test $local_code -eq 2
  "$at/weft_benchmark_device" cuda >"$out/benchmark.txt" 2>&1 || true
  check "the benchmark says it" says benchmark 'libcuda.so.1 is not on this machine\|cuInit'
  stage benchmark_cpu 60 "$at/weft_benchmark_device" cpu small || true
  finish "no GPU: $(uname -sm), C library $(getconf GNU_LIBC_VERSION 2>/dev/null || echo unknown)"
fi

if ! nvidia-smi -L >/dev/null 2>&1; then
  echo "no NVIDIA GPU on this machine"
  exit 3
fi
device=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -n 1)
driver_major=$(nvidia-smi | grep -o 'CUDA Version: [0-9]*' | grep -o '[0-9]*$' || echo 13)

# Folders that may hold CUDA's libraries.
folders() {
  tr ':' '\n' <<<"${LD_LIBRARY_PATH:-}"
  local nvcc
  nvcc=$(command -v nvcc || true)
  [ -z "$nvcc" ] || echo "$(dirname "$(dirname "$(realpath "$nvcc")")")/lib64"
  ldconfig -p 2>/dev/null | awk '/libnvrtc.so|libcublasLt.so/ {sub("/[^/]*$", "", $NF); print $NF}'
  compgen -G '/usr/local/cuda*/lib64' || true
  local python
  for python in python3 python; do  # that of the machine: without the libraries found so far
    command -v $python >/dev/null || continue
    env -u LD_LIBRARY_PATH $python -c 'import site; print(*site.getsitepackages(), site.getusersitepackages(), sep="\n")' 2>/dev/null |
      while read -r site; do compgen -G "$site/nvidia/*/lib" || true; done
  done
}
# The newest of a library that the driver can serve, under the name that programs look for first.
mkdir "$out/libraries"
libraries=$out/libraries
for library in libnvrtc libcublasLt; do
  for major in 13 12; do
    [ "$major" -le "$driver_major" ] || continue
    while read -r folder; do
      [ -e "$folder/$library.so.$major" ] || continue
      ln -s "$folder/$library.so.$major" "$out/libraries/$library.so.13"
      libraries+=:$folder
      continue 3
    done < <(folders)
  done
  echo "$library.so.13 or .12 is not on this machine: pip install nvidia-cuda-nvrtc nvidia-cublas, or install CUDA"
  exit 3
done
libraries+=${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}

[ ! -x "$at/weft_test_law_device_test" ] || {
  WEFT_TEST_DEVICE=cuda stage law 180 "$at/weft_test_law_device_test" || true
  check "every kind of program as on the reference" says law SUCCESS
}
for test in "${kernel_tests[@]}"; do
  [ -x "$at/$test" ] || continue
  WEFT_TEST_DEVICE=cuda stage "$test" 60 "$at/$test" || true
  check "${test#weft_test_gpu_}" says "$test" SUCCESS
done
# NCCL is optional.
while read -r folder; do
  [ -e "$out/libraries/libnccl.so.2" ] || [ ! -e "$folder/libnccl.so.2" ] || ln -s "$folder/libnccl.so.2" "$out/libraries/libnccl.so.2"
done < <(folders)
if [ -x "$at/weft_test_gpu_nccl_world" ]; then
  nccl_code=0
  timeout -k 5 100 env LD_LIBRARY_PATH="$libraries" "$at/weft_test_gpu_nccl_world" >"$out/nccl.txt" 2>&1 || nccl_code=$?
  if [ $nccl_code -eq 3 ]; then rows+=("NCCL | $(tail -n 1 "$out/nccl.txt")")
  else check "NCCL, world of one, and one rank for each GPU" says nccl right; fi
fi
gpu=(--device cuda --deterministic)
[ $quick -eq 1 ] && job=("${small[@]}") steps=16 || { job=(); steps=100; }
train one "${job[@]}" "${gpu[@]}" --steps $steps || true
train two "${job[@]}" "${gpu[@]}" --steps $steps || true
train host "${job[@]}" --device cpu --deterministic --steps $steps || true
train half "${job[@]}" "${gpu[@]}" --steps $((steps / 2)) --checkpoint "$out/checkpoint" || true
train resumed "${job[@]}" "${gpu[@]}" --steps $steps --checkpoint "$out/checkpoint" --resume || true
tail -n $((steps / 2)) "$out/one.jsonl" >"$out/second_half.jsonl" || true
check "losses as on the CPU, within 1%" near one host 0.01
check "two runs: the same bits" same_bits one two
check "a resumed run: the same bits" same_bits resumed second_half
check "planned bytes are used bytes" as_planned one
measured one
for precision in bf16 f16; do
  train $precision "${job[@]}" "${gpu[@]}" --steps $((steps / 4)) --precision $precision || true
  train again_$precision "${job[@]}" "${gpu[@]}" --steps $((steps / 4)) --precision $precision || true
  check "$precision: the loss falls" falls $precision
  check "$precision: two runs: the same bits" same_bits $precision again_$precision
  measured $precision
done
# Steps recorded as CUDA graphs: the same bits, with one rank's sums in the order of a step.
train plain "${job[@]}" --device cuda --steps $steps || true
train graph "${job[@]}" --device cuda --steps $steps --graph || true
check "steps as CUDA graphs: the same bits" same_bits graph plain
measured plain
measured graph
train tf32 "${job[@]}" --device cuda --steps $((steps / 4)) --tf32 || true
head -n $((steps / 4)) "$out/plain.jsonl" >"$out/quarter.jsonl" || true
check "TF32: losses within 2% of f32" near tf32 quarter 0.02
measured tf32
if [ $quick -eq 0 ]; then
  for precision in f32 bf16; do
    train "L6_C384_T256_B8_$precision" --layers 6 --heads 6 --width 384 --context 256 --batch 8 --device cuda --precision $precision --steps 20 || true
    measured "L6_C384_T256_B8_$precision"
    train "L12_C768_V50304_T256_B4_$precision" --layers 12 --heads 12 --width 768 --context 256 --batch 4 --vocab 50304 --device cuda \
      --precision $precision --steps 12 || true
    measured "L12_C768_V50304_T256_B4_$precision"
    train "L6_C384_T256_B8_${precision}_graph" --layers 6 --heads 6 --width 384 --context 256 --batch 8 --device cuda --precision $precision --steps 20 \
      --graph || true
    measured "L6_C384_T256_B8_${precision}_graph"
  done
fi
stage benchmark 120 "$at/weft_benchmark_device" cuda $([ $quick -eq 0 ] || echo small) &&
  while IFS='|' read -r _ what found _; do rows+=("${what# }|${found% }"); done < <(grep '^| [^k]' "$out/benchmark.txt") || true
finish "$device"

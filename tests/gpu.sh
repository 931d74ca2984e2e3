#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Tests and measures weft on an NVIDIA GPU, within nine minutes. Needs a driver, and NVRTC and cuBLASLt of CUDA 12 or 13,
# which it searches in LD_LIBRARY_PATH, next to nvcc, in the loader's folders and among Python's packages.
#
#   tests/gpu.sh [--json FILE] [--logs DIR] [--quick]  builds here, then runs; needs cmake and CUDA's headers
#   tests/gpu.sh --pack DIR                            builds, and puts everything a run needs into DIR; needs no GPU
#   DIR/gpu.sh [--json FILE] [--logs DIR] [--quick]    runs on a machine that has glibc, bash and a driver; no network
#   DIR/gpu.sh --rehearse                              tries the parts of DIR that need no GPU
#
# Ends with a short table; FILE gets the same figures as JSON. --quick: small sizes, to try the script itself.
# Exit code 1: something failed; 3: there is no GPU, or no NVRTC or cuBLASLt.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
kernel_tests=(weft_test_gpu_index_add_test weft_test_gpu_copies_and_products_test weft_test_gpu_kernel_text_test)
programs=(tests/weft_test_law_device_test tests/weft_test_gpu_nccl_world examples/train_gpt benchmarks/weft_benchmark_device
          "${kernel_tests[@]/#/tests/}")
mode=run pack='' json='' logs='' quick=0
while [ $# -gt 0 ]; do
  case $1 in
    --pack) mode=pack pack=${2:?a folder}; shift ;;
    --rehearse) mode=rehearse ;;
    --json) json=$(realpath -m "${2:?a file}"); shift ;;
    --logs) logs=$(realpath -m "${2:?a folder}"); shift ;;
    --quick) quick=1 ;;
    *) sed -n '3,15s/^# \{0,1\}//p' "$0"; exit 2 ;;
  esac
  shift
done

# Programs for any machine with AVX2 and a C library at least as new as this machine's, the only library they link.
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
  cp benchmarks/peers/{serve,gpt_pytorch,device_pytorch}.py "$1"
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
keep_logs() {
  [ -z "$logs" ] || { mkdir -p "$logs"; cp "$out"/*.txt "$out"/*.jsonl "$logs" 2>/dev/null || true; }
  rm -rf "$out"
}
trap keep_logs EXIT
failed=0 figures=() rows=() began=$SECONDS

# begin NAME LIMIT COMMAND...: starts the command when a core is free, for at most LIMIT seconds; it reads $input and writes to
# $out/NAME.txt. ended NAME: waits for it; succeeds if the command did. Exit code 77 (tests/skip.hpp) means that tests were left out
# because this machine lacks something; WEFT_TEST_DEVICE names what it must have.
declare -A running
begin() {
  local name=$1 limit=$2
  shift 2
  while [ "$(jobs -rp | wc -l)" -ge "$(nproc)" ]; do sleep 0.2; done
  {
    local code=0 start=$SECONDS
    timeout -k 5 "$limit" env LD_LIBRARY_PATH="${libraries:-}" WEFT_KERNEL_CACHE="$out/kernels" "$@" <"${input:-/dev/null}" >"$out/$name.txt" 2>&1 ||
      code=$?
    [ $code -ne 124 ] || echo "not within $limit s" >>"$out/$name.txt"
    echo $((SECONDS - start)) >"$out/$name.seconds"
    exit $code
  } &
  running[$name]=$!
}
ended() {
  local name=$1 code=0
  wait "${running[$name]}" || code=$?
  figures+=("\"$name\": {\"exit_code\": $code, \"seconds\": $(cat "$out/$name.seconds")}")
  [ $code -ne 77 ] || { code=0; echo "== $name: without"; grep -o 'skipped without .*' "$out/$name.txt" | sort -u || true; }
  [ $code -eq 0 ] || { failed=1; echo "== $name: exit code $code"; tail -n 5 "$out/$name.txt"; }
  return $code
}
stage() { begin "$@" && ended "$1"; }
# check NAME COMMAND...: records whether the command succeeds.
check() {
  local name=$1 good=true
  shift
  "$@" || { good=false; failed=1; echo "== $name: no"; }
  figures+=("\"$name\": $good")
  rows+=("$name | $([ $good = true ] && echo yes || echo NO)")
}
# train NAME FLAGS...: trains on the packed texts and logs to $out/NAME.jsonl. begin_training: does not wait for the end.
begin_training() {
  local name=$1
  shift
  begin "$name" 100 "$at/train_gpt" --data "$at/data" --log "$out/$name.jsonl" "$@"
}
train() { begin_training "$@" && ended "$1"; }
field() { grep -o "\"$2\": [^,}]*" "$out/$1.jsonl" | sed 's/.*: //; s/"//g'; }
# The median rate of the steps, without the first two.
rate() { field "$1" tokens_per_s | tail -n +3 | sort -n | awk '{v[NR] = $1} END {print NR ? v[int((NR + 1) / 2)] : 0}'; }
measured() {
  figures+=("\"$1 tokens_per_s\": $(rate "$1")")
  rows+=("train_gpt $1 | $(rate "$1") tokens/s")
}
same_bits() { [ -n "$(field "$1" loss_hex)" ] && [ "$(field "$1" loss_hex)" = "$(field "$2" loss_hex)" ]; }
# Whether the losses of two runs agree, step by step, within a relative tolerance.
near() {
  paste <(field "$1" loss) <(field "$2" loss) | awk -v most="$3" '
    NF == 2 {d = ($1 - $2) / $2; if (d < 0) d = -d; if (!(d <= most)) wrong = 1; if (d > worst) worst = d; ++n} NF != 2 {wrong = 1}
    END {printf "largest relative difference of %d losses: %.2e\n", n, worst; exit wrong || n == 0}'
}
# as_planned NAME [BYTES]: whether the peak is as predicted, or at most BYTES more (the reserved bytes are then not checked).
as_planned() {
  local planned used
  planned=$(field "$1" predicted_peak_bytes) used=$(field "$1" peak_bytes | tail -n 1)
  [ -n "$planned" ] && [ "$used" -ge "$planned" ] && [ "$used" -le $((planned + ${2:-0})) ] || return 1
  [ -n "${2:-}" ] || [ "$(field "$1" predicted_reserved_bytes)" = "$(field "$1" reserved_bytes | tail -n 1)" ]
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

# Without a GPU: checks that the programs start, report what is missing, and compute on the CPU.
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
  check "train_gpt says that there is no GPU" says cuda 'libcuda.so.1 was not found on this machine\|cuInit'
  check "with exit code 2" test $local_code -eq 2
  "$at/weft_benchmark_device" cuda >"$out/benchmark.txt" 2>&1 || true
  check "the benchmark says it" says benchmark 'libcuda.so.1 was not found on this machine\|cuInit'
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
  for python in python3 python; do  # the machine's Python, without the libraries found so far
    command -v $python >/dev/null || continue
    env -u LD_LIBRARY_PATH $python -c 'import site; print(*site.getsitepackages(), site.getusersitepackages(), sep="\n")' 2>/dev/null |
      while read -r site; do compgen -G "$site/nvidia/*/lib" || true; done
  done
}
# The newest version of each library that the driver supports, under the name that programs look for first.
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
own_libraries=${LD_LIBRARY_PATH:-}
libraries+=${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}

# Checks of correctness, in parallel. NCCL is optional.
tests=()
for test in weft_test_law_device_test "${kernel_tests[@]}"; do
  [ -x "$at/$test" ] || continue
  tests+=("$test")
  WEFT_TEST_DEVICE=cuda begin "$test" 180 "$at/$test"
done
while read -r folder; do
  [ -e "$out/libraries/libnccl.so.2" ] || [ ! -e "$folder/libnccl.so.2" ] || ln -s "$folder/libnccl.so.2" "$out/libraries/libnccl.so.2"
done < <(folders)
[ ! -x "$at/weft_test_gpu_nccl_world" ] || begin nccl 100 "$at/weft_test_gpu_nccl_world"
[ $quick -eq 1 ] && job=("${small[@]}") steps=16 || { job=(); steps=100; }
gpu=("${job[@]}" --device cuda) exactly=("${job[@]}" --device cuda --deterministic)
begin_training two "${exactly[@]}" --steps $steps
begin_training host "${job[@]}" --device cpu --deterministic --steps $steps
begin_training half "${exactly[@]}" --steps $((steps / 2)) --checkpoint "$out/checkpoint"
for precision in bf16 f16; do
  begin_training $precision "${exactly[@]}" --steps $((steps / 4)) --precision $precision
  begin_training again_$precision "${exactly[@]}" --steps $((steps / 4)) --precision $precision
done
begin_training tf32 "${gpu[@]}" --steps $((steps / 4)) --tf32
begin_training recomputed "${gpu[@]}" --steps $((steps / 4)) --precision bf16 --recompute selective
begin_training narrow "${gpu[@]}" --steps $((steps / 4)) --precision bf16
pytorch() { begin "$1" 120 env LD_LIBRARY_PATH="$own_libraries" python3 "${@:2}"; }
has_pytorch=0
[ $quick -eq 1 ] || ! python3 -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null || has_pytorch=1
printf 'step\n%.0s' {1..10} >"$out/steps"
[ $has_pytorch -eq 0 ] ||  # the compiled code stays in PyTorch's cache on disk
  for batch in 8 32; do input=$out/steps pytorch "compile$batch" "$at/gpt_pytorch.py" 12 12 768 1024 $batch 50304 1 cuda_compiled; done
ended half || true
begin_training resumed "${exactly[@]}" --steps $steps --checkpoint "$out/checkpoint" --resume
for name in two host resumed bf16 again_bf16 f16 again_f16 tf32 recomputed narrow; do ended $name || true; done
for test in "${tests[@]}"; do
  ended "$test" || true
  check "${test#weft_test_}" says "$test" SUCCESS
done
[ $has_pytorch -eq 0 ] || for batch in 8 32; do ended "compile$batch" || true; done
if [ -n "${running[nccl]:-}" ]; then
  nccl_code=0
  wait "${running[nccl]}" || nccl_code=$?
  if [ $nccl_code -eq 3 ]; then rows+=("NCCL | $(tail -n 1 "$out/nccl.txt")")
  else check "NCCL, world of one, and one rank for each GPU" says nccl right; fi
fi

# Measurements of speed, one after the other.
train one "${exactly[@]}" --steps $steps || true
check "losses as on the CPU, within 1%" near one host 0.01
check "two runs: the same bits" same_bits one two
tail -n $((steps / 2)) "$out/one.jsonl" >"$out/second_half.jsonl" || true
check "a resumed run: the same bits" same_bits resumed second_half
check "planned bytes are used bytes" as_planned one
for precision in bf16 f16; do
  check "$precision: the loss falls" falls $precision
  check "$precision: two runs: the same bits" same_bits $precision again_$precision
done
check "recomputed activations: losses within 1%" near recomputed narrow 0.01
measured one
# Steps recorded as CUDA graphs: bitwise the same results, with one rank's sums in the order of a step.
train plain "${gpu[@]}" --steps $steps || true
train graph "${gpu[@]}" --steps $steps --graph || true
check "steps as CUDA graphs: the same bits" same_bits graph plain
measured plain
measured graph
head -n $((steps / 4 + 1)) "$out/plain.jsonl" >"$out/quarter.jsonl" || true
check "TF32: losses within 2% of f32" near tf32 quarter 0.02
gpt2=(--layers 12 --heads 12 --width 768 --context 1024 --vocab 50304)
if [ $quick -eq 0 ]; then
  for run in "8 bf16" "32 bf16 --graph" "8 bf16 --graph" "8 f32 --tf32"; do
    read -r batch precision flag <<<"$run"
    name="GPT-2 124M, T 1024, B $batch, $precision$flag"
    train "$name" "${gpt2[@]}" --device cuda --batch "$batch" --precision "$precision" $flag --steps 12 || true
    check "$name: planned bytes are used bytes" as_planned "$name" $([ "$flag" != --graph ] || echo 65536)
    measured "$name"
  done
fi
stage benchmark 120 "$at/weft_benchmark_device" cuda $([ $quick -eq 0 ] || echo small) || true

# The same in PyTorch, if installed.
if [ $has_pytorch -eq 1 ]; then
  pytorch device_pytorch "$at/device_pytorch.py"
  ended device_pytorch || true
  for batch in 8 32; do
    for form in cuda cuda_compiled; do
      input=$out/steps pytorch "$form$batch" "$at/gpt_pytorch.py" 12 12 768 1024 $batch 50304 1 $form
      ended "$form$batch" || true
      tokens=$(tail -n 7 "$out/$form$batch.txt" | sort -n | awk -v n=$((1024 * batch)) '{v[NR] = $1} END {if (NR > 6) printf "%.0f", n / v[4]}')
      figures+=("\"PyTorch $form B $batch tokens_per_s\": ${tokens:-null}")
      rows+=("GPT-2 124M, T 1024, B $batch, bf16, PyTorch $form | $tokens tokens/s")
    done
  done
fi
while IFS='|' read -r _ what found _; do
  other=$(grep -F "|$what|" "$out/device_pytorch.txt" 2>/dev/null | cut -d '|' -f 3 || true)
  cudnn=$(grep -F "|${what% } (cuDNN) |" "$out/device_pytorch.txt" 2>/dev/null | cut -d '|' -f 3 || true)
  rows+=("${what# }|${found% }${other:+; PyTorch$other}${cudnn:+; cuDNN$cudnn}")
  figures+=("\"$(sed 's/^ *//; s/ *$//' <<<"$what")\": \"$(sed 's/^ *//; s/ *$//' <<<"$found")\"")
done < <(grep '^| [^k]' "$out/benchmark.txt")
finish "$device"

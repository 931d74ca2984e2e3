#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Installs what is missing, builds and runs the tests.
#
#   tests/run.sh           the quick tier: both compilers, sanitizers, structure, packaging
#   tests/run.sh --full    and every compiler with and without oneTBB, at -O3 and on every instruction set, all sanitizers on
#                          both compilers, NEON, every NVIDIA architecture, large tensors, a longer fuzz, ranks on two
#                          machines, the pack for GPUs on a bare machine, and all of the quick tier on bare Debian 12 and 13
#                          (hours; needs root)
#
# A program takes 1 GB to compile, with sanitizers 2; JOBS=N compiles N at a time, otherwise one for each core and 2 GB.
set -euo pipefail
cd "$(dirname "$0")/.."
full=0
[ "${1:-}" = --full ] && full=1
memory=$(awk '/MemAvailable/ {print int($2 / 2097152)}' /proc/meminfo)
jobs=${JOBS:-$((memory < 1 ? 1 : memory < $(nproc) ? memory : $(nproc)))}

install_missing() {
  local need=()
  command -v cmake >/dev/null || need+=(cmake)
  command -v make >/dev/null || need+=(make)
  command -v g++ >/dev/null || need+=(g++)
  command -v clang++-19 >/dev/null || need+=(clang-19)
  command -v python3 >/dev/null || need+=(python3)
  [ -e /usr/include/tbb/parallel_for.h ] || need+=(libtbb-dev)
  [ -e /usr/include/doctest/doctest.h ] || need+=(doctest-dev)
  [ -e /usr/include/boost/mpi.hpp ] || need+=(libboost-mpi-dev libopenmpi-dev openmpi-bin)
  [ -e /usr/include/gloo/context.h ] || need+=(libgloo-dev)
  [ -e /usr/include/CL/cl.h ] || need+=(opencl-headers)
  compgen -G "/etc/OpenCL/vendors/*.icd" >/dev/null || need+=(pocl-opencl-icd)
  compgen -G "/usr/lib/llvm-19/lib/clang/19/lib/linux/libclang_rt.asan*" >/dev/null || need+=(libclang-rt-19-dev)
  if [ $full -eq 1 ]; then
    command -v aarch64-linux-gnu-g++ >/dev/null || need+=(g++-aarch64-linux-gnu)
    command -v qemu-aarch64 >/dev/null || need+=(qemu-user)
    command -v debootstrap >/dev/null || need+=(debootstrap)
    command -v ip >/dev/null || need+=(iproute2)
    [ -x /usr/sbin/sshd ] || need+=(openssh-server openssh-client)
  fi
  [ ${#need[@]} -eq 0 ] && return
  local as_root=()
  [ "$(id -u)" = 0 ] || as_root=(sudo)
  "${as_root[@]}" apt-get update -qq
  DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${need[@]}"
}

# build NAME COMPILER OPTIONS...: configures, builds and runs the tests of one configuration.
build() {
  local name=$1 compiler=$2
  shift 2
  echo "== $name"
  cmake -S . -B "build/$name" -DCMAKE_CXX_COMPILER="$compiler" -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_CXX_FLAGS_RELEASE=-O1 -DWEFT_WARNINGS_AS_ERRORS=ON "$@" >/dev/null
  cmake --build "build/$name" -j "$jobs" -- --no-print-directory >"build/$name/build.log" 2>&1 ||
    { tail -n 60 "build/$name/build.log"; return 1; }
  WEFT_TEST_DEVICE=opencl ctest --test-dir "build/$name" --output-on-failure -j "$jobs"  # one that is not found is a failure
}

# Every header compiles alone, two units that include everything link, and g++ takes a program with its undefined-behaviour
# sanitizer, for which addresses of inline variables and functions are no constants to compare.
check_headers() {
  echo "== headers alone"
  local cuda=() without_cuda=(-name cuda.hpp -o -name nvrtc.hpp -o -name cublaslt.hpp)
  [ -e /usr/local/cuda/include/nvrtc.h ] && cuda=(-isystem /usr/local/cuda/include) && without_cuda=(-false)
  local mpi=() without_mpi=(-o -name 'mpi*.hpp')
  command -v mpicxx >/dev/null && read -ra mpi <<<"$(mpicxx -showme:compile)" && without_mpi=()
  (cd include && find weft -name '*.hpp' -not \( "${without_cuda[@]}" "${without_mpi[@]}" \)) | xargs -P "$jobs" -I{} sh -c \
    "echo '#include <{}>' | g++ -std=c++20 -w -fsyntax-only -Iinclude ${cuda[*]} ${mpi[*]} -x c++ - || { echo '{} does not compile alone'; exit 255; }"
  local at=build/two_units
  mkdir -p $at
  printf '#include <weft/weft.hpp>\nfloat f(float x) { return weft::eval(weft::full<float>(weft::extents<1>{}, x) + 1.0f).item(); }\n' >$at/a.cpp
  printf '#include <weft/weft.hpp>\nfloat f(float);\nint main() { return weft::eval(weft::full<float>(weft::extents<1>{}, f(1)) * 2.0f).item() == 4 ? 0 : 1; }\n' >$at/b.cpp
  g++ -std=c++20 -Iinclude -Wno-psabi $at/a.cpp $at/b.cpp -o $at/both && $at/both
  g++ -std=c++20 -fsanitize=undefined -fsyntax-only -Iinclude -Wno-psabi examples/train_mlp.cpp
}

# No header warns in a user's build, whatever warnings it turns on and however it optimises.
check_warnings() {
  echo "== warnings"
  local warnings=(-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wno-psabi -Werror) how
  for how in "g++ -O2 -Wrestrict" "g++ -O3 -Wrestrict" "clang++-19 -O2"; do
    # shellcheck disable=SC2086
    $how -std=c++20 -march=native "${warnings[@]}" -Iinclude -c tests/structure/warnings.cpp -o build/warnings.o || { echo "with $how"; return 1; }
  done
}

# A consumer finds weft four ways.
check_packages() {
  echo "== packages"
  local at=$PWD/build/consumer
  rm -rf "$at" && mkdir -p "$at"
  cmake -S . -B build/package -DWEFT_BUILD_TESTS=OFF -DWEFT_BUILD_EXAMPLES=OFF -DCMAKE_INSTALL_PREFIX="$at/prefix" >/dev/null
  cmake --install build/package >/dev/null
  for way in find_package add_subdirectory fetch_content; do
    cmake -S tests/package -B "$at/$way" -DWAY=$way -DWEFT_SOURCE="$PWD" -DCMAKE_PREFIX_PATH="$at/prefix" >/dev/null
    cmake --build "$at/$way" >"$at/$way.log" 2>&1 || { cat "$at/$way.log"; return 1; }
    "$at/$way/consumer"
  done
  g++ -std=c++20 -Iinclude -Wno-psabi tests/package/consumer.cpp -o "$at/plain" && "$at/plain"
}

# Products, elementary functions, sizes and whole models on NEON, emulated.
check_arm() {
  echo "== arm"
  local test
  mkdir -p build/arm
  for test in unit/device/gemm unit/device/math unit/run/sizes agree/pytorch; do
    aarch64-linux-gnu-g++ -std=c++20 -O1 -Wall -Wextra -Werror -Wno-psabi -static -Iinclude "-DWEFT_TEST_DATA=\"$PWD/tests/agree/data\"" \
      tests/${test}_test.cpp tests/{main,oracle,compare}.cpp -o build/arm/test
    qemu-aarch64 build/arm/test | tail -n 2
  done
}

# Ranks on two machines, in namespaces of this one: the same bits as a process alone; a machine that is gone is named. Needs root.
check_machines() {
  echo "== machines"
  local at=$PWD/build/machines comm cut
  local job=(build/gcc/examples/train_gpt --data README.md --layers 2 --heads 2 --width 32 --context 16 --batch 4 --lr 3e-3 --deterministic)
  local on_both=(tests/machines.sh build/gcc/examples/launch -H 10.77.0.1,10.77.0.2)
  rm -rf "$at" && mkdir -p "$at"
  "${job[@]}" --steps 20 --threads 1 --accumulate 4 --log "$at/one.jsonl" 2>/dev/null
  for comm in mpi gloo; do
    "${on_both[@]}" -n 4 "${job[@]}" --steps 20 --comm $comm --strategy zero3 --log "$at/$comm.jsonl" 2>"$at/$comm.log"
  done
  python3 tests/structure/check_logs.py "$at"/{one,mpi,gloo}.jsonl
  (sleep 8 && ip -n weft2 link set cable down) &
  cut=$!
  timeout -k 5 40 "${on_both[@]}" -n 2 "${job[@]}" --steps 1000000 --comm gloo --strategy zero3 --timeout 5 >"$at/cut.log" 2>&1 || true
  wait $cut
  grep -o "rank 0 waited .*not there: rank 1" "$at/cut.log"
}

# The README's two commands on a machine that has nothing, from a fresh clone. check_bare SUITE; needs root.
check_bare() {
  echo "== bare $1"
  local root=$PWD/build/bare-$1
  [ -x "$root/usr/bin/apt-get" ] || debootstrap --variant=minbase "$1" "$root" >"$root.log"
  rm -rf "$root/weft" && git clone -q . "$root/weft"
  mountpoint -q "$root/proc" || mount -t proc proc "$root/proc"
  mountpoint -q "$root/sys" || mount -t sysfs -o ro sys "$root/sys"  # PoCL, Open MPI and Gloo abort without it
  local code=0
  chroot "$root" env -i PATH="$PATH" HOME=/root STEPS=50 /weft/examples/quickstart.sh &&
    chroot "$root" env -i PATH="$PATH" HOME=/root /weft/tests/run.sh || code=$?
  umount "$root/proc" "$root/sys"
  return $code
}

# Ranks as threads, and threads that share a device, under the thread sanitizer.
check_races() {
  echo "== races"
  cmake -S . -B build/races -DCMAKE_CXX_COMPILER=clang++-19 -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE="-O1 -g" \
    -DWEFT_SANITIZE=thread -DWEFT_NATIVE=OFF -DWEFT_WITH_TBB=OFF -DWEFT_WITH_OPENCL=OFF -DWEFT_BUILD_EXAMPLES=OFF -DWEFT_WARNINGS_AS_ERRORS=ON >/dev/null
  cmake --build build/races -j "$jobs" --target weft_tests_with_threads >build/races/build.log 2>&1 || { tail -n 40 build/races/build.log; return 1; }
  ctest --test-dir build/races --output-on-failure -R '^(comm/|parallel/|gpu/cuda$)' -E '_ranks$'
}

# Bytes that are no files, requests, calls or recordings: the readers say so. check_fuzz SECONDS
check_fuzz() {
  echo "== fuzz"
  local at=build/fuzz target
  mkdir -p $at
  python3 tests/fuzz/seeds.py $at
  for target in files store rpc flight; do
    clang++-19 -std=c++20 -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -Iinclude tests/fuzz/$target.cpp -o $at/$target
    $at/$target -max_total_time="$1" -rss_limit_mb=2048 -max_len=4096 $at/$target.corpus >$at/$target.log 2>&1 ||
      { tail -n 40 $at/$target.log; return 1; }
    tail -n 1 $at/$target.log
  done
}

# What tests/gpu.sh packs starts on a machine that has a C library and bash, and says that there is no GPU; and all of the
# script runs, on the driver that computes on the CPU. Needs root.
check_gpu_pack() {
  echo "== pack for GPUs"
  local root=$PWD/build/bare-pack code=0 fakes=$PWD/build/gcc/tests/fake_cuda
  [ -x "$root/usr/bin/bash" ] || debootstrap --variant=minbase bookworm "$root" >"$root.log"
  rm -rf "$root/pack"
  JOBS=$jobs tests/gpu.sh --pack "$root/pack"
  chroot "$root" env -i PATH=/usr/bin:/bin /pack/gpu.sh --rehearse
  chroot "$root" env -i PATH=/usr/bin:/bin /pack/gpu.sh || code=$?
  [ $code -eq 3 ]
  printf '#!/bin/sh\necho a CPU that plays a GPU\n' >build/gpu/nvidia-smi && chmod +x build/gpu/nvidia-smi
  PATH=$PWD/build/gpu:$PATH LD_LIBRARY_PATH=$fakes "$root/pack/gpu.sh" --quick --json build/gpu/figures.json
  python3 -m json.tool build/gpu/figures.json >build/gpu/figures.txt
}

# Programs that nobody wrote: values and derivatives against the oracle. A failure is shrunk to a few lines.
# check_random PROGRAMS ON_OPENCL
check_random() {
  echo "== random programs"
  python3 tests/random/run.py --programs "$1" --seed 1 --jobs "$jobs" --build build/random
  WEFT_TEST_DEVICE=opencl python3 tests/random/run.py --programs "$2" --seed 2 --jobs "$jobs" --build build/random \
    --flags "-O0 -march=native -DWEFT_WITH_OPENCL=1" --libraries=-ldl
}

check_nvcc() {
  command -v nvcc >/dev/null || return 0
  echo "== nvcc"
  echo '#include <weft/weft.hpp>
int main() {}' >build/umbrella.cu
  nvcc -std=c++20 -Iinclude -c build/umbrella.cu -o build/umbrella.o
  [ $full -eq 0 ] ||  # every kernel of the law tests as machine code of every architecture
    WEFT_TEST_ARCHITECTURES="$(nvcc --list-gpu-code)" build/gcc/tests/weft_test_law_device_test
}

# The main job learns, resumes to the same bits, and answers bad use with exit code 2.
check_train_gpt() {
  echo "== train_gpt"
  local job=build/gcc/examples/train_gpt at=build/train_gpt
  local common=(--data README.md --layers 2 --heads 2 --width 32 --context 16 --batch 4 --threads 1)
  rm -rf $at && mkdir -p $at
  $job "${common[@]}" --steps 40 --lr 3e-3 --log $at/whole.jsonl 2>/dev/null
  $job "${common[@]}" --steps 20 --lr 3e-3 --log $at/parts.jsonl --checkpoint $at/checkpoint 2>/dev/null
  $job "${common[@]}" --steps 40 --lr 3e-3 --log $at/parts.jsonl --checkpoint $at/checkpoint --resume --save $at/end.safetensors 2>/dev/null
  python3 tests/structure/check_logs.py $at/parts.jsonl $at/whole.jsonl  # every step of the whole is in the parts
  [ "$(ls -d $at/checkpoint/step-* | wc -l)" -eq 2 ] || { echo "--keep is not 2"; return 1; }
  local unwritable  # told on all ranks, and the run ends, or goes on to the same loss
  for unwritable in "--log /dev/full" "--log $at" "--flight /dev/null" "--save $at/checkpoint" "--checkpoint /dev/null"; do
    # shellcheck disable=SC2086
    ! $job "${common[@]}" --steps 4 --ranks 2 $unwritable 2>$at/unwritable.log || { echo "$unwritable: no error"; return 1; }
    grep -q "${unwritable#* }" $at/unwritable.log || { cat $at/unwritable.log; return 1; }
  done
  $job "${common[@]}" --steps 4 --log /dev/full --on-write-error continue 2>/dev/null
  cp -r $at/checkpoint $at/damaged && : >$at/damaged/latest && cp $at/whole.jsonl $at/kept.jsonl
  ! $job "${common[@]}" --steps 44 --checkpoint $at/damaged --resume --log $at/kept.jsonl 2>$at/damaged.log &&
    grep -q "damaged/latest: is damaged" $at/damaged.log && cmp $at/whole.jsonl $at/kept.jsonl || { cat $at/damaged.log; return 1; }
  $job "${common[@]}" --steps 20 --lr 3e-3 --device opencl --log $at/opencl.jsonl 2>/dev/null
  python3 tests/structure/check_logs.py --within 1e-5 $at/whole.jsonl $at/opencl.jsonl
  # The same bits in less memory, with as little recomputed as fits.
  local wide=("${common[@]}" --batch 32 --steps 20 --lr 3e-3) peak percent limited=()
  $job "${wide[@]}" --log $at/unlimited.jsonl 2>/dev/null
  peak=$(grep -o '"predicted_peak_bytes": [0-9]*' $at/unlimited.jsonl | grep -o '[0-9]*$')
  for percent in 90 70; do
    $job "${wide[@]}" --memory-limit $((peak * percent / 100)) --log $at/limited$percent.jsonl 2>/dev/null
    limited+=($at/limited$percent.jsonl)
  done
  python3 tests/structure/check_logs.py $at/unlimited.jsonl "${limited[@]}"
  build/gcc/examples/data_parallel | tail -n 1
  # Many ranks: the same bits under every strategy, on threads, over TCP and under mpirun; a checkpoint
  # of some is resumed by others.
  local many=("${common[@]}" --steps 20 --lr 3e-3 --deterministic) logs=() strategy
  $job "${many[@]}" --accumulate 4 --log $at/one.jsonl 2>/dev/null
  for strategy in ddp zero1 zero2 zero3; do
    $job "${many[@]}" --ranks 2 --accumulate 2 --strategy $strategy --log $at/$strategy.jsonl 2>/dev/null
    logs+=($at/$strategy.jsonl)
  done
  $job "${many[@]}" --ranks 4 --strategy hybrid:2 --recompute block --offload all --log $at/hybrid.jsonl 2>/dev/null
  build/gcc/examples/launch -n 4 $job "${many[@]}" --comm gloo --strategy zero3 --log $at/gloo.jsonl 2>/dev/null
  OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun --oversubscribe -n 2 $job "${many[@]}" --comm mpi \
    --accumulate 2 --strategy zero2 --log $at/mpi.jsonl 2>/dev/null
  $job "${many[@]}" --steps 10 --ranks 4 --strategy zero3 --log $at/before.jsonl --checkpoint $at/regrouped 2>/dev/null
  $job "${many[@]}" --ranks 2 --accumulate 2 --strategy zero1 --log $at/after.jsonl --checkpoint $at/regrouped --resume 2>/dev/null
  python3 tests/structure/check_logs.py $at/one.jsonl "${logs[@]}" $at/{hybrid,gloo,mpi,before,after}.jsonl
  local sizes sized  # widths, heads and vocabularies that no vector divides: shards end anywhere in one
  for sizes in "60 3 48 256" "36 1 33 261" "90 5 17 300" "44 2 29 259"; do
    read -r -a sized <<<"$sizes"
    sized=(--data README.md --layers 2 --width "${sized[0]}" --heads "${sized[1]}" --context "${sized[2]}" --vocab "${sized[3]}" --batch 2
           --threads 1 --steps 30 --lr 3e-3 --order sequential --seed 5 --deterministic)
    logs=()
    $job "${sized[@]}" --accumulate 4 --log $at/sized.jsonl 2>/dev/null
    for strategy in ddp zero1 zero2 zero3; do
      $job "${sized[@]}" --ranks 4 --strategy $strategy --log $at/sized_$strategy.jsonl 2>/dev/null
      logs+=($at/sized_$strategy.jsonl)
    done
    python3 tests/structure/check_logs.py $at/sized.jsonl "${logs[@]}"
  done
  local precision  # products in halves: the same bits on ranks, and after a resume
  for precision in bf16 f16; do
    $job "${many[@]}" --precision $precision --accumulate 4 --log $at/one_$precision.jsonl 2>/dev/null
    $job "${many[@]}" --precision $precision --steps 10 --ranks 2 --accumulate 2 --strategy zero3 --log $at/before_$precision.jsonl \
      --checkpoint $at/checkpoint_$precision 2>/dev/null
    $job "${many[@]}" --precision $precision --ranks 4 --strategy zero1 --recompute selective --log $at/after_$precision.jsonl \
      --checkpoint $at/checkpoint_$precision --resume 2>/dev/null
    python3 tests/structure/check_logs.py $at/one_$precision.jsonl $at/{before,after}_$precision.jsonl
  done
  # Ranks are killed at random moments; the run ends with the losses of one that was left alone.
  local long=(--data README.md --layers 2 --heads 2 --width 64 --context 32 --batch 4 --threads 1 --steps 300 --lr 1e-3 --deterministic)
  $job "${long[@]}" --accumulate 8 --log $at/undisturbed.jsonl 2>/dev/null
  for comm in gloo mpi; do
    for ((round = 0; round < (full ? 20 : 1); ++round)); do
      rm -rf $at/supervised*
      : >$at/kills
      (
        sleep 1.$((RANDOM % 10))
        for kills in 1 2; do
          pkill -9 -f "^$job.*$at/supervised.jsonl.*--comm" -n && echo killed >>$at/kills  # the youngest of the ranks
          sleep 3.$((RANDOM % 10))
        done
      ) &
      OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 build/gcc/examples/launch -n 4 -r 100 -m 8 -c $comm $job "${long[@]}" \
        --strategy zero2 --checkpoint $at/supervised --checkpoint-every 20 --log $at/supervised.jsonl 2>$at/supervised.log ||
        { cat $at/supervised.log; return 1; }
      wait
      echo "$(wc -l <$at/kills) ranks were killed"
      [ -s $at/kills ] || { echo "the run ended before a rank was killed"; return 1; }
      grep "going on" $at/supervised.log
      python3 tests/structure/check_logs.py $at/undisturbed.jsonl $at/supervised.jsonl
    done
  done
  local code
  for bad in "--data /nonexistent" "--data /dev/null" "--data README.md --heads 3 --width 32" "--data README.md --steps x" \
    "--data README.md --steps 0" "--nonsense" "--data README.md --context 99999999" "" \
    "--data README.md --ranks 2 --strategy single" "--data README.md --ranks 3 --strategy hybrid:2" "--data README.md --strategy zero4" \
    "--data README.md --comm gloo --ranks 0" "--data README.md --hook powersgd" "--data README.md --precision f16 --hook bf16" "--data README.md --precision fp8" "--data README.md --memory-limit 1K" "--data README.md --memory-limit 0" "--data README.md --recompute block:9" "--data README.md --offload params" "--data README.md --strategy zero2 --hook bf16" \
    "--data README.md --init README.md" "--data README.md --init $at/end.safetensors --width 64"; do
    code=0
    # shellcheck disable=SC2086
    $job $bad >$at/out 2>&1 || code=$?
    if [ $code -ne 2 ] || [ "$(wc -l <$at/out)" -ne 1 ]; then
      echo "train_gpt $bad: exit code $code"; cat $at/out; return 1
    fi
  done
}

install_missing
mkdir -p build
build gcc g++
check_train_gpt
build clang-sanitized clang++-19 -DWEFT_SANITIZE=address,undefined -DWEFT_BUILD_EXAMPLES=OFF -DWEFT_NATIVE=OFF
check_races
check_headers
check_warnings
check_packages
check_nvcc
check_fuzz $((full ? 300 : 10))
check_random $((full ? 10000 : 250)) $((full ? 500 : 30))
if [ $full -eq 1 ]; then
  WEFT_CHAOS_ROUNDS=100 ctest --test-dir build/gcc --output-on-failure -L chaos
  WEFT_TEST_LARGE=1 build/gcc/tests/weft_test_run_sizes_test
  WEFT_TEST_LARGE=1 build/gcc/tests/weft_test_device_math_test
  WEFT_TEST_LARGE=1 build/gcc/tests/weft_test_chaos_checkpoint_test
  WEFT_TEST_LARGE=1 build/gcc/tests/weft_test_chaos_power_test
  check_arm
  python3 tests/random/mutations.py --jobs "$jobs" --build build/mutations
  python3 tests/random/run.py --programs 300 --seed 3 --jobs "$jobs" --compiler clang++-19 --build build/random
  build clang clang++-19
  build gcc-serial g++ -DWEFT_WITH_TBB=OFF
  for compiler in g++ clang++-19; do  # optimised as users do, on each instruction set
    optimised=(-DCMAKE_CXX_FLAGS_RELEASE=-O3 -DWEFT_BUILD_EXAMPLES=OFF)
    build "$compiler-native" $compiler "${optimised[@]}"
    build "$compiler-avx2" $compiler "${optimised[@]}" -DWEFT_NATIVE=OFF "-DCMAKE_CXX_FLAGS=-mavx2 -mfma"
    build "$compiler-sse2" $compiler "${optimised[@]}" -DWEFT_NATIVE=OFF
  done
  build gcc-sanitized g++ -DWEFT_SANITIZE=address,undefined -DWEFT_BUILD_EXAMPLES=OFF
  check_machines
  check_gpu_pack
  check_bare bookworm
  check_bare trixie
fi
echo "all checks passed"

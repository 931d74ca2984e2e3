#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Builds weft and the peers that this machine has, compares them, and prints Markdown tables of ratios.
#
#   benchmarks/run.sh [THREADS [FAMILY[:TASKS]...]]   # as run.py; families: gpt busy ops layers tiny llama products; default: all
#
# Peers: PyTorch (python3 -c 'import torch'), whose wheel contains LibTorch, with transformers for llama; Debian's libtorch-dev,
# libopenblas-openmp-dev, libdnnl-dev, libeigen3-dev, libxtensor-dev. Missing peers are left out. If other programs run on the machine,
# `chrt -r 50 benchmarks/run.sh`, as root, is disturbed less.
set -euo pipefail
cd "$(dirname "$0")/.."
threads=${1:-$(nproc)}
shift || true
families=" ${*%%:*} "
families=${families/ busy / busy gpt }
at=build/benchmarks
mkdir -p $at/peers

# peer NAME HEADER FLAGS...: builds benchmarks/peers/NAME.cpp (NAME without _packed) if the header exists and the family is wanted.
peer() {
  local name=$1 header=$2 source=benchmarks/peers/${1%_packed}.cpp family=${1%%_*}
  shift 2
  [[ -z ${families// } || $families == *" $family "* ]] || return 0
  compgen -G "$header" >/dev/null || { echo "without $name: no $header" >&2; return 0; }
  [[ $name != *_weft && $at/peers/$name -nt $source && $at/peers/$name -nt benchmarks/peers/ops.hpp ]] && return 0
  g++ -std=c++20 -O3 -march=native -w -Iinclude "$source" -o "$at/peers/$name" "$@" ||
    echo "without $name: it does not build" >&2
}
for name in gpt ops tiny layers llama products; do peer ${name}_weft /usr/include/tbb -DWEFT_WITH_TBB=1 -Wno-psabi -ltbb; done
peer products_onednn /usr/include/oneapi/dnnl/dnnl.hpp -ldnnl
peer products_onednn_packed /usr/include/oneapi/dnnl/dnnl.hpp -DWEFT_PACKED -ldnnl
peer ops_memcpy /usr/include/string.h -fopenmp
peer layers_memcpy /usr/include/string.h -fopenmp
peer ops_eigen /usr/include/eigen3 -I/usr/include/eigen3 -fopenmp
peer ops_xtensor /usr/include/xtensor
peer ops_openblas '/usr/include/*/openblas-openmp/cblas.h' -I/usr/include/x86_64-linux-gnu/openblas-openmp \
  -L/usr/lib/x86_64-linux-gnu/openblas-openmp -lopenblas
peer ops_onednn /usr/include/oneapi/dnnl/dnnl.h -ldnnl
wheel=$(python3 -c 'import torch; print(torch.__path__[0])' 2>/dev/null || true)
torch=(-I${wheel:-/usr}/include -I${wheel:-/usr}/include/torch/csrc/api/include)
if [[ -n $wheel ]]; then torch+=(-L"$wheel/lib" -Wl,-rpath,"$wheel/lib"); fi
torch+=(-ltorch -ltorch_cpu -lc10)
for name in ops tiny gpt; do peer ${name}_libtorch ${wheel:-/usr}/include/torch/csrc/api/include/torch/torch.h "${torch[@]}"; done
python3 benchmarks/run.py $at "$threads" "$@"

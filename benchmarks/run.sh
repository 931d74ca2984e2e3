#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Builds weft and the peers that are on this machine, runs them interleaved, prints Markdown tables of ratios.
#
#   benchmarks/run.sh [THREADS]
#
# Peers: PyTorch (python3 -c 'import torch'), and Debian's libtorch-dev, libopenblas-openmp-dev, libdnnl-dev, libeigen3-dev,
# libxtensor-dev. What is missing is left out.
set -euo pipefail
cd "$(dirname "$0")/.."
threads=${1:-$(nproc)}
at=build/benchmarks
mkdir -p $at/peers
cmake -S . -B $at -DCMAKE_BUILD_TYPE=Release -DWEFT_BUILD_TESTS=OFF >/dev/null
cmake --build $at -j "$(nproc)" --target train_gpt weft_example_static_gpt >/dev/null

# peer NAME HEADER FLAGS...: builds benchmarks/peers/NAME.cpp, or NAME without _packed, where the header is.
peer() {
  local name=$1 header=$2 source=benchmarks/peers/${1%_packed}.cpp
  shift 2
  compgen -G "/usr/include/$header" >/dev/null || { echo "without $name: no /usr/include/$header" >&2; return 0; }
  [[ $name != *_weft && $at/peers/$name -nt $source ]] && return 0
  g++ -std=c++20 -O3 -march=native -w -Iinclude "$source" -o "$at/peers/$name" "$@" ||
    echo "without $name: it does not build" >&2
}
torch=(-I/usr/include/torch/csrc/api/include -std=c++17 -ltorch -ltorch_cpu -lc10)
peer ops_weft tbb -DWEFT_WITH_TBB=1 -Wno-psabi -ltbb
peer tiny_weft tbb -DWEFT_WITH_TBB=1 -Wno-psabi -ltbb
peer layers_weft tbb -DWEFT_WITH_TBB=1 -Wno-psabi -ltbb
peer products_weft tbb -DWEFT_WITH_TBB=1 -Wno-psabi -ltbb
peer products_onednn oneapi/dnnl/dnnl.hpp -ldnnl
peer products_onednn_packed oneapi/dnnl/dnnl.hpp -DWEFT_PACKED -ldnnl
peer ops_memcpy string.h -fopenmp
peer layers_memcpy string.h -fopenmp
peer ops_eigen eigen3 -I/usr/include/eigen3 -fopenmp
peer ops_xtensor xtensor
peer ops_openblas '*/openblas-openmp/cblas.h' -I/usr/include/x86_64-linux-gnu/openblas-openmp -L/usr/lib/x86_64-linux-gnu/openblas-openmp -lopenblas
peer ops_onednn oneapi/dnnl/dnnl.h -ldnnl
peer ops_libtorch torch/csrc/api/include/torch/torch.h "${torch[@]}"
peer tiny_libtorch torch/csrc/api/include/torch/torch.h "${torch[@]}"
peer gpt_libtorch torch/csrc/api/include/torch/torch.h "${torch[@]}"
python3 benchmarks/run.py $at "$threads"

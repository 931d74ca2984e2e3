#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Every header compiles alone. Those of a library that is not here are left out, by the names of their files.
#
#   headers.sh COMPILER JOBS [FLAGS...]          WEFT_COMPONENTS holds the libraries that are here: MPI, CUDA
set -euo pipefail

cd "$(dirname "$0")/../../include"
compiler=$1 jobs=$2
shift 2
left_out=(-name none)
case " ${WEFT_COMPONENTS:-} " in *" CUDA "*) ;; *) left_out+=(-o -name cuda.hpp -o -name nvrtc.hpp -o -name cublaslt.hpp) ;; esac
case " ${WEFT_COMPONENTS:-} " in *" MPI "*) ;; *) left_out+=(-o -name 'mpi*.hpp') ;; esac
alone() {
  local header=$1
  shift
  echo "#include <$header>" | "$@" -std=c++20 -w -fsyntax-only -I. -x c++ - || { echo "$header does not compile alone"; exit 255; }
}
export -f alone
find weft -name '*.hpp' -not \( "${left_out[@]}" \) -print0 | xargs -0 -P "$jobs" -I{} bash -c 'alone "$@"' alone {} "$compiler" "$@"

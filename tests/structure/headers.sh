#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Headers compile alone: all, or only those that users include, which no header except weft.hpp includes. Headers of libraries that
# the machine lacks are left out, by their file names.
#
#   headers.sh all|listed COMPILER JOBS [FLAGS...]          WEFT_COMPONENTS names the available libraries: MPI, CUDA
set -euo pipefail

cd "$(dirname "$0")/../../include"
which=$1 compiler=$2 jobs=$3
shift 3
left_out=(-name none)
case " ${WEFT_COMPONENTS:-} " in
  *" CUDA "*) ;;
  *) left_out+=(-o -name 'cuda*.hpp' -o -name nvrtc.hpp -o -name cublaslt.hpp -o -name 'nccl*.hpp' -o -name rank_sums.hpp) ;;
esac
case " ${WEFT_COMPONENTS:-} " in *" MPI "*) ;; *) left_out+=(-o -name 'mpi*.hpp') ;; esac
alone() {
  local header=$1
  shift
  echo "#include <$header>" | "$@" -std=c++20 -w -fsyntax-only -I. -x c++ - || { echo "$header does not compile alone"; exit 255; }
}
export -f alone
export LC_ALL=C
headers=$(find weft -name '*.hpp' -not \( "${left_out[@]}" \) | sort)
if [ "$which" = listed ]; then
  included=$(find weft -mindepth 2 -name '*.hpp' -exec grep -hoE '^#include <weft/[^>]+>' {} + | sed -E 's/.*<(.*)>/\1/' | sort -u)
  headers=$(comm -23 - <(echo "$included") <<<"$headers")
fi
xargs -P "$jobs" -I{} bash -c 'alone "$@"' alone {} "$compiler" "$@" <<<"$headers"
echo "$(wc -l <<<"$headers") headers"

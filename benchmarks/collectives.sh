#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Collectives among ranks that are threads against Open MPI's and PyTorch's gloo: medians of three interleaved runs each.
#
#   benchmarks/collectives.sh [RANKS]
set -euo pipefail
cd "$(dirname "$0")/.."
ranks=${1:-2}
at=build/benchmarks/collectives
mkdir -p $at
rm -f $at/*.txt
g++ -std=c++20 -O3 -march=native -DNDEBUG -Iinclude benchmarks/collectives.cpp -o $at/weft -pthread
command -v mpicxx >/dev/null && mpicxx -std=c++20 -O3 -march=native benchmarks/peers/open_mpi.cpp -o $at/open_mpi
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
for round in 1 2 3; do
  $at/weft "$ranks" >$at/weft.$round.txt
  [ ! -x $at/open_mpi ] || mpirun --oversubscribe -n "$ranks" $at/open_mpi >$at/open_mpi.$round.txt
  ! python3 -c 'import torch' 2>/dev/null || python3 benchmarks/peers/torch_gloo.py "$ranks" >$at/gloo.$round.txt 2>/dev/null || true
done
python3 - $at "$ranks" <<'PYTHON'
import pathlib, statistics, sys
rows = {}
for path in sorted(pathlib.Path(sys.argv[1]).glob("*.txt")):
    for line in path.read_text().splitlines():
        name, size, ms = line.split()
        rows.setdefault((name, int(size)), {}).setdefault(path.name.split(".")[0], []).append(float(ms))
print(f"| {sys.argv[2]} ranks | bytes | weft, ms | times Open MPI | times PyTorch's gloo |\n|---|---|---|---|---|")
for (name, size), by in sorted(rows.items(), key=lambda r: (r[0][0], r[0][1])):
    own = statistics.median(by["weft"])
    ratio = lambda peer: f"{statistics.median(by[peer]) / own:.2f}" if peer in by else ""
    print(f"| {name} | {size} | {own:.4f} | {ratio('open_mpi')} | {ratio('gloo')} |")
PYTHON

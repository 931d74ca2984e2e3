#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# From a bare Debian or Ubuntu to a GPT that has learnt to write: installs what is missing, builds,
# trains for about two minutes on the licence texts that every such system has, prints a sample.
set -euo pipefail
cd "$(dirname "$0")/.."

need=()
command -v cmake >/dev/null || need+=(cmake)
command -v g++ >/dev/null || need+=(g++)
command -v make >/dev/null || need+=(make)
[ -e /usr/include/tbb/parallel_for.h ] || need+=(libtbb-dev)
if [ ${#need[@]} -gt 0 ]; then
  as_root=()
  [ "$(id -u)" = 0 ] || as_root=(sudo)
  "${as_root[@]}" apt-get update -qq
  DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${need[@]}"
fi

cmake -S . -B build -DCMAKE_BUILD_TYPE=Release -DWEFT_BUILD_TESTS=OFF >/dev/null
cmake --build build -j "$(nproc)" --target train_gpt_f32

steps=${STEPS:-2200}
build/examples/train_gpt_f32 --data /usr/share/common-licenses --order shuffled \
  --layers 4 --heads 4 --width 128 --context 64 --batch 16 --steps "$steps" \
  --lr 2e-3 --warmup $((steps / 22)) --lr-schedule cosine --checkpoint build/quickstart --checkpoint-every 500 \
  --log build/quickstart.jsonl --sample 400 --prompt "The license "

cat <<'TEXT'

That text was written by the model you just trained. Next:
  cmake --build build -j 4 --target train_gpt        the whole program: bf16 and f16 too, recomputation
  build/examples/train_gpt --help                    all flags; try --width 256 --layers 6 on your own text
  examples/hand_written_loop.cpp                     the same training loop in a dozen lines
  docs/tour.md                                       how weft works, folder by folder
TEXT

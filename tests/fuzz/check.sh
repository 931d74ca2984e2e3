#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Readers reject bytes that are not valid files, requests, calls, recordings, schedules or meshes. Needs clang's libFuzzer.
#
#   check.sh TARGET SECONDS FOLDER CLANG
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
target=$1 seconds=$2 at=$3 clang=$4
rm -rf "$at" && mkdir -p "$at"
"${PYTHON:-python3}" "$here/seeds.py" "$at"
"$clang" -std=c++20 -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all "-I$here/../../include" "$here/$target.cpp" \
  -o "$at/$target"
"$at/$target" "-max_total_time=$seconds" -rss_limit_mb=2048 -max_len=4096 "-artifact_prefix=$at/" "$at/$target.corpus" >"$at/log" 2>&1 ||
  { tail -n 40 "$at/log"; exit 1; }
tail -n 1 "$at/log"

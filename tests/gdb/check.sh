#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# How gdb prints tensors.
#
#   tests/gdb/check.sh PROGRAM PRINTERS      exit code 77: there is no gdb, or it is not permitted to trace
set -uo pipefail
command -v gdb >/dev/null || exit 77
printed=$(gdb -q -batch -ex "source $2" -ex "break stop" -ex run -ex up \
  -ex "print x" -ex "print half" -ex "print number" -ex "print empty" -ex "print undefined" -ex "print mask" -ex "print weight" \
  -ex "print form" -ex "print one" -ex "set print elements 2" -ex "print x" "$1" 2>&1)
grep -q "ptrace: Operation not permitted" <<<"$printed" && exit 77
status=0
for line in '= f32 [2, 3] = {0, 0.5, 1, 1.5, 2, 2.5}' '= bf16 [2] = {-1.5, -1.5}' '= i64 [] = {7}' '= f32 [0, 4] = {}' '= undefined' \
  '= boolean [2, 3] = {false, false, false, true, true, true}' '= f32 [2] = {0.25, 0.25}' '= [2, 3]' '= 1' '= f32 [2, 3] = {0, 0.5...}'; do
  grep -qF -- "$line" <<<"$printed" || { echo "not printed: $line"; status=1; }
done
grep -qE '^[^ ]*program\.cpp:[0-9]+: f32 \[2, 3\]$' <<<"$printed" || { echo "debug() does not print"; status=1; }
[ $status -eq 0 ] || echo "$printed"
exit $status

#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# A file that cannot be written is named on all ranks and ends the run; with --on-write-error continue, the run goes on.
. "$(dirname "$0")/common.sh"

mkdir "$at/folder"
for unwritable in "--log /dev/full" "--log $at" "--flight /dev/null" "--save $at/folder" "--checkpoint /dev/null"; do
  code=0
  # shellcheck disable=SC2086
  timeout 120 "$job" "${small[@]}" --steps 4 --ranks 2 $unwritable >"$at/out" 2>&1 || code=$?
  if [ $code -ne 2 ] || ! grep -q -- "${unwritable#* }" "$at/out"; then
    echo "$unwritable: exit code $code"
    cat "$at/out"
    exit 1
  fi
done
run goes_on "$job" "${small[@]}" --steps 4 --log /dev/full --on-write-error continue

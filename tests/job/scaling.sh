#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# tools/scaling.py: a row for each number of ranks, with the bytes sent; runs that cannot be compared are refused.
. "$(dirname "$0")/common.sh"

scaling() { "${PYTHON:-python3}" tools/scaling.py "$@"; }
flags=(--steps 6 --warmup 2 --rounds 1)
run threads scaling --ranks 1,2,3 "${flags[@]}" -- "$job" "${small[@]}"
run mesh scaling --ranks 2,4 "${flags[@]}" -- "$job" "${small[@]}" --mesh tp=2,dp=auto
rows() { grep -cE "^\| $2 \| [0-9.]+ .* \| [0-9,]+ \| [0-9.]+ \| [0-9]+% \| $3 MB \| [0-9]+% \|$" "$at/$1.out"; }
[ "$(rows threads 1 0)" = 2 ] && [ "$(rows threads 2 '[0-9.]*[1-9][0-9.]*')" = 2 ] && [ "$(rows threads 3 '[0-9.]+')" = 2 ]
grep -q '^## Strong scaling: 6 batches a step in all$' "$at/threads.out"
grep -q '^## Strong scaling: 2 batches a step in all$' "$at/mesh.out"
if [[ " $WEFT_TEST_COMM " == *" gloo "* ]]; then
  run processes scaling --ranks 2 "${flags[@]}" --start "$launch -n {ranks}" -- "$job" "${small[@]}" --comm gloo
fi

# refused CODE TEXT ARGUMENTS...
refused() {
  local code=0
  scaling "${@:3}" >"$at/refused.out" 2>&1 || code=$?
  [ $code -eq "$1" ] && grep -qF "$2" "$at/refused.out" || { echo "code $code, not $1, or not '$2':"; cat "$at/refused.out"; return 1; }
}
refused 2 'do not divide among 2 ranks' --ranks 2 --batches 3 -- "$job" "${small[@]}"
refused 2 'expected -- and the command' --ranks 2
refused 1 'code 2 of' --ranks 1 "${flags[@]}" -- "$job" --data "$at/none"
refused 1 "$at/none: No such file" --ranks 1 -- "$at/none"
refused 1 'these are not the same steps' --ranks 1,2 "${flags[@]}" -- "$job" "${small[@]}" --hook local:8  # ranks train independently

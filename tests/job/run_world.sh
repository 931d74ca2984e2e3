#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# One program as threads, as processes over TCP and under mpirun: the same losses.
#
#   tests/job/run_world.sh PROGRAM LAUNCH MPIEXEC      LAUNCH or MPIEXEC is "" if it is missing
set -euo pipefail
program=$1 launch=$2 mpiexec=$3
threads=$(WEFT_RANKS=2 "$program")
[ "$(wc -l <<<"$threads")" -eq 4 ] || { echo "$threads"; exit 1; }
same() {  # NAME OUTPUT
  [ "$2" = "$threads" ] || { echo "$1:"; echo "$2"; echo "threads:"; echo "$threads"; exit 1; }
}
[ -z "$launch" ] || same "over TCP" "$("$launch" -n 2 "$program")"
[ -z "$mpiexec" ] || same "under mpirun" "$("$mpiexec" -n 2 "$program")"
[ "$("$program")" != "$threads" ] || { echo "one rank sees other data than two"; exit 1; }
! WEFT_RANKS=none "$program" 2>/dev/null || { echo "WEFT_RANKS=none is accepted"; exit 1; }

#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# A program with large messages, on threads, on processes over TCP and under mpirun, where Open MPI's eager limits decide whether
# messages are sent at once or wait for their receiver: the same output, which contains the bits of all losses and norms.
#
#   tests/job/transports.sh PROGRAM LAUNCH MPIEXEC LINES      LAUNCH or MPIEXEC is "" if it is missing
set -euo pipefail
program=$1 launch=$2 mpiexec=$3 least=$4
run() { timeout 300 "$@"; }
for ranks in 2 4; do
  threads=$(WEFT_RANKS=$ranks run "$program")
  lines=$(wc -l <<<"$threads")
  [ "$lines" -ge "$least" ] || { echo "$threads"; exit 1; }
  same() {  # NAME OUTPUT
    [ "$2" = "$threads" ] || { echo "$1:"; diff <(echo "$2") <(echo "$threads"); exit 1; }
  }
  [ -z "$launch" ] || same "$ranks ranks over TCP" "$(run "$launch" -n $ranks "$program")"
  [ -n "$mpiexec" ] || continue
  same "$ranks ranks under mpirun" "$(run "$mpiexec" -n $ranks "$program")"
  for limit in 256 4194304; do  # bytes: no message is sent at once, or every message
    export OMPI_MCA_btl_vader_eager_limit=$limit OMPI_MCA_btl_tcp_eager_limit=$limit
    for through in self,vader self,tcp; do
      [ $limit$through != 4194304self,vader ] || continue  # does not fit in shared memory
      same "$ranks ranks under mpirun, $through, eager limit $limit" \
        "$(OMPI_MCA_btl=$through run "$mpiexec" -n $ranks "$program")"
    done
    unset OMPI_MCA_btl_vader_eager_limit OMPI_MCA_btl_tcp_eager_limit
  done
done

#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Runs a program on many ranks.
#
#   examples/launch.sh -n 4 build/examples/train_gpt --comm gloo ...        on this machine
#   examples/launch.sh -n 8 -H node1,node2 train_gpt --comm mpi|gloo ...    on several, by mpirun
#   examples/launch.sh -n 8 -H node1:6,node2:2 ...                          so many on each
#
# A rank finds in its environment who it is, WORLD_SIZE, RANK, LOCAL_WORLD_SIZE, LOCAL_RANK (under mpirun
# its own variables), and where to meet the others: MASTER_ADDR, on the first host, MASTER_PORT, WEFT_JOB_TOKEN.
# When a rank fails the others are ended, and its exit code is the job's.
set -euo pipefail

ranks=$(nproc)
hosts=
while getopts "n:H:h" flag; do
  case $flag in
    n) ranks=$OPTARG ;;
    H) hosts=$OPTARG ;;
    *) sed -n '3,11s/^# \{0,1\}//p' "$0"; exit 2 ;;
  esac
done
shift $((OPTIND - 1))
[[ $ranks =~ ^[1-9][0-9]*$ ]] || { echo "launch.sh: -n $ranks: expected a number above 0" >&2; exit 2; }
[ $# -gt 0 ] || { echo "launch.sh: which program?" >&2; exit 2; }

export MASTER_PORT=${MASTER_PORT:-$((20000 + RANDOM % 20000))}
export WEFT_JOB_TOKEN=${WEFT_JOB_TOKEN:-$(head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \n')}
if [ -n "$hosts" ]; then
  IFS=, read -ra names <<<"$hosts"
  export MASTER_ADDR=${MASTER_ADDR:-${names[0]%:*}}
  each=$(((ranks + ${#names[@]} - 1) / ${#names[@]}))
  [[ $hosts == *:* ]] || hosts=$(printf ",%s:$each" "${names[@]}")
  exec mpirun -n "$ranks" --host "${hosts#,}" -x MASTER_ADDR -x MASTER_PORT -x WEFT_JOB_TOKEN "$@"
fi

export MASTER_ADDR=${MASTER_ADDR:-127.0.0.1} WORLD_SIZE=$ranks LOCAL_WORLD_SIZE=$ranks
children=()
end_others() { kill "${children[@]}" 2>/dev/null || true; }
trap 'end_others; exit 130' INT TERM
for ((rank = 0; rank < ranks; ++rank)); do
  RANK=$rank LOCAL_RANK=$rank "$@" &
  children+=($!)
done
code=0
for ((left = ranks; left > 0; --left)); do
  wait -n || { code=$?; sleep 2; end_others; break; }  # others may still say why
done
wait || true
exit $code

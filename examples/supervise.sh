#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Keeps a training run going: when a rank dies or hangs, the job goes on from its last checkpoint
# with as many ranks as are left.
#
#   examples/supervise.sh -n 4 -m 8 build/examples/train_gpt --checkpoint runs/a --deterministic ...
#   examples/supervise.sh -n 4 -m 8 -c mpi ...
#
# -n  ranks at first; -m  micro-batches of a step, which all ranks together always compute (a
# multiple of -n); -c  gloo (plain processes) or mpi (the supervisor stays outside of mpirun);
# -r  restarts at most (100). With --deterministic the losses are those of a run that never failed,
# where the numbers allow it; where not, that is said first. A rank that hangs is noticed by the
# others after --timeout seconds.
set -euo pipefail

here=$(dirname "$0")
ranks=2 micro=0 comm=gloo restarts=100
while getopts "n:m:c:r:h" flag; do
  case $flag in
    n) ranks=$OPTARG ;;
    m) micro=$OPTARG ;;
    c) comm=$OPTARG ;;
    r) restarts=$OPTARG ;;
    *) sed -n '3,15s/^# \{0,1\}//p' "$0"; exit 2 ;;
  esac
done
shift $((OPTIND - 1))
fail() { echo "supervise.sh: $1" >&2; exit 2; }
[[ $ranks =~ ^[1-9][0-9]*$ && $restarts =~ ^[0-9]+$ ]] || fail "-n $ranks -r $restarts: expected numbers"
[ "$micro" != 0 ] || micro=$ranks
[[ $micro =~ ^[1-9][0-9]*$ ]] && [ $((micro % ranks)) -eq 0 ] || fail "-m $micro: expected a multiple of $ranks ranks"
[ $# -gt 0 ] || fail "which program?"
[[ " $* " == *" --checkpoint "* ]] || fail "the program needs --checkpoint DIR to go on from"
[[ $comm == gloo || $comm == mpi ]] || fail "-c $comm: expected gloo or mpi"

stopped=0
trap 'stopped=1' INT TERM
for ((restart = 0; ; ++restart)); do
  job=("$@" --comm "$comm" --accumulate $((micro / ranks)))
  [ "$restart" -eq 0 ] || job+=(--resume)
  code=0
  if [ "$comm" = mpi ]; then
    mpirun --oversubscribe -n "$ranks" "${job[@]}" || code=$?
  else
    "$here/launch.sh" -n "$ranks" "${job[@]}" || code=$?
  fi
  case $code in
    0 | 2 | 130) exit $code ;;  # done, told something that makes no sense, interrupted and saved
  esac
  [ $stopped -eq 0 ] || exit 130
  [ "$restart" -lt "$restarts" ] || { echo "supervise.sh: gave up after $restarts restarts" >&2; exit $code; }
  lost=$ranks
  for ((ranks = ranks > 1 ? ranks - 1 : 1; micro % ranks; --ranks)); do :; done
  echo "supervise.sh: the job of $lost ranks ended with code $code; going on from the last checkpoint with $ranks" >&2
done

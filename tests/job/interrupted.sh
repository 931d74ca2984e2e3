#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# How a run ends. A run that is asked to end, directly, through its launcher or through one of its ranks, finishes the step, saves, and
# exits with code 130; resumed, it is bitwise identical. Other codes: 1 failed, 3 failed because of another rank; arguments.sh and
# write_errors.sh test 2.
. "$(dirname "$0")/common.sh"

endless=("${small[@]}" --deterministic --steps 1000000)
last=0
logs=()
wrong() {  # NAME WORDS
  echo "$1: $2"
  tail -n 20 "$at/$1.out"
  exit 1
}
# started NAME COMMAND...: runs it in the background, and returns when it has made some steps; its process is $pid.
started() {
  local name=$1
  shift
  "$@" "${endless[@]}" --log "$at/$name.jsonl" >"$at/$name.out" 2>&1 &
  pid=$!
  until [ -e "$at/$name.jsonl" ] && [ "$(grep -c loss_hex "$at/$name.jsonl")" -ge 3 ]; do
    kill -0 $pid || wrong "$name" "has ended"
    sleep 0.05
  done
}
# signal NAME SIGNAL: sends it to the youngest rank.
signal() { pkill "-$2" -n -f "^$job.*$at/$1.jsonl"; }
# saved NAME: checks that the run ends after a step that is in the log and in the checkpoint.
saved() {
  local code=0 n
  wait $pid || code=$?
  n=$(grep -o "interrupted after step [0-9]*" "$at/$1.out" | grep -o "[0-9]*$") || wrong "$1" "exit code $code"
  [ $code -eq 130 ] || wrong "$1" "exit code $code after step $n"
  [ "$(grep -c loss_hex "$at/$1.jsonl")" -eq "$n" ] || wrong "$1" "the log has another number of steps than $n"
  compgen -G "$at/$1/step-$n.*" >/dev/null || wrong "$1" "step $n is not saved"
  [ "$n" -le $last ] || last=$n
  logs+=("$1")
}

started plain "$job" --accumulate 2 --checkpoint "$at/plain"
kill -TERM $pid
saved plain
started keyboard env --default-signal=INT "$job" --ranks 2 --strategy zero2 --checkpoint "$at/keyboard"
kill -INT $pid
saved keyboard
case " ${WEFT_TEST_COMM:-} " in
  *" gloo "*)
    started launched "$launch" -n 2 "$job" --comm gloo --strategy zero3 --checkpoint "$at/launched"
    kill -TERM $pid
    saved launched
    started one_rank "$launch" -n 2 "$job" --comm gloo --strategy zero2 --checkpoint "$at/one_rank"
    signal one_rank TERM
    saved one_rank
    # shellcheck disable=SC2016
    started lost "$launch" -n 2 bash -c '"$@"; code=$?; echo "a rank ends with $code"; exit $code' rank "$job" --comm gloo
    signal lost KILL
    code=0
    wait $pid || code=$?
    [ $code -eq 137 ] && grep -q "a rank ends with 3" "$at/lost.out" && grep -q "is gone: its process has ended" "$at/lost.out" ||
      wrong lost "exit code $code"
    ;;
esac
case " ${WEFT_TEST_COMM:-} " in
  *" mpi "*)
    started mpi "$launch" -n 2 -c mpi "$job" --comm mpi --strategy zero1 --checkpoint "$at/mpi"
    kill -TERM $pid
    saved mpi
    ;;
esac

# ended NAME COMMAND...: checks that a run asked a second time ends within its long step, and leaves no process behind.
ended() {
  local name=$1 code=0 i
  shift
  timeout -s KILL 300 "$@" "${small[@]}" --accumulate 20000 --log "$at/$name.jsonl" >"$at/$name.out" 2>&1 &
  until [ -s "$at/$name.jsonl" ]; do kill -0 $! || wrong "$name" "has ended"; sleep 0.05; done
  pid=$(pgrep -P $!)
  kill -INT "$pid"
  until grep -q "again ends" "$at/$name.out"; do kill -0 $! || wrong "$name" "has ended"; sleep 0.05; done
  kill -INT "$pid"
  wait $! || code=$?
  [ $code -eq 130 ] && ! grep -q interrupted "$at/$name.out" || wrong "$name" "exit code $code when asked twice"
  for ((i = 0; i < 100; ++i)); do pgrep -f "^$job.*$at/$name.jsonl" >"$at/left" || return 0; sleep 0.1; done
  wrong "$name" "still runs: $(paste -sd' ' "$at/left")"
}
ended threads_twice env --default-signal=INT "$job" --ranks 2
for comm in ${WEFT_TEST_COMM:-}; do
  ended "${comm}_twice" "$launch" -n 2 -c "$comm" "$job" --comm "$comm"
done

code=0
"$job" "${small[@]}" --steps 40 --lr 1e30 >"$at/not_finite.out" 2>&1 || code=$?
[ $code -eq 1 ] && grep -q "the loss is not finite; first: h.0" "$at/not_finite.out" || wrong not_finite "exit code $code"

endless[-1]=$((last + 20))
train whole "${endless[@]}" --accumulate 2
for name in "${logs[@]}"; do  # resumed by one process, whatever ranks saved
  train "$name" "${endless[@]}" --accumulate 2 --checkpoint "$at/$name" --resume
done
same_bits whole "${logs[@]}"

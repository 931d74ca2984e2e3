# SPDX-License-Identifier: MIT
# Common code of the tests of the main job. Each is called as NAME.sh TRAIN_GPT LAUNCH FOLDER from the top level, and empties FOLDER.
# WEFT_TEST_COMM holds the transports between processes that train_gpt was built with: mpi, gloo.
# shellcheck shell=bash disable=SC2034
set -euo pipefail
job=$1 launch=$2 at=$3
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
rm -rf "$at" && mkdir -p "$at"
# Words to train on, the same on every machine and in every version.
text=$at/words.txt
awk 'BEGIN {
  s = 1
  for (w = 0; w < 2000; ++w) {
    word = ""
    s = (s * 1103 + 12345) % 65536
    for (left = 2 + s % 7; left > 0; --left) {
      s = (s * 1103 + 12345) % 65536
      word = word substr("etaoinshrdlucmfwypvbgk", 1 + int(s / 8) % 22, 1)
    }
    printf "%s%s", word, w % 12 == 11 ? "\n" : " "
  }
}' >"$text"
small=(--data "$text" --layers 2 --heads 2 --width 32 --context 16 --batch 4 --threads 1 --lr 3e-3)

# run NAME COMMAND...: writes the output to FOLDER/NAME.out, and shows it if the command fails.
run() {
  local name=$1 code=0
  shift
  "$@" >"$at/$name.out" 2>&1 || code=$?
  [ $code -eq 0 ] || { echo "$name: exit code $code of $*"; tail -n 20 "$at/$name.out"; return 1; }
}
# train NAME FLAGS...: trains, and logs to FOLDER/NAME.jsonl.
train() { run "$1" "$job" "${@:2}" --log "$at/$1.jsonl"; }
# same_bits [--within RELATIVE] NAME...: checks that logs have the losses of the first one; see check_logs.py.
same_bits() {
  local within=() logs=()
  [ "$1" != --within ] || { within=("$1" "$2"); shift 2; }
  logs=("${@/#/$at/}")
  logs=("${logs[@]/%/.jsonl}")
  "${PYTHON:-python3}" tests/job/check_logs.py "${within[@]}" "${logs[@]}"
}

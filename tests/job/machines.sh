#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Ranks on two machines, simulated by network namespaces: bitwise identical to one process; a machine that is gone is named; a supervised
# job continues without it, and uses it again when it is back. Needs root.
. "$(dirname "$0")/common.sh"

for needed in ip ssh /usr/sbin/sshd; do
  command -v $needed >/dev/null || { echo "$needed is not on this machine"; exit 77; }
done
[ "$(id -u)" = 0 ] || { echo "only root makes network namespaces"; exit 77; }
two_machines=(tests/job/two_machines.sh "$launch" -H 10.77.0.1,10.77.0.2)
many=("${small[@]}" --deterministic)
train one "${many[@]}" --steps 20 --accumulate 4
for comm in ${WEFT_TEST_COMM:-}; do
  run "$comm" "${two_machines[@]}" -n 4 "$job" "${many[@]}" --steps 20 --comm "$comm" --strategy zero3 --log "$at/$comm.jsonl"
  same_bits one "$comm"
done
case " ${WEFT_TEST_COMM:-} " in *" gloo "*) ;; *) exit 0 ;; esac
(
  for ((i = 0; i < 600; ++i)); do
    [ -e "$at/cut.jsonl" ] && [ "$(grep -c loss_hex "$at/cut.jsonl")" -ge 3 ] && exec ip -n weft2 link set cable down
    sleep 0.1
  done
) &
cut=$!
timeout -k 5 90 "${two_machines[@]}" -n 2 bash -c 'exec "$@" 2>"$0.$OMPI_COMM_WORLD_RANK"' "$at/cut" "$job" "${many[@]}" --steps 1000000 \
  --comm gloo --strategy zero3 --timeout 5 --log "$at/cut.jsonl" >"$at/cut.out" 2>&1 || true
wait $cut
for rank in 0 1; do  # each side names the other
  grep -Eo "(rank $rank waited .*not there: |weft: )rank $((1 - rank))(,| does not| is gone).*" "$at/cut.$rank" ||
    { tail -n 20 "$at"/cut.[01] "$at/cut.out"; exit 1; }
done

for comm in $WEFT_TEST_COMM; do
  log=$at/grown_$comm.jsonl
  timeout -k 5 600 "${two_machines[@]}" -n 4 -r 9 -m 4 -b 3 -g 5 -c "$comm" "$job" "${many[@]}" --steps 1000000 --strategy zero2 --timeout 5 \
    --checkpoint "$at/grown_$comm" --checkpoint-every 10 --log "$log" >"$at/grown_$comm.out" 2>&1 &
  supervised=$!
  trap 'kill $supervised 2>/dev/null || true' EXIT
  until_log() {  # WORDS NUMBER: waits until this many lines contain WORDS
    until [ -e "$log" ] && [ "$(grep -c "$1" "$log")" -ge "$2" ]; do
      kill -0 $supervised 2>/dev/null || { tail -n 40 "$at/grown_$comm.out"; exit 1; }
      sleep 0.2
    done
  }
  more() { until_log loss_hex $(($(grep -c loss_hex "$log") + 5)); }
  until_log '"accumulate": 1,' 1 && more
  ip -n weft2 link set cable down
  until_log '"accumulate": 2,' 1 && more  # on two ranks
  ip -n weft2 link set cable up
  until_log '"accumulate": 1,' 2 && more
  pkill -TERM -f "^$launch .*$log"
  code=0
  wait $supervised || code=$?
  n=$(grep -o "interrupted after step [0-9]*" "$at/grown_$comm.out" | tail -n 1 | grep -o "[0-9]*$")
  [ $code -eq 130 ] && compgen -G "$at/grown_$comm/step-$n.*" >/dev/null ||
    { echo "exit code $code after step $n"; tail -n 40 "$at/grown_$comm.out"; exit 1; }
  grep "going on" "$at/grown_$comm.out"
  train "undisturbed_$comm" "${many[@]}" --steps $((n + 20)) --accumulate 4
  train "grown_$comm" "${many[@]}" --steps $((n + 20)) --accumulate 4 --checkpoint "$at/grown_$comm" --resume
  same_bits "undisturbed_$comm" "grown_$comm"
done

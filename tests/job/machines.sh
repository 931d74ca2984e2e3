#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Ranks on two machines, in namespaces of this one: the same bits as a process alone; a machine that is gone is named. Needs root.
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

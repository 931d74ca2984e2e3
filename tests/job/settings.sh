#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# --help names exactly the flags that are parsed; --eval-every and --eval-data.
. "$(dirname "$0")/common.sh"

flags() { grep -o -e '--[a-z][a-z0-9-]*' | sort -u; }
"$job" --help | flags >"$at/described"
grep -oE ' a\.[a-z]+(<[^>]*>)?\("[a-z0-9-]+"' examples/train_gpt_settings.hpp | sed 's/.*"\(.*\)"/--\1/' | flags >"$at/parsed"
diff "$at/described" "$at/parsed" || { echo "the help text and the parser name different flags"; exit 1; }

figures() { grep -o '"eval_loss": [0-9.e+-]*' "$at/$1.jsonl"; }
tr 'a-y' 'b-z' <"$text" >"$at/other.txt"
train own "${small[@]}" --steps 20 --eval-every 10
train named "${small[@]}" --steps 20 --eval-every 10 --eval-data "$text"
train other "${small[@]}" --steps 20 --eval-every 10 --eval-data "$at/other.txt"
same_bits own named other  # evaluation does not change training
[ "$(figures own | wc -l)" -eq 2 ] || { echo "not evaluated every ten steps"; exit 1; }
[ "$(figures own)" = "$(figures named)" ] || { echo "--eval-data is not --data by default"; exit 1; }
[ "$(figures own)" != "$(figures other)" ] || { echo "--eval-data is not read"; exit 1; }

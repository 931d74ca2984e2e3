#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# A file that must not compile. Its comments say what the compiler must print within how many lines, and how many
# it may print, not counting source lines that it quotes:
#   // within 12: the sentence
#   // at most 20 lines
set -u
compiler=$1 include=$2 precompiled=$3 file=$4
flags=(-std=c++20 -fsyntax-only -I"$precompiled" -I"$include")  # g++ finds precompiled headers by itself
[ ! -e "$precompiled/weft.pch" ] || flags+=(-include-pch "$precompiled/weft.pch")
output=$("$compiler" "${flags[@]}" "$file" 2>&1)
if [ $? -eq 0 ]; then echo "$file compiles, but must not"; exit 1; fi
output=$(grep -vE '^ +([0-9]+ )?\|' <<<"$output")
status=0
while read -r lines text; do
  if ! head -n "$lines" <<<"$output" | grep -qF -- "$text"; then
    echo "not within the first $lines lines: $text"; status=1
  fi
done < <(sed -n 's|^// within \([0-9]*\): |\1 |p' "$file")
most=$(sed -n 's|^// at most \([0-9]*\) lines$|\1|p' "$file")
if [ -n "$most" ] && [ "$(wc -l <<<"$output")" -gt "$most" ]; then
  echo "$(wc -l <<<"$output") lines are printed, at most $most may be"; status=1
fi
[ $status -eq 0 ] || head -n 30 <<<"$output"
exit $status

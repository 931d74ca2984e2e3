#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The README's two commands on a bare system, from a fresh clone of the last commit. Needs root and debootstrap.
#
#   bare.sh bookworm|trixie FOLDER
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p "$2"
suite=$1 root=$(cd "$2" && pwd)/$1 code=0
[ -x "$root/usr/bin/apt-get" ] || debootstrap --variant=minbase "$suite" "$root" >"$root.log"
rm -rf "$root/weft" && git clone -q . "$root/weft"
mountpoint -q "$root/proc" || mount -t proc proc "$root/proc"
mountpoint -q "$root/sys" || mount -t sysfs -o ro sys "$root/sys"  # PoCL, Open MPI and Gloo abort without it
chroot "$root" env -i PATH="$PATH" HOME=/root STEPS=50 /weft/examples/quickstart.sh &&
  chroot "$root" env -i PATH="$PATH" HOME=/root /weft/tests/run.sh || code=$?
umount "$root/proc" "$root/sys"
exit $code

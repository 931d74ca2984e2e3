#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Simulates two machines on one: network namespaces weft1 and weft2, connected by a virtual cable, with an ssh server in each. Runs a
# command on the first. Needs root, iproute2 and openssh.
#
#   tests/job/two_machines.sh build/gcc/examples/launch -n 4 -H 10.77.0.1,10.77.0.2 build/gcc/examples/train_gpt --comm mpi ...
set -euo pipefail

at=$(mktemp -d)
end() {
  local n
  for n in 1 2; do
    ip netns pids weft$n 2>/dev/null | xargs -r kill -9
    ip netns del weft$n 2>/dev/null || true
  done
  rm -rf "$at"
}
trap end EXIT
trap 'exit 143' TERM INT

ip netns add weft1
ip netns add weft2
ip link add cable netns weft1 type veth peer name cable netns weft2
mkdir -p /run/sshd
ssh-keygen -q -t ed25519 -N "" -f "$at/key"
for n in 1 2; do
  ip -n weft$n addr add 10.77.0.$n/24 dev cable
  ip -n weft$n link set cable up
  ip -n weft$n link set lo up
  ip netns exec weft$n unshare --uts sh -c "hostname weft$n && exec /usr/sbin/sshd -f /dev/null -o ListenAddress=10.77.0.$n -o HostKey=$at/key \
    -o AuthorizedKeysFile=$at/key.pub -o StrictModes=no -o PermitRootLogin=yes -o UsePAM=no"
done
export OMPI_MCA_plm_rsh_agent="ssh -q -i $at/key -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
ip netns exec weft1 unshare --uts sh -c 'hostname weft1 && exec "$@"' sh "$@" &
wait $!  # so that a signal ends the wait

#!/bin/sh
# Runs once in the booted machine, before it is snapshot: first-boot.sh
set -eu
# made here because a swap file may have no holes, and the image is written sparse
fallocate -l 512M /swap.img
chmod 0600 /swap.img
mkswap /swap.img
echo '/swap.img none swap sw 0 0' >>/etc/fstab
systemctl daemon-reload
swapon -a

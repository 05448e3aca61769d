#!/bin/sh
# make-disk FD: the tar archive on standard input becomes an ext4 file system in the open file FD
set -eu
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
# without device nodes: an ordinary user can make none, and the kernel makes its own at boot
tar -x --numeric-owner --exclude='./dev/*' -f - -C "$tree"
# written in full now: a kernel thread would otherwise do it during the first boot
mkfs.ext4 -q -F -d "$tree" -E lazy_itable_init=0,lazy_journal_init=0 "/proc/self/fd/$1"

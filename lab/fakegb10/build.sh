#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Runs in a fresh root file system of the kernel's own release: build.sh KERNEL DEBIAN-ARCHITECTURE KERNEL-ARCHITECTURE
# [CROSS-PREFIX]. Builds the module and the engine in /build.
set -eu
kernel=$1 debian=$2 arch=$3 cross=${4-}

cd /build
# As packages the headers want their kernel installed and an initrd made, which takes longer than all the rest.
apt-get -q download "linux-headers-$kernel:$debian" "linux-headers-${kernel%-"$debian"}-common"
depends=$(dpkg-deb --field "linux-headers-${kernel}_"*.deb Depends)
for package in linux-headers-*.deb; do
    # only this part: the archive's ./lib would replace the link of that name
    dpkg-deb --fsys-tarfile "$package" | tar --extract --directory=/ ./usr/src
done
kbuild=$(printf '%s' "$depends" | grep -o 'linux-kbuild-[^ ,]*')
DEBIAN_FRONTEND=noninteractive apt-get -q install --yes --no-install-recommends make "$kbuild" \
    "gcc$(printf %s "${cross:+-${cross%-}}" | tr _ -)" "libc6-dev${cross:+-$debian-cross}"

# of -Wextra not what every kernel interface dictates, and not what Linux 6.1's own headers do
warnings='-Wall -Wextra -Wno-unused-parameter -Wno-type-limits -Wno-sign-compare -Werror'
make -C "/usr/src/linux-headers-$kernel" M=/build ARCH="$arch" CROSS_COMPILE="$cross" \
    KCFLAGS="$warnings" CONFIG_DEBUG_INFO_BTF_MODULES= modules
"${cross}strip" --strip-debug fakegb10.ko
# static, so that it has no page in memory that it does not use
"${cross}gcc" -static -O2 -Wall -Wextra -Werror -o engine engine.c
"${cross}strip" engine

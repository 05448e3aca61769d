#!/bin/sh
# Runs in the new root file system, after the packages are installed: install.sh
set -eu

useradd --create-home --shell /bin/bash admin
# Debian has a group of this name already
useradd --create-home --shell /bin/bash --gid operator operator
echo 'operator:plimsoll' | chpasswd
for user in root admin operator; do
    home=$(getent passwd "$user" | cut -d: -f6)
    install -d -m 0700 -o "$user" -g "$(id -gn "$user")" "$home/.ssh"
    install -m 0600 -o "$user" -g "$(id -gn "$user")" /etc/lab/authorized_key "$home/.ssh/authorized_keys"
done
chmod 0440 /etc/sudoers.d/lab

# one host key, known to the host before the first login
rm -f /etc/ssh/ssh_host_*
mv /etc/lab/ssh_host_ed25519_key /etc/lab/ssh_host_ed25519_key.pub /etc/ssh/
chmod 0600 /etc/ssh/ssh_host_ed25519_key

mkdir -p /var/lib/systemd/linger /var/log/journal
touch /var/lib/systemd/linger/admin

systemctl enable systemd-networkd.service lab-shell.service ssh.service
# nothing may need the network to finish booting
systemctl mask systemd-networkd-wait-online.service
# A restored clock jumps by days and would fire these at once; e2scrub_reap alone took 17 s of a boot.
systemctl mask e2scrub_reap.service e2scrub_all.timer apt-daily.timer apt-daily-upgrade.timer \
    dpkg-db-backup.timer fstrim.timer logrotate.timer
# each costs 0.3 to 3 s of a boot under software emulation and serves hardware that is not there
systemctl mask systemd-binfmt.service systemd-network-generator.service systemd-pstore.service \
    systemd-udev-load-credentials.service modprobe@drm.service modprobe@efi_pstore.service getty@tty1.service
mkdir -p /etc/systemd/system-generators
ln -s /dev/null /etc/systemd/system-generators/systemd-ssh-generator

# the name server of QEMU's user network
echo 'nameserver 10.0.2.3' >/etc/resolv.conf
echo gx10 >/etc/hostname
printf '127.0.0.1 localhost\n127.0.1.1 gx10\n' >/etc/hosts

apt-get clean
apt-get install --yes --download-only earlyoom
# Packing the image gives newer files its own time. apt rebuilds its cache, 13 s under emulation, when a list is not
# of the time that the cache remembers: an old one is left as it is.
find /var/lib/apt/lists /var/lib/dpkg/status -type f -exec touch --date=2020-01-01 {} +
apt-get -qq check
rm -r /etc/lab /usr/local/lib/lab/install.sh

# a proxy on the host's own loopback has this address for the machine
proxies=/etc/apt/apt.conf.d/99mmdebstrap
[ ! -e "$proxies" ] || sed -i -E 's,://(localhost|127\.0\.0\.1)([:/]),://10.0.2.2\2,' "$proxies"

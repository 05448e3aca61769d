#!/bin/sh
# Runs in the booted machine, which is rebooted afterwards: arranges ssh as Ubuntu 24.04 ships it. systemd listens;
# the first connection starts sshd, which takes over the socket, and ssh.service cannot start without it.
set -eu

# The socket hands over its listener only to an sshd that looks for one.
grep -q LISTEN_FDS /usr/sbin/sshd || {
    echo 'this sshd does not take a socket from systemd' >&2
    exit 1
}

cat >/etc/systemd/system/ssh.socket <<'UNIT'
[Unit]
Description=OpenBSD Secure Shell server socket
Before=sockets.target ssh.service
ConditionPathExists=!/etc/ssh/sshd_not_to_be_run

[Socket]
ListenStream=0.0.0.0:22
ListenStream=[::]:22
BindIPv6Only=ipv6-only
Accept=no
FreeBind=yes

[Install]
WantedBy=sockets.target
RequiredBy=ssh.service
UNIT

# a reload of systemd takes seconds under software emulation, and a reboot follows
systemctl --no-reload disable ssh.service
systemctl --no-reload enable ssh.socket
test -L /etc/systemd/system/ssh.service.requires/ssh.socket

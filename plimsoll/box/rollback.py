"""A way back that needs nobody: armed before sshd is touched, disarmed once a fresh login was proven.

It is a unit on disk, so that it also fires at the next boot when the power is cut in between: until
somebody has disarmed it, the change it guards does not survive.
"""

import os

from plimsoll.box import actions, files
from plimsoll.box.host import Host
from plimsoll.box.state import ROLLBACK

NAME = "plimsoll-rollback"
DIRECTORY = "/etc/systemd/system"
SERVICE = ROLLBACK
TIMER = f"{DIRECTORY}/{NAME}.timer"
WANTED_BY = f"{DIRECTORY}/multi-user.target.wants/{NAME}.service"

_SERVICE = """\
# Written by plimsoll while it changes the layer {layer}; goes away when a fresh login was proven.
# Undo by hand: plimsoll rollback disarm
[Unit]
Description=Take back the layer {layer} of Plimsoll, which nobody confirmed
After=local-fs.target

[Service]
Type=oneshot
ExecStart=/usr/local/bin/plimsoll rollback fire --layer {layer}
"""
_TIMER = """\
# Written by plimsoll while it changes the layer {layer}; goes away when a fresh login was proven.
[Unit]
Description=Take back the layer {layer} of Plimsoll unless a fresh login is proven in time

[Timer]
OnActiveSec={delay_s}s
AccuracySec=1s
"""


def arm(host: Host, layer: str, delay_s: int) -> str:
    """Put the way back on disk and start its timer; raises OSError or ActionError, then nothing is armed.

    One that an earlier run has armed, and that may be waiting to take its turn, is replaced.
    """
    host.run("systemctl", "stop", f"{NAME}.timer", f"{NAME}.service")
    for path, text in ((SERVICE, _SERVICE), (TIMER, _TIMER)):
        files.sweep(host.path(path))
        files.write_atomically(host.path(path), text.format(layer=layer, delay_s=delay_s).encode(), 0o644)
    files.make_directories(host.path(os.path.dirname(WANTED_BY)))
    if not os.path.islink(host.path(WANTED_BY)):
        os.symlink(SERVICE, host.path(WANTED_BY))
        files.sync_directory(host.path(os.path.dirname(WANTED_BY)))
    if not _is_fresh(host):
        actions.ACTIONS["daemon-reload"].perform(host)
    actions.ACTIONS["restart"].perform(host, f"{NAME}.timer")
    return f"armed: the layer {layer} is taken back in {delay_s} s, and at the next boot, unless disarmed"


def _is_fresh(host: Host) -> bool:
    """Say whether systemd has both units as they are on disk: it reads one that it does not know when asked for it."""
    shown = host.run("systemctl", "show", "-p", "LoadState,NeedDaemonReload", "--", f"{NAME}.timer", f"{NAME}.service")
    return sorted(shown.out.split()) == ["LoadState=loaded"] * 2 + ["NeedDaemonReload=no"] * 2


def is_armed(host: Host) -> bool:
    """Say whether a way back waits to fire, or a part of one was left by a run that was cut off."""
    return any(os.path.lexists(host.path(path)) for path in (WANTED_BY, TIMER, SERVICE))


def disarm(host: Host) -> str:
    """Take the way back off the disk; harmless where none is armed."""
    if not is_armed(host):
        return "nothing was armed"
    host.run("systemctl", "stop", f"{NAME}.timer")
    for path in (WANTED_BY, TIMER, SERVICE):
        files.sweep(host.path(path))
        if os.path.lexists(host.path(path)):
            os.unlink(host.path(path))
            files.sync_directory(host.path(os.path.dirname(path)))
    actions.ACTIONS["daemon-reload"].perform(host)
    return "disarmed"

"""Hands hosts and groups to pyinfra: `pyinfra inventory/hosts.py deploy.py --limit spark`.

pyinfra takes every list in this file for a group, so that nothing else may be left here under a public name.
"""

from plimsoll import inventory as _inventory

_CONNECTION = {"ssh_hostname": "address", "ssh_port": "port", "ssh_user": "user"}


def _connection(host: _inventory.Host) -> dict[str, str | int]:
    """Say only what the inventory says: the rest is left to ~/.ssh/config."""
    data = {key: getattr(host, attribute) for key, attribute in _CONNECTION.items()}
    return {key: value for key, value in data.items() if value is not None}


def _groups() -> dict[str, list[tuple[str, dict[str, str | int]]]]:
    loaded = _inventory.load_or_exit()
    # `hosts`, pyinfra's group for this file, carries the connection data and hosts that are in no group
    members = {"hosts": tuple(loaded.hosts), **loaded.groups}
    return {
        group: [(name, _connection(loaded.hosts[name])) for name in sorted(names)]
        for group, names in sorted(members.items())
    }


globals().update(_groups())

"""Which files decide about a unit and about systemd itself: each table row was seen with systemd 252 and 257."""

from typing import Any

import pytest

from plimsoll.box.resolve_units import (
    UNIT_DIRECTORIES,
    drop_in_directories,
    is_masked,
    manager_files_in_order,
    unit_files_in_order,
)
from tests.unit.builders import file, masked


@pytest.mark.parametrize(
    ("unit", "expected"),
    [
        ("ssh.service", ["ssh.service.d", "service.d"]),
        ("a-b.service", ["a-b.service.d", "a-.service.d", "service.d"]),
        ("a-b-c.slice", ["a-b-c.slice.d", "a-b-.slice.d", "a-.slice.d", "slice.d"]),
        ("user@.service", ["user@.service.d", "service.d"]),
        ("a-b@.service", ["a-b@.service.d", "a-.service.d", "service.d"]),
        ("a@c.service", ["a@c.service.d", "a@.service.d", "service.d"]),
        (
            "a-b@c.service",
            ["a-b@c.service.d", "a-b@.service.d", "a-.service.d", "a-@c.service.d", "a-@.service.d", "service.d"],
        ),
        ("system.slice", ["system.slice.d", "slice.d"]),
    ],
)
def test_drop_in_directories(unit: str, expected: list[str]) -> None:
    """A unit's drop-ins come from its own directory, its template's, its dashed prefixes' and its type's."""
    assert drop_in_directories(unit) == expected


def test_only_the_first_fragment_counts() -> None:
    """The fragment in /etc replaces the vendor's; drop-ins follow by name; what lies in /run is gone after a reboot."""
    files = {
        "fragments": [file("/run/systemd/system/x.service", "r"), file("/etc/x", "e"), file("/usr/x", "u")],
        "drop_ins": [file("/etc/d/z.conf", ""), file("/run/d/y.conf", ""), file("/usr/d/a.conf", "")],
    }
    assert [f["path"] for f in unit_files_in_order(files)] == ["/etc/x", "/usr/d/a.conf", "/etc/d/z.conf"]


def test_masked_fragment_keeps_the_drop_ins() -> None:
    """A unit whose fragment is a link to /dev/null has only its drop-ins."""
    files = {"fragments": [masked("/etc/x"), file("/usr/x", "")], "drop_ins": [file("/etc/d/z.conf", "")]}
    assert [f["path"] for f in unit_files_in_order(files)] == ["/etc/d/z.conf"]


def test_as_it_is_now() -> None:
    """Before a reboot what lies in /run counts, and hides its namesakes."""
    files = {
        "fragments": [file("/run/systemd/system/x.service", "r"), file("/usr/x", "u")],
        "drop_ins": [file("/run/d/a.conf", ""), file("/usr/d/a.conf", "")],
    }
    now = unit_files_in_order(files, rebooted=False)
    assert [f["path"] for f in now] == ["/run/systemd/system/x.service", "/run/d/a.conf"]


@pytest.mark.parametrize(
    ("fragments", "now", "rebooted"),
    [
        ([], False, False),
        ([file("/etc/x", "[Unit]"), masked("/usr/x")], False, False),
        ([masked("/etc/x"), file("/usr/x", "[Unit]")], True, True),
        ([file("/etc/x", ""), file("/usr/x", "[Unit]")], True, True),
        ([masked("/run/x"), file("/usr/x", "[Unit]")], True, False),
        ([file("/run/x", "[Unit]"), masked("/usr/x")], False, True),
        ([{"path": "/etc/x", "error": "Input/output error"}], False, False),
    ],
)
def test_masked(fragments: list[dict[str, Any]], now: bool, rebooted: bool) -> None:
    """A unit is masked by a link to /dev/null or an empty file in the place of the fragment that counts."""
    files = {"fragments": fragments, "drop_ins": []}
    assert (is_masked(files, rebooted=False), is_masked(files)) == (now, rebooted)


ETC, RUN, USR = "/etc/systemd/{}.conf", "/run/systemd/{}.conf", "/usr/lib/systemd/{}.conf"


@pytest.mark.parametrize(
    ("name", "version", "mains", "expected"),
    [
        ("system", "257.13-1", [file(ETC, "e"), file(USR, "u")], [ETC]),
        ("system", "257.13-1", [file(USR, "u")], [USR]),
        ("system", "257.13-1", [file(RUN, "r"), file(USR, "u")], [USR]),
        ("system", "257.13-1", [masked(ETC), file(USR, "u")], []),
        ("system", "257.13-1", [file(ETC, ""), file(USR, "u")], [ETC]),
        ("system", "255.4-1ubuntu8", [file(USR, "u")], []),
        ("system", "252.39-1~deb12u2", [file(ETC, "e"), file(USR, "u")], [ETC]),
        ("system", "", [file(USR, "u")], [USR]),
        ("journald", "257", [file(USR, "u")], [USR]),
        ("user", "257", [file(USR, "u")], []),
        ("user", "257", [file(ETC, "e"), file(USR, "u")], [ETC]),
    ],
)
def test_main_file(name: str, version: str, mains: list[dict[str, Any]], expected: list[str]) -> None:
    """The first main file counts; before systemd 256, and for user managers still, only one in /etc does."""
    drop_in = file("/usr/lib/systemd/x.conf.d/a.conf", "")
    found = manager_files_in_order(name, {"mains": mains, "drop_ins": [drop_in]}, version)
    assert [f["path"] for f in found] == [*expected, drop_in["path"]]


def test_directories_of_units() -> None:
    """What `set-property` writes goes before what people write, and that before what packages bring."""
    ordered = [UNIT_DIRECTORIES.index(f"{d}/systemd/system") for d in ("/etc", "/run", "/usr/local/lib", "/usr/lib")]
    assert UNIT_DIRECTORIES[0] == "/etc/systemd/system.control"
    assert ordered == sorted(ordered)

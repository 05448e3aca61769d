"""Everybody with a say on a control, in the order of reading, and what became of each line."""

from typing import Any

import pytest

from plimsoll.box.chain import Link, chain
from plimsoll.box.model import Kind, Wanted
from tests.unit.builders import file, masked, ours, state, sysctl, unit, unit_property, unreadable

OURS = "/etc/sysctl.d/zz-plimsoll.conf"
ETC, RUN, USR = "/etc/sysctl.d", "/run/sysctl.d", "/usr/lib/sysctl.d"
PANIC = sysctl("kernel.panic", "20")
DROP_IN = "/etc/systemd/system/x.service.d/plimsoll.conf"
SCORE = unit_property("x.service", "OOMScoreAdjust", "-1000")


def _sysctl(*files: dict[str, Any], **others: Any) -> list[Link]:  # noqa: ANN401  # files of any kind
    found = {"sysctl_d": list(files), "etc_sysctl_conf": None, "ufw": None, "tuned": [], **others}
    return chain(PANIC, state(sysctl_files=found))


def _unit(control: Wanted = SCORE, **changes: Any) -> list[Link]:  # noqa: ANN401  # any field of a unit
    return chain(control, state(units={control.target: unit(**changes)}))


def test_ours_alone() -> None:
    """Our own file that decides is said to be ours."""
    assert _sysctl(file(OURS, "# x\nkernel.panic = 20\n")) == [Link(OURS, 2, "20", "ours")]


def test_who_overrides_whom() -> None:
    """All that name a key come in their order; the last one decides, and ours then is one of the overridden."""
    late = file(f"{ETC}/zzz.conf", "kernel.panic=0\nkernel/panic=1\n")
    early = file(f"{USR}/10-a.conf", "kernel.*=5\nkernel.sysrq=1\n")
    assert _sysctl(late, file(OURS, "kernel.panic=20"), early) == [
        Link(f"{USR}/10-a.conf", 1, "5", "overridden"),
        Link(OURS, 1, "20", "overridden"),
        Link(f"{ETC}/zzz.conf", 1, "0", "overridden"),
        Link(f"{ETC}/zzz.conf", 2, "1", "decides"),
    ]


def test_who_hides_whom() -> None:
    """A file that a namesake hides says which, and one in /run neither counts nor hides after a reboot."""
    files = [masked(f"{ETC}/a.conf"), file(f"{USR}/a.conf", "kernel.panic=1")]
    files += [file(f"{RUN}/b.conf", "kernel.panic=2"), file(f"{USR}/b.conf", "kernel.panic=3")]
    assert _sysctl(*files) == [
        Link(f"{USR}/a.conf", 1, "1", "hidden", f"{ETC}/a.conf"),
        Link(f"{USR}/b.conf", 1, "3", "decides"),
        Link(f"{RUN}/b.conf", 1, "2", "not read at boot"),
    ]


def test_a_line_that_takes_back_decides() -> None:
    """Where a bare key takes back what was set, that line decides that nothing is set."""
    found = _sysctl(file(f"{ETC}/a.conf", "kernel.panic=1\n-kernel.panic\n"))
    assert [(link.value, link.role) for link in found] == [("1", "overridden"), (None, "decides")]


def test_others_than_systemd() -> None:
    """Ufw's file comes last at boot; sysctl.conf is not read unless a link leads there; tuned sets while it runs."""
    others = {
        "ufw": file("/etc/ufw/sysctl.conf", "kernel/panic=3"),
        "etc_sysctl_conf": file("/etc/sysctl.conf", "kernel.panic=4"),
        "tuned": [file("/etc/tuned/p/tuned.conf", "[sysctl]\nkernel.panic=5")],
    }
    assert _sysctl(file(OURS, "kernel.panic=20"), **others) == [
        Link(OURS, 1, "20", "overridden"),
        Link("/etc/ufw/sysctl.conf", 1, "3", "decides"),
        Link("/etc/sysctl.conf", 1, "4", "not read at boot"),
        Link("/etc/tuned/p/tuned.conf", 2, "5", "set at run time"),
    ]
    linked = {**file(f"{ETC}/99-sysctl.conf", "kernel.panic=4"), "link": "../sysctl.conf"}
    found = _sysctl(linked, etc_sysctl_conf=others["etc_sysctl_conf"])
    assert found == [Link(f"{ETC}/99-sysctl.conf", 1, "4", "decides")]


def test_unreadable_file_is_in_the_chain() -> None:
    """A file that could not be read may have a say: it is named."""
    assert _sysctl(unreadable(f"{ETC}/a.conf")) == [Link(f"{ETC}/a.conf", 0, None, "unreadable")]


def test_unit() -> None:
    """A vendor's fragment, a hidden one, a refused value and a drop-in of ours, each with its role."""
    found = _unit(
        fragments=[
            file("/etc/systemd/system/x.service", "[Service]\nOOMScoreAdjust=1"),
            file("/usr/lib/systemd/system/x.service", "[Service]\nOOMScoreAdjust=2"),
        ],
        drop_ins=[
            file(DROP_IN, "[Service]\nOOMScoreAdjust=-1000"),
            file("/etc/systemd/system/x.service.d/z.conf", "[Service]\nOOMScoreAdjust=lots"),
        ],
    )
    assert found == [
        Link("/etc/systemd/system/x.service", 2, "1", "overridden"),
        Link("/usr/lib/systemd/system/x.service", 2, "2", "hidden", "/etc/systemd/system/x.service"),
        Link(DROP_IN, 2, "-1000", "ours"),
        Link("/etc/systemd/system/x.service.d/z.conf", 2, "lots", "refused"),
    ]


def test_masked_unit() -> None:
    """Of a masked unit nothing counts but the mask."""
    found = _unit(
        fragments=[masked("/etc/x.service"), file("/usr/x.service", "[Service]\nOOMScoreAdjust=2")],
        drop_ins=[file(DROP_IN, "[Service]\nOOMScoreAdjust=-1000")],
    )
    assert found == [
        Link("/etc/x.service", 0, "masked", "decides"),
        Link("/usr/x.service", 2, "2", "hidden", "/etc/x.service"),
        Link(DROP_IN, 2, "-1000", "hidden", "/etc/x.service"),
    ]


def test_unit_masked_until_the_next_boot() -> None:
    """A mask in /run is gone after a reboot: the fragment below it decides again."""
    fragments = [masked("/run/x.service"), file("/usr/x.service", "[Service]\nOOMScoreAdjust=2")]
    assert _unit(fragments=fragments) == [Link("/usr/x.service", 2, "2", "decides")]


def test_state_of_a_unit() -> None:
    """Who decides about a unit's state is its fragment, or what masks it."""
    control = Wanted("x/state", "x", Kind.UNIT_STATE, "x.service", "masked inactive")
    vendors = file("/usr/x.service", "[Unit]")
    assert _unit(control, fragments=[vendors]) == [Link("/usr/x.service", 0, None, "decides")]
    assert _unit(control, fragments=[masked("/etc/x.service"), vendors]) == [
        Link("/etc/x.service", 0, "masked", "decides"),
        Link("/usr/x.service", 0, None, "hidden", "/etc/x.service"),
    ]


def _manager(name: str, version: str) -> list[Link]:
    control = Wanted("x", "x", Kind.MANAGER_PROPERTY, name, "0", name="DefaultOOMScoreAdjust", section="Manager")
    text = "[Manager]\nDefaultOOMScoreAdjust={}"
    files = {
        "mains": [file(f"/usr/lib/systemd/{name}.conf", text.format(1))],
        "drop_ins": [file(f"/etc/systemd/{name}.conf.d/a.conf", text.format(2))],
    }
    every: dict[str, Any] = {"system": {}, "user": {}, "journald": {}, name: files}
    return chain(control, state(manager_files=every, manager={"Version": version}))


@pytest.mark.parametrize(
    ("name", "version", "role"),
    [("system", "257", "overridden"), ("user", "257", "not read at boot"), ("system", "252", "not read at boot")],
)
def test_manager(name: str, version: str, role: str) -> None:
    """A main file outside of /etc is one more that is overridden, where this release reads it there at all."""
    assert [(link.value, link.role) for link in _manager(name, version)] == [("1", role), ("2", "decides")]


def test_command_line() -> None:
    """What a daemon is started with comes from its last ExecStart and from the files of its variables."""
    control = Wanted("e/args", "e", Kind.CMDLINE, "x.service", "[]", file="/etc/default/x")
    found = _unit(
        control,
        fragments=[file("/usr/x.service", "[Service]\nExecStart=/x")],
        drop_ins=[file("/etc/d/a.conf", "[Service]\nExecStart=\nExecStart=/x $ARGS")],
        environment={"variables": {"ARGS": {"value": "-m 5", "file": "/etc/default/x", "line": 3}}},
    )
    assert found == [
        Link("/usr/x.service", 2, "/x", "overridden"),
        Link("/etc/d/a.conf", 2, "", "overridden"),
        Link("/etc/d/a.conf", 3, "/x $ARGS", "decides"),
        Link("/etc/default/x", 3, "-m 5", "ours"),
    ]


@pytest.mark.parametrize(("booted", "roles"), [("", ["ours"]), ("nvidia.pools=1", ["overridden", "decides"])])
def test_option_of_a_module(booted: str, roles: list[str]) -> None:
    """The kernel's command line comes after every file."""
    control = Wanted("d/x", "d", Kind.MODULE_OPTION, "nvidia", "0", name="pools", file="/etc/modprobe.d/p.conf")
    module = {"loaded": True, "files": [file("/etc/modprobe.d/p.conf", "options nvidia pools=0")]}
    found = chain(control, state(modules={"nvidia": module}, platform={"cmdline": booted}))
    assert [link.role for link in found] == roles


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        (ours(), [Link("/etc/x", 0, None, "ours")]),
        ({"link": "/etc/y"}, [Link("/etc/x", 0, "a link to /etc/y", "decides")]),
        ({"absent": True}, []),
    ],
)
def test_file_of_ours(held: dict[str, Any], expected: list[Link]) -> None:
    """A whole file has itself for a chain, unless it is not there."""
    control = Wanted("x", "x", Kind.CONFIG_FILE, "/etc/x", "", file="/etc/x")
    assert chain(control, state(files={"/etc/x": held})) == expected


@pytest.mark.parametrize("kind", list(Kind))
def test_malformed_state_has_no_chain(kind: Kind) -> None:
    """A state that is not in the expected form breaks nothing."""
    assert chain(Wanted("x", "x", kind, "x", "1", name="y", section="S"), {"units": {"x": 3}, "files": None}) == []

"""What each kind of control reads out of a state: live, persisted, and who decides."""

import dataclasses
import json
from typing import Any

import pytest

from plimsoll.box.model import Kind, Place, Wanted
from plimsoll.box.readings import reading
from tests.unit.builders import file, masked, ours, process, state, sysctl, unit, unit_property, unreadable

OURS = "/etc/sysctl.d/zz-plimsoll.conf"
VENDORS = "/usr/lib/sysctl.d/a.conf"
PANIC = sysctl("kernel.panic", "20")


def _sysctls(*files: dict[str, Any], **others: Any) -> dict[str, Any]:  # noqa: ANN401  # sections of several types
    found = {"sysctl_d": list(files), "etc_sysctl_conf": None, "ufw": None, **others}
    return state(sysctl={"kernel.panic": {"value": "20"}}, sysctl_files=found)


@pytest.mark.parametrize(
    ("found", "persisted", "decided_by", "note"),
    [
        (_sysctls(file(OURS, "kernel.panic = 20")), "20", Place(OURS, 1), ""),
        (_sysctls(), None, None, ""),
        (_sysctls(file(OURS, "kernel.panic=20"), ufw=file("/u", "kernel/panic=1")), "1", Place("/u", 1), ""),
        (_sysctls(file("/run/sysctl.d/z.conf", "kernel.panic=5")), None, None, "also set in /run/sysctl.d/z.conf:1"),
        (_sysctls(masked("/run/sysctl.d/a.conf"), file(VENDORS, "kernel.panic=5")), "5", Place(VENDORS, 1), ""),
        (_sysctls(etc_sysctl_conf=file("/etc/x", "\nkernel.panic=1")), None, None, "also set in /etc/x:2"),
    ],
)  # fmt: skip
def test_sysctl(found: dict[str, Any], persisted: str | None, decided_by: Place | None, note: str) -> None:
    """The persisted value is what would hold after a reboot; other files that name the key are noted."""
    read = reading(PANIC, found)
    assert (read.live, read.persisted, read.decided_by) == ("20", persisted, decided_by)
    assert note in read.note


def test_sysctl_that_cannot_be_judged() -> None:
    """A key that the kernel has not is unsupported; one that cannot be read, or a file that cannot, is unknown."""
    absent = state(sysctl={"kernel.panic": {"absent": True}})
    assert reading(PANIC, absent).unsupported == "this kernel has no kernel.panic"
    denied = state(sysctl={"kernel.panic": {"error": "Permission denied"}})
    assert reading(PANIC, denied).unknown == "/proc/sys/kernel/panic: Permission denied"
    assert reading(PANIC, state()).unknown == "/proc/sys/kernel/panic: was not read"
    assert reading(PANIC, _sysctls(unreadable("/etc/sysctl.d/x.conf"))).unknown.startswith("/etc/sysctl.d/x.conf:")


# --- unit properties --------------------------------------------------------------------------------

MIN = unit_property("ssh.service", "MemoryMin", "256M")
GROUP = "/sys/fs/cgroup/system.slice"


def _chain(own: str | None, slice_value: str | None = "805306368", controllers: str = "memory") -> list[dict[str, Any]]:
    return [
        {"path": f"{GROUP}/ssh.service", "memory.min": own, "cgroup.controllers": controllers},
        {"path": GROUP, "memory.min": slice_value},
    ]


def _ssh(cgroup: list[dict[str, Any]], text: str = "[Service]\nMemoryMin=256M", **changes: Any) -> dict[str, Any]:  # noqa: ANN401  # fields of several types
    drop_in = file(MIN.file, text)
    return state(units={"ssh.service": unit(cgroup=cgroup, drop_ins=[drop_in], **changes)}, files={MIN.file: ours()})


@pytest.mark.parametrize(
    ("found", "live", "right", "words"),
    [
        (_ssh(_chain("268435456")), "268435456", True, ""),
        (_ssh(_chain("0")), "0", False, ""),
        (_ssh(_chain("max", "max")), "max", False, ""),
        (_ssh(_chain("268435456", "0")), "268435456", False, "ancestor system.slice has only 0"),
        (_ssh(_chain("268435456", "134217728")), "268435456", False, "ancestor system.slice has only 134217728"),
        (_ssh(_chain("268435456", "max")), "268435456", True, ""),
        (_ssh(_chain("268435456", None)), "268435456", True, ""),
    ],
)
def test_memory_protection(found: dict[str, Any], live: str, right: bool, words: str) -> None:
    """In force is what the cgroup's file has, as far as every ancestor has it too."""
    read = reading(MIN, found)
    assert (read.live, read.live_right, read.persisted) == (live, right, "256M")
    assert words in read.drift


@pytest.mark.parametrize(
    ("found", "field", "words"),
    [
        (_ssh([]), "unsupported", "no cgroup v2"),
        (_ssh([], show={"ActiveState": "inactive"}), "pending", "is not running"),
        (_ssh(_chain(None)), "unsupported", "this kernel has no memory.min"),
        (_ssh(_chain(None, controllers="pids")), "drift", "the memory controller is not enabled"),
        (_ssh(_chain("0"), show={"LoadState": "not-found"}), "unsupported", "is not on this host"),
        (state(), "unknown", "was not read"),
        (state(units={"ssh.service": {"error": "no bus"}}), "unknown", "no bus"),
        (state(units={"ssh.service": unit(drop_ins=[unreadable("/d")])}), "unknown", "/d: Input/output error"),
    ],
)
def test_memory_protection_that_cannot_be_judged(found: dict[str, Any], field: str, words: str) -> None:
    """What this kernel has not is unsupported, what was not looked at is unknown, what does not run is pending."""
    assert words in getattr(reading(MIN, found), field)


def test_weight_of_a_default_line() -> None:
    """io.weight reads `default 100`; the number is the weight."""
    wanted = unit_property("ssh.service", "IOWeight", "1000")
    chain = [{"path": f"{GROUP}/ssh.service", "io.weight": "default 1000\n8:0 50\ndefault 1000"}]
    assert reading(wanted, _ssh(chain)).live == "1000"


@pytest.mark.parametrize(
    ("later", "persisted"),
    [("OOMScoreAdjust=-500", "-500"), ("OOMScoreAdjust=", ""), ("OOMScoreAdjust=lots", "-1000")],
)
def test_a_later_drop_in(later: str, persisted: str) -> None:
    """A drop-in that sorts later decides, unless systemd refuses its value."""
    wanted = unit_property("j.service", "OOMScoreAdjust", "-1000")
    drop_ins = [file(wanted.file, "[Service]\nOOMScoreAdjust=-1000"), file("/etc/d/z.conf", f"[Service]\n{later}")]
    found = state(units={"j.service": unit(process=process(5, oom_score_adj=-1000), drop_ins=drop_ins)})
    read = reading(wanted, found)
    assert (read.live, read.persisted) == ("-1000", persisted)


@pytest.mark.parametrize(("replaced_s", "field"), [(999_050, "pending"), (998_950, "drift"), (None, "pending")])
def test_a_score_that_differs(replaced_s: float | None, field: str) -> None:
    """A process from before the drop-in waits for a restart; one started with it was changed by somebody."""
    wanted = unit_property("j.service", "OOMScoreAdjust", "-1000")
    drop_in = file(wanted.file, "[Service]\nOOMScoreAdjust=-1000")
    kept = {} if replaced_s is None else {wanted.file: ours(replaced_s=replaced_s)}
    running = process(5, oom_score_adj=0, started_s=0.0)
    found = state(
        units={"j.service": unit(process=running, drop_ins=[drop_in])},
        files=kept,
        taken={"unix_s": 1_000_000.0, "uptime_s": 1_000.0},
    )
    read = reading(wanted, found)
    assert read.live == "0"
    assert getattr(read, field)
    assert bool(read.pending) != bool(read.drift)


# --- managers ---------------------------------------------------------------------------------------


def _manager_property(target: str, section: str, name: str, value: str) -> Wanted:
    path = f"/etc/systemd/{target}.conf.d/plimsoll.conf"
    return Wanted(f"x/{name}", "x", Kind.MANAGER_PROPERTY, target, value, name=name, section=section, file=path)


SYNC = _manager_property("journald", "Journal", "SyncIntervalSec", "5s")


def _journald(started_s: float, *drop_ins: dict[str, Any], main: dict[str, Any] | None = None) -> dict[str, Any]:
    files = {"journald": {"mains": [main] if main else [], "drop_ins": list(drop_ins)}}
    unit_ = unit(process=process(300, started_s=started_s))
    return state(
        manager_files=files, units={"systemd-journald.service": unit_}, files={SYNC.file: ours(changed_s=999_050)}
    )


def test_journald_runs_with_what_was_there_when_it_started() -> None:
    """What shows no values has those of files that are older than itself, and is pending for younger ones."""
    drop_in = file(SYNC.file, "[Journal]\nSyncIntervalSec=5s")
    assert reading(SYNC, _journald(100.0, drop_in)).live == "5s"
    old = reading(SYNC, _journald(10.0, drop_in))
    assert (old.live, old.persisted) == (None, "5s")
    assert "restart it" in old.pending


def test_main_file_and_drop_ins_of_journald() -> None:
    """A drop-in beats the main file whatever its name, and what lies in /run does not last."""
    main = file("/etc/systemd/journald.conf", "[Journal]\nSyncIntervalSec=1m")
    assert reading(SYNC, _journald(100.0, main=main)).persisted == "1m"
    drop_in = file("/usr/lib/systemd/journald.conf.d/a.conf", "[Journal]\nSyncIntervalSec=2m")
    assert reading(SYNC, _journald(100.0, drop_in, main=main)).persisted == "2m"
    volatile = masked("/run/systemd/journald.conf.d/a.conf")
    assert reading(SYNC, _journald(100.0, volatile, drop_in)).persisted == "2m"
    assert reading(SYNC, _journald(100.0, unreadable("/d"))).unknown == "/d: Input/output error"


WATCHDOG = _manager_property("system", "Manager", "RuntimeWatchdogSec", "60s")
DEVICE = {"name": "watchdog0", "identity": "i6300ESB", "state": "active", "timeout": "60"}


@pytest.mark.parametrize(
    ("changes", "live", "right", "words"),
    [
        ({"watchdogs": [DEVICE]}, "1min", True, "i6300ESB runs with a timeout of 60 s"),
        ({"watchdogs": [DEVICE | {"state": "inactive"}]}, "1min", False, "no watchdog device is open"),
        ({"watchdogs": [DEVICE], "manager": {"RuntimeWatchdogUSec": "0"}}, "0", False, ""),
        ({"watchdogs": []}, None, None, "there is no watchdog device"),
        ({"watchdogs": [DEVICE], "manager": {}}, None, None, "does not answer"),
    ],
)
def test_watchdog(changes: dict[str, Any], live: str | None, right: bool | None, words: str) -> None:
    """Armed means that PID 1 says so and that a device is open; the device's own timeout is told."""
    read = reading(WATCHDOG, state(**{"manager": {"RuntimeWatchdogUSec": "1min"}, **changes}))
    assert (read.live, read.live_right) == (live, right)
    assert words in read.note + read.drift + read.unsupported + read.unknown


# --- scores -----------------------------------------------------------------------------------------

SESSIONS = dataclasses.replace(
    unit_property("ssh.service", "OOMScoreAdjust", "0"), id="sshd/sessions", kind=Kind.SESSION_SCORE
)
LISTENER = process(700, comm="sshd", oom_score_adj=-1000, started_s=50.0)


def _sessions(*others: dict[str, Any], listener: dict[str, Any] | None = LISTENER, text: str = "", **show: str) -> Any:  # noqa: ANN401  # a state
    units = {"ssh.service": unit(process=listener, drop_ins=[file("/etc/d/x.conf", text)], show=show)}
    return state(units=units, processes=[*others])


@pytest.mark.parametrize(
    ("found", "live", "persisted", "words"),
    [
        (_sessions(process(1, comm="sshd-session", started_s=60.0)), "0", "0", ""),
        (_sessions(), "0", "0", "derived"),
        (_sessions(OOMScoreAdjust="-1000"), "-1000", "0", "derived"),
        (_sessions(process(1, comm="sshd", started_s=60.0, oom_score_adj=-1000)), "-1000", "0", ""),
        (_sessions(process(1, comm="sshd", started_s=9.0, oom_score_adj=-1000)), "-1000", "0", "before the restart"),
        (_sessions(text="[Service]\nOOMScoreAdjust=-1000"), "0", "-1000", ""),
        (_sessions(text="[Service]\nOOMScoreAdjust=-1000\nOOMScoreAdjust="), "0", "0", ""),
        (_sessions(listener=None), None, "0", "is not running"),
        (_sessions(listener=LISTENER | {"oom_score_adj": 0}), "0", "0", "the listener has 0, not -1000"),
    ],
)
def test_sessions(found: dict[str, Any], live: str | None, persisted: str, words: str) -> None:
    """A session has the score that sshd was started with: seen on sessions, or derived where nobody is logged in."""
    read = reading(SESSIONS, found)
    assert (read.live, read.persisted) == (live, persisted)
    assert words in read.note + read.pending + read.drift


# --- the rest ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "show", "right", "persisted"),
    [
        ("enabled active", {}, True, "enabled active"),
        ("enabled active", {"UnitFileState": "enabled-runtime"}, True, "enabled-runtime active"),
        ("enabled active", {"UnitFileState": "disabled"}, True, "disabled active"),
        ("enabled active", {"UnitFileState": ""}, True, "enabled active"),
        ("enabled active", {"ActiveState": "failed"}, False, "enabled active"),
        ("enabled active", {"ActiveState": "activating"}, True, "enabled active"),
        ("masked inactive", {"UnitFileState": "masked", "ActiveState": "inactive"}, True, "masked inactive"),
        (
            "masked inactive",
            {"UnitFileState": "masked-runtime", "ActiveState": "inactive"},
            True,
            "masked-runtime inactive",
        ),
        ("masked inactive", {"UnitFileState": "disabled", "ActiveState": "inactive"}, True, "disabled inactive"),
        ("disabled inactive", {"UnitFileState": "masked", "ActiveState": "inactive"}, True, "disabled inactive"),
    ],
)
def test_unit_state(wanted: str, show: dict[str, str], right: bool, persisted: str) -> None:
    """Running and enabled are two things, and what is enabled only until the next reboot is not kept."""
    control = Wanted("x/u", "x", Kind.UNIT_STATE, "u.service", wanted)
    read = reading(control, state(units={"u.service": unit(show=show)}))
    assert (read.live_right, read.persisted) == (right, persisted)


def test_unit_that_is_not_there() -> None:
    """What is to be off and does not exist is good; what is to run and does not exist is drift."""
    found = state(units={"u.service": unit(show={"LoadState": "not-found"})})
    gone = reading(Wanted("x/u", "x", Kind.UNIT_STATE, "u.service", "masked inactive"), found)
    assert (gone.live, gone.note) == ("masked inactive", "u.service is not on this host")
    assert (
        reading(Wanted("x/u", "x", Kind.UNIT_STATE, "u.service", "enabled active"), found).drift
        == "there is no unit u.service"
    )


def test_package() -> None:
    """A package is installed, or not, or this host has no dpkg to ask."""
    control = Wanted("earlyoom/package", "earlyoom", Kind.PACKAGE, "earlyoom", "installed")
    assert reading(control, state(packages={"earlyoom": "1.7-2"})).note == "version 1.7-2"
    assert "is not installed" in reading(control, state()).drift
    assert "dpkg" in reading(control, state(packages=None)).unsupported


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ""),
        ({"sha256": "1" * 64}, "its content is not what is wanted"),
        ({"mode": "0666"}, "its mode is 0666"),
        ({"uid": 1000}, "its owner is not root"),
    ],
)
def test_config_file(changes: dict[str, Any], words: str) -> None:
    """A file is as it was written: content, mode and owner."""
    control = Wanted("x/file:/a", "x", Kind.CONFIG_FILE, "/a", f"{'0' * 64} 0644", file="/a")
    read = reading(control, state(files={"/a": ours(**changes)}))
    assert read.live_right is (not changes)
    assert words in read.drift


def test_config_file_that_is_none() -> None:
    """A file that is missing, a link, or cannot be read is said to be that."""
    control = Wanted("x/file:/a", "x", Kind.CONFIG_FILE, "/a", f"{'0' * 64} 0644", file="/a")
    assert reading(control, state(files={"/a": {"absent": True}})).drift == "/a is missing"
    assert reading(control, state(files={"/a": {"link": "/b"}})).drift == "/a is a link to /b"
    assert reading(control, state(files={"/a": {"error": "is a socket"}})).unknown == "/a: is a socket"
    assert reading(control, state()).unknown == "/a: was not read"


ARGUMENTS = json.dumps(["-m", "5,3"])
EARLYOOM = Wanted("e/a", "e", Kind.CMDLINE, "e.service", ARGUMENTS, file="/etc/default/e")
FRAGMENT = file("/usr/lib/systemd/system/e.service", "[Service]\nExecStart=/usr/bin/e $A")


def _daemon(argv: list[str] | None, value: str, **environment: Any) -> dict[str, Any]:  # noqa: ANN401  # as above
    found = {"variables": {"A": {"value": value, "file": "/etc/default/e", "line": 2}}, **environment}
    running = None if argv is None else process(5, argv=["/usr/bin/e", *argv])
    return state(units={"e.service": unit(process=running, fragments=[FRAGMENT], environment=found)})


def test_arguments_of_a_daemon() -> None:
    """Live are the arguments that the process has, persisted those that its files come to."""
    good = reading(EARLYOOM, _daemon(["-m", "5,3"], "-m 5,3"))
    assert (good.live, good.persisted, good.decided_by) == (ARGUMENTS, ARGUMENTS, Place("/etc/default/e", 2))
    old = reading(EARLYOOM, _daemon(["-m", "15"], "-m 5,3"))
    assert (old.live, old.persisted) == (json.dumps(["-m", "15"]), ARGUMENTS)
    assert "restart it" in old.pending
    assert reading(EARLYOOM, _daemon(None, "-m 5,3")).drift == "e.service is not running"
    assert reading(EARLYOOM, _daemon([], "", error="/f: denied")).unknown == "/f: denied"


def test_arguments_of_a_daemon_that_is_not_installed() -> None:
    """A drop-in that somebody has left for a unit that is not there decides nothing, and shadows nothing of ours."""
    left = unit(show={"LoadState": "not-found"}, drop_ins=[FRAGMENT])
    read = reading(EARLYOOM, state(units={"e.service": left}, files={EARLYOOM.file: ours()}))
    assert (read.drift, read.persisted, read.decided_by) == ("there is no unit e.service", None, None)


OPTION = Wanted("d/o", "d", Kind.MODULE_OPTION, "nvidia", "0", name="NVreg_X", file="/etc/modprobe.d/plimsoll.conf")


def _module(text: str, pools: int | None, cmdline: str = "", *, loaded: bool = True) -> dict[str, Any]:
    platform = {"driver": {"system_memory_pools": pools}, "cmdline": cmdline}
    module = {"loaded": loaded, "files": [file(OPTION.file, text)]}
    return state(modules={"nvidia": module}, platform=platform)


def test_module_option() -> None:
    """Live is what the loaded driver says, persisted what the next boot would give it, the command line included."""
    good = reading(OPTION, _module("options nvidia NVreg_X=0", 0))
    assert (good.live, good.persisted) == ("0", "0")
    booted = reading(OPTION, _module("options nvidia NVreg_X=0", 1, "nvidia.NVreg_X=1"))
    assert (booted.live, booted.persisted, booted.decided_by) == ("1", "1", Place("/proc/cmdline", 1))
    assert reading(OPTION, _module("", None)).unsupported
    assert reading(OPTION, _module("", 0, loaded=False)).unsupported


@pytest.mark.parametrize(
    "control",
    [
        SESSIONS,
        SYNC,
        _manager_property("user", "Manager", "DefaultOOMScoreAdjust", "0"),
        unit_property("ssh.service", "OOMScoreAdjust", "-1000"),
        unit_property("user@.service", "OOMScoreAdjust", "0"),
    ],
)
def test_hidden_processes_are_unknown(control: Wanted) -> None:
    """Where /proc hides other people's processes, what depends on them is not known: not ok, and not missing either."""
    hidden = {"driver": {"system_memory_pools": None}, "cmdline": "", "pid1": None}
    found = state(units={control.target: unit(), "systemd-journald.service": unit()}, platform=hidden)
    assert "hidepid" in reading(control, found).unknown


def test_a_cgroup_needs_no_process() -> None:
    """What the cgroup has in force is known without seeing a process."""
    hidden = {"driver": {"system_memory_pools": None}, "cmdline": "", "pid1": None}
    control = unit_property("ssh.service", "MemoryMin", "64M")
    chain = [{"path": "/sys/fs/cgroup/x", "memory.min": "67108864"}]
    read = reading(control, state(units={"ssh.service": unit(cgroup=chain)}, platform=hidden))
    assert (read.unknown, read.live) == ("", "67108864")

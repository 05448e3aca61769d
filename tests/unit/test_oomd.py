"""Where systemd-oomd was told to kill for pressure, and by which line."""

from pathlib import Path
from typing import Any

import pytest

from plimsoll.box import oomd
from plimsoll.box.observing import Observed
from tests.unit.builders import FakeHost, write_tree

KILL = "[Slice]\nManagedOOMMemoryPressure=kill\n"


def read(root: Path, files: dict[str, str]) -> list[dict[str, Any]]:
    """Return what is observed on a host with `files` on which systemd-oomd runs."""
    write_tree(root, files)
    found = Observed()
    oomd.read(FakeHost(root=str(root)), running=True, found=found)
    assert found.not_seen == []
    return found.observations


def test_limit_of_a_slice(tmp_path: Path) -> None:
    """A drop-in that has systemd-oomd kill is named with its line and its own limit."""
    path = "/etc/systemd/system/user.slice.d/oomd.conf"
    (seen,) = read(tmp_path, {path: f"# pressure\n{KILL}ManagedOOMMemoryPressureLimit=80%\n"})
    assert (seen["subject"], seen["file"], seen["line"]) == ("user.slice", path, 3)
    assert (seen["value"], seen["limit"], seen["oomd_running"]) == ("kill", "80%", True)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, "60%"),
        ({"/etc/systemd/oomd.conf": "[OOM]\nDefaultMemoryPressureLimit=70%\n"}, "70%"),
        ({"/usr/lib/systemd/oomd.conf.d/10.conf": "[OOM]\r\nDefaultMemoryPressureLimit = 50%\r\n"}, "50%"),
        ({"/etc/systemd/system/-.slice.d/x.conf": "[Slice]\nManagedOOMMemoryPressureLimit=0\n"}, "60%"),
    ],
)
def test_default_limit(tmp_path: Path, files: dict[str, str], expected: str) -> None:
    """Without a limit of its own, or with 0, what oomd.conf says counts, else the daemon's default."""
    (seen,) = read(tmp_path, {"/usr/lib/systemd/system/-.slice": KILL, **files})
    assert (seen["unit"], seen["limit"]) == ("-.slice", expected)


def test_user_managers(tmp_path: Path) -> None:
    """A service counts by its own section: Ubuntu's desktop limits what users start."""
    directory = "/usr/lib/systemd/system/user@.service.d"
    text = "[Service]\nManagedOOMMemoryPressure=kill\nManagedOOMMemoryPressureLimit=50%\n"
    (seen,) = read(tmp_path, {f"{directory}/10-oomd-user-service-defaults.conf": text})
    assert (seen["unit"], seen["limit"]) == ("user@.service", "50%")


@pytest.mark.parametrize(
    "files",
    [
        {"/etc/systemd/system/a.slice": "[Slice]\nManagedOOMMemoryPressure=auto\n"},
        {"/etc/systemd/system/a.slice": "[Slice]\nManagedOOMSwap=kill\n"},
        {"/etc/systemd/system/a.slice": "[Service]\nManagedOOMMemoryPressure=kill\n"},
        {"/etc/systemd/system/a.slice": KILL, "/etc/systemd/system/a.slice.d/z.conf": KILL.replace("kill", "auto")},
        {"/etc/systemd/system/a.service": "[Service]\nManagedOOMMemoryPressure=kill\n"},
    ],
)
def test_nothing_that_kills(tmp_path: Path, files: dict[str, str]) -> None:
    """`auto`, another section, a swap limit and a drop-in that takes it back are no pressure limit on a slice."""
    assert read(tmp_path, files) == []


def test_too_many_slices(tmp_path: Path) -> None:
    """Only so many are looked at, and that is said."""
    write_tree(tmp_path, {f"/etc/systemd/system/s{n}.slice": KILL for n in range(oomd.MAX_UNITS + 1)})
    found = Observed()
    oomd.read(FakeHost(root=str(tmp_path)), running=False, found=found)
    assert len(found.observations) == oomd.MAX_UNITS
    assert found.not_seen == ["slices: 101 of them, only the first 100 were looked at for ManagedOOMMemoryPressure"]

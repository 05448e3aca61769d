"""What the lab makes of the host it runs on."""

import platform
import shutil
from pathlib import Path

import pytest

from lab import host
from lab.errors import HostError, UsageError

A, B, C, D = (f"http://{letter}.example" for letter in "abcd")
"""Sites of the name that is reserved for examples."""
BOOKWORM_HOST = [
    f"Debian|bookworm|main|{A}/debian/",
    f"Debian|bookworm|contrib|{A}/debian/",
    f"Debian|bookworm-updates|main|{A}/debian/",
    f"Debian|bookworm-security|main|{B}/debian-security/",
    f"Debian Backports|bookworm-backports|main|{A}/debian/",
    f"Docker|bookworm|stable|{C}/linux/debian/",
    f"Vendor|bookworm|main|{D}/debian/",
]


def test_sources_follow_the_host() -> None:
    """The release wanted comes from where the host gets its own, updates and security fixes included."""
    assert host.sources_for("trixie", BOOKWORM_HOST) == [
        f"deb {A}/debian/ trixie main",
        f"deb {A}/debian/ trixie-updates main",
        f"deb {B}/debian-security/ trixie-security main",
    ]


def test_sources_by_suite_name() -> None:
    """A host that names its release by suite (stable, sid) is understood."""
    lines = [f"Debian|stable|main|{A}/debian/", f"Debian|sid|main|{B}/debian/"]
    assert host.sources_for("trixie", lines) == [
        f"deb {A}/debian/ trixie main",
        f"deb {B}/debian/ trixie main",
    ]


def test_other_distributions_have_no_source() -> None:
    """An Ubuntu host, or one with third parties only, yields no source."""
    lines = [f"Ubuntu|noble|main|{B}/ubuntu/", f"$(ORIGIN)|trixie|main|{C}/debian/"]
    assert host.sources_for("trixie", lines) == []


def test_proxies_are_found() -> None:
    """Both kinds of proxy line are passed on, and nothing else is."""
    wanted = [
        'Acquire::http::Proxy "http://127.0.0.1:3142";',
        'Acquire::https::Proxy::a.example "DIRECT";',
    ]
    others = ['Acquire::http::Timeout "30";', 'Acquire::http::Proxy-Auto-Detect "/x";', 'APT::Architecture "amd64";']
    assert host.proxies_in([*wanted, *others]) == wanted


def test_missing_tools_are_named_as_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """One message names every missing package in a line that can be typed; the exit code is 3."""
    monkeypatch.setattr(shutil, "which", lambda tool, **_: None if "q" in tool else f"/bin/{tool}")
    with pytest.raises(HostError) as caught:
        host.check_tools()
    packages = str(caught.value).split("apt-get install ")[1].split()
    assert "qemu-utils" in packages
    assert host.architecture().qemu_package in packages
    assert "mmdebstrap" not in packages
    assert caught.value.exit_code == 3


def test_missing_keyring_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A host without Debian's keys is told which package holds them."""
    monkeypatch.setattr(shutil, "which", lambda tool, **_: f"/bin/{tool}")
    monkeypatch.setattr(host, "KEYRING", tmp_path / "absent.gpg")
    with pytest.raises(HostError, match=r"apt-get install debian-archive-keyring$"):
        host.check_tools()


def test_unknown_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor without a row in the table is an error that names the known ones."""
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(HostError, match="x86_64 and aarch64; this host is riscv64"):
        host.architecture()


def test_unknown_release() -> None:
    """A release that the lab does not know is refused with those it does."""
    with pytest.raises(UsageError, match="'noble' in the lab: choose trixie or bookworm"):
        host.check_release("noble")

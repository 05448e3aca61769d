"""What the Makefile makes sure of: packages by purpose, looked for by their programs, installed or named."""

import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / ".ci/system-packages"
HAS_VISUDO = any(Path(directory, "visudo").exists() for directory in ("/usr/sbin", "/sbin"))


def _run(
    there: Path,
    *purposes: str,
    machine: str = "x86_64",
    uid: int = 1000,
    has: tuple[str, ...] = (),
    runs_arm: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Run it where these programs are, and no others; what its apt-get is asked is written beside them."""
    # the packages bring what says whether programs of arm64 run
    brings = f"printf '#!/bin/sh\\n' >{there}/arch-test; /bin/chmod +x {there}/arch-test"
    stand_ins = {"uname": f"echo {machine}", "id": f"echo {uid}", "apt-get": f"echo $* >>{there}/asked; {brings}"}
    there_already = {
        **dict.fromkeys(has, "exit 1"),
        **({"arch-test": "exit 0"} if "arch-test" in has and runs_arm else {}),
    }
    for name, text in {**stand_ins, **there_already}.items():
        (there / name).write_text(f"#!/bin/sh\n{text}\n")
        (there / name).chmod(0o755)
    (there / "sh").symlink_to("/bin/sh")
    argv = ["/bin/sh", str(SCRIPT), *purposes]
    return subprocess.run(
        argv, env={"PATH": str(there)}, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("purpose", "machine", "packages"),
    [
        ("arm", "x86_64", "qemu-system-arm qemu-user-static arch-test"),
        ("arm", "aarch64", "qemu-system-arm"),
        ("report", "x86_64", "librsvg2-bin"),
    ],
)
def test_what_is_missing_is_installed(tmp_path: Path, purpose: str, machine: str, packages: str) -> None:
    """Root has the missing packages of a purpose installed, and no others."""
    assert _run(tmp_path, purpose, machine=machine, uid=0).returncode == 0
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked == ["-q update", f"-q install -y --no-install-recommends {packages}"]


@pytest.mark.parametrize(
    ("purpose", "has"),
    [
        ("arm", ("qemu-system-aarch64", "qemu-aarch64-static", "arch-test")),
        ("report", ("rsvg-convert",)),
        ("test", ("visudo",)),
    ],
)
def test_what_is_there_needs_no_package_manager(tmp_path: Path, purpose: str, has: tuple[str, ...]) -> None:
    """Where all programs are there, nothing is asked of apt."""
    assert _run(tmp_path, purpose, uid=0, has=has).returncode == 0
    assert not (tmp_path / "asked").exists()


def test_programs_of_another_architecture_that_do_not_run(tmp_path: Path) -> None:
    """Without systemd nobody tells the kernel how: who may not do it is told the line that does."""
    has = ("qemu-system-aarch64", "qemu-aarch64-static", "arch-test")
    ran = _run(tmp_path, "arm", has=has, runs_arm=False)
    assert ran.returncode == 1
    assert "programs of arm64 do not run here; type this line as root" in ran.stderr
    assert "/usr/lib/binfmt.d/qemu-aarch64.conf >/proc/sys/fs/binfmt_misc/register" in ran.stderr


@pytest.mark.skipif(HAS_VISUDO, reason="visudo is found here in any case")
@pytest.mark.parametrize(("uid", "installed"), [(0, True), (1000, False)])
def test_tests_that_ask_visudo(tmp_path: Path, uid: int, installed: bool) -> None:
    """Root gets sudo, which the tests ask; an ordinary user, who could not install it, goes on without."""
    assert _run(tmp_path, "test", uid=uid).returncode == 0
    assert (tmp_path / "asked").exists() is installed


@pytest.mark.parametrize(("has", "line"), [((), "su - -c '"), (("sudo",), "sudo sh -c '")])
def test_a_line_to_type(tmp_path: Path, has: tuple[str, ...], line: str) -> None:
    """Who may not install is told the line that does, with sudo where there is sudo."""
    ran = _run(tmp_path, "report", has=has)
    assert ran.returncode == 1
    assert f"    {line}export DEBIAN_FRONTEND=noninteractive; apt-get " in ran.stderr
    assert ran.stderr.rstrip().endswith(" librsvg2-bin'")
    assert not (tmp_path / "asked").exists()


@pytest.mark.parametrize("purposes", [(), ("moon",), ("arm", "moon")])
def test_an_unknown_purpose(tmp_path: Path, purposes: tuple[str, ...]) -> None:
    """A purpose that it does not know is an error of usage, and nothing is installed."""
    ran = _run(tmp_path, *purposes, uid=0)
    assert (ran.returncode, ran.stderr.startswith("usage: ")) == (2, True)
    assert not (tmp_path / "asked").exists()

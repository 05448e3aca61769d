"""How an image is named and what it is made of."""

import io
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from lab import image, paths
from lab.errors import LabError
from lab.host import ARCHITECTURES
from lab.keys import Keys
from lab.progress import Progress

INPUTS = image.Inputs("trixie", ARCHITECTURES["x86_64"], ("deb copy:/srv/packages trixie main",), (), b"overlay")


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    """Files that look like keys."""
    pairs = Keys(tmp_path / "user", tmp_path / "host")
    for name in ("user", "user.pub", "host", "host.pub"):
        (tmp_path / name).write_text(f"{name}\n")
    return pairs


@pytest.mark.parametrize(
    "other",
    [
        replace(INPUTS, release="bookworm"),
        replace(INPUTS, arch=ARCHITECTURES["aarch64"]),
        replace(INPUTS, sources=()),
        replace(INPUTS, proxies=('Acquire::http::Proxy "http://p.example";',)),
        replace(INPUTS, overlay=b"changed"),
    ],
)
def test_every_input_changes_the_name(other: image.Inputs) -> None:
    """An image is found again by the same inputs, and by no others."""
    assert INPUTS.digest() == replace(INPUTS).digest()
    assert other.digest() != INPUTS.digest()


def test_overlay_is_the_same_for_the_same_content(keys: Keys) -> None:
    """Time stamps and owners of the checkout do not change the archive; content does."""
    first = image.overlay_tar(keys)
    keys.user.with_name("user.pub").touch()
    assert image.overlay_tar(keys) == first
    keys.user.with_name("user.pub").write_text("another\n")
    assert image.overlay_tar(keys) != first


def test_overlay_belongs_to_root(keys: Keys) -> None:
    """Everything in the overlay is root's; it holds the public half of the user's key and never the private one."""
    with tarfile.open(fileobj=io.BytesIO(image.overlay_tar(keys))) as tar:
        entries = {entry.name: entry for entry in tar}
        key = tar.extractfile("etc/lab/authorized_key")
        assert key
        assert key.read() == b"user.pub\n"
    assert {(entry.uid, entry.gid) for entry in entries.values()} == {(0, 0)}
    assert entries["usr/local/lib/lab/install.sh"].mode == 0o755
    assert "etc/systemd/system/lab-shell.service" in entries


def test_no_source_leaves_the_choice_to_mmdebstrap() -> None:
    """Sources come last on the command line; without any, the target is last and no mirror is named."""
    command = image.mmdebstrap_command(INPUTS, Path("overlay.tar"), Path("root.tar"))
    assert command[-3:] == ["trixie", "root.tar", *INPUTS.sources]
    without = image.mmdebstrap_command(replace(INPUTS, sources=()), Path("overlay.tar"), Path("root.tar"))
    assert without[-1] == "root.tar"


def test_failed_tool_shows_its_last_lines() -> None:
    """A tool that fails is reported with its exit status and the end of what it said."""
    script = "i=0; while [ $i -lt 50 ]; do echo line $i; i=$((i+1)); done; exit 5"
    with pytest.raises(LabError) as caught:
        image.run_tool(["sh", "-c", script], Progress(quiet=True))
    assert "sh failed (exit 5)" in str(caught.value)
    assert "line 49" in str(caught.value)
    assert "line 3\n" not in str(caught.value)


def test_headlines_become_progress(capsys: pytest.CaptureFixture[str]) -> None:
    """The steps that mmdebstrap announces are shown with the time; the rest is not."""
    image.run_tool(["sh", "-c", "echo 'I: extracting archives...'; echo noise"], Progress())
    shown = capsys.readouterr().err
    assert "s]   extracting archives\n" in shown
    assert "noise" not in shown


def test_root_archive_without_kernel_is_an_error(tmp_path: Path) -> None:
    """An archive without a kernel names what is missing."""
    archive = tmp_path / "root.tar"
    with tarfile.open(archive, "w") as tar:
        entry = tarfile.TarInfo("./boot/vmlinuz-6.12")
        entry.size = 3
        tar.addfile(entry, io.BytesIO(b"elf"))
    with pytest.raises(LabError, match=r"no initrd\.img in /boot"):
        image.extract_boot_files(archive, tmp_path)
    assert (tmp_path / "vmlinuz").read_bytes() == b"elf"


def test_scratch_directory_starts_empty_and_leaves_nothing(tmp_path: Path) -> None:
    """What a killed build left is removed, and a failed one leaves nothing."""
    scratch = tmp_path / "x.building"
    scratch.mkdir()
    (scratch / "stale").touch()
    found: list[Path] = []

    def fail() -> None:
        with image.scratch_directory(scratch) as work:
            found.extend(work.iterdir())
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert found == []
    assert not scratch.exists()


def test_lab_directory_can_be_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The environment variable moves everything; without it all lies in .lab of the repository."""
    monkeypatch.setenv(paths.LAB_DIR_VARIABLE, str(tmp_path))
    assert paths.images_dir() == tmp_path / "images"
    monkeypatch.delenv(paths.LAB_DIR_VARIABLE)
    assert paths.machines_dir() == Path(image.__file__).parent.parent / ".lab" / "machines"

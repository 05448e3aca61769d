"""The stand-in driver's programs and its building, without a machine."""

import errno
import fcntl
import os
import re
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from lab import fakegb10, host, image, paths
from lab.errors import GuestError, HostError, LabError
from lab.guest import fakegb10 as guest
from lab.guest import nvidia_smi
from lab.progress import Progress

HEADER = (fakegb10.SOURCE / "fakegb10.h").read_text()
TARGET = fakegb10.Target("trixie", "6.12.1-amd64", "amd64")
QUIET = Progress(quiet=True)
STATE = """regime: C
plain_kib: 0
vmm_kib: 524288
pool_2048_kib_entries: 3
pool_64_kib_entries: 2
pool_4_kib_entries: 1
booked_kib: 530564
refused: 7
"""


@pytest.fixture(autouse=True)
def own_lab(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every test has a lab directory of its own."""
    monkeypatch.setenv(paths.LAB_DIR_VARIABLE, str(tmp_path / "lab"))


def c_layout(name: str) -> str:
    """The fields of a struct of the header, as a format of `struct`."""
    body = re.search(rf"struct {name} {{(.*?)}};", HEADER, re.DOTALL)
    assert body
    codes = {"__u64": "Q", "__u32": "I"}
    return "=" + "".join(codes[kind] for kind in re.findall(r"(__u\d+)\s+\w+;", body[1]))


@pytest.mark.parametrize(
    ("name", "layout", "number"),
    [
        ("alloc", guest.ALLOC, guest.IOC_ALLOC),
        ("free", guest.FREE, guest.IOC_FREE),
        ("hold_lock", guest.HOLD_LOCK, guest.IOC_HOLD_LOCK),
    ],
)
def test_requests_are_those_of_the_header(name: str, layout: struct.Struct, number: int) -> None:
    """Python and C agree on each request's layout, direction and number."""
    macro = re.search(rf"FAKEGB10_{name.upper()}\s+_IO(W|WR)\('G', (0x\w+), struct fakegb10_{name}\)", HEADER)
    assert macro
    assert layout.format == c_layout(f"fakegb10_{name}")
    direction = {"W": 1, "WR": 3}[macro[1]]
    assert number == direction << 30 | struct.calcsize(layout.format) << 16 | 0x47 << 8 | int(macro[2], 16)


def test_engines_are_numbered_as_in_the_header() -> None:
    """The classes of engines have the header's order."""
    names = re.findall(r"^\tFAKEGB10_(\w+),", HEADER, re.MULTILINE)
    assert [name.lower() for name in names] == [*guest.ENGINES, "engines"]


def test_every_parameter_and_file_is_in_the_readme() -> None:
    """The README names each parameter with its default as the code has it, and each request."""
    readme = (fakegb10.SOURCE / "README.md").read_text()
    code = "".join(path.read_text() for path in fakegb10.SOURCE.glob("*.c"))
    parameters = re.findall(r"module_param(?:_cb)?\((\w+)", code)
    assert len(parameters) == 6
    for name in (*parameters, *re.findall(r"define (FAKEGB10_\w+)\s+_IO", HEADER)):
        assert f"| `{name}`" in readme
    for name in ("teardown_percent_per_s", "overshoot_permille", "soft_failure_mib"):
        value = re.search(rf"^static unsigned int {name}(?: = (\d+))?;", code, re.MULTILINE)
        assert value
        assert f"| `{name}` | {value[1] or 0} |" in readme


def test_sizes_are_whole_pages() -> None:
    """A size is rounded up to pages of the kernel."""
    assert guest.whole_pages(1) == guest.PAGE
    assert guest.whole_pages(guest.PAGE) == guest.PAGE
    assert guest.whole_pages(1.5 * guest.PAGE) == 2 * guest.PAGE


def test_total_memory() -> None:
    """MemTotal is read in bytes, and a text without it is an error."""
    assert guest.memory_total_bytes("MemFree: 1 kB\nMemTotal:        1505212 kB\n") == 1505212 * 1024
    with pytest.raises(ValueError, match="no MemTotal"):
        guest.memory_total_bytes("MemFree: 1 kB\n")


class Driver:
    """Answers requests as the module does, from a list: bytes that are got, or an error."""

    def __init__(self, answers: list[int | OSError]) -> None:
        self.answers = answers
        self.asked: list[tuple[int, ...]] = []

    def ioctl(self, _descriptor: int, number: int, request: bytearray) -> int:
        """Stand in for fcntl.ioctl."""
        assert number == guest.IOC_ALLOC
        fields = guest.ALLOC.unpack(request)
        self.asked.append(fields)
        answer = self.answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        request[:] = guest.ALLOC.pack(*fields[:2], answer, *fields[3:])
        return 0


def device(monkeypatch: pytest.MonkeyPatch, answers: list[int | OSError]) -> tuple[guest.Device, Driver]:
    """Return a device whose driver gives these answers."""
    driver = Driver(answers)
    monkeypatch.setattr(guest, "DEVICE", os.devnull)
    monkeypatch.setattr(fcntl, "ioctl", driver.ioctl)
    return guest.Device(), driver


def test_a_request_that_was_cut_short_is_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a part, and after a signal that brought nothing, the rest is asked for at the same pace and class."""
    opened, driver = device(monkeypatch, [4096, InterruptedError(), 8192])
    assert opened.alloc(12288, 100, "vmm") == 12288
    assert driver.asked == [(12288, 100, 0, 1, 0), (8192, 100, 0, 1, 0), (8192, 100, 0, 1, 0)]
    opened.close()


def test_memory_that_is_not_there_ends_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the driver finds no more, what was got is returned; any other error is raised."""
    opened, _ = device(monkeypatch, [4096, OSError(errno.ENOMEM, "")])
    assert opened.alloc(8192) == 4096
    opened.close()
    opened, _ = device(monkeypatch, [OSError(errno.EINVAL, "")])
    with pytest.raises(OSError, match=rf"Errno {errno.EINVAL}"):
        opened.alloc(8192)
    opened.close()


@pytest.mark.parametrize(
    "line", ["", "hold", "hold --mib 0", "hold --mib 1 --percent 1", "hold --percent nan", "hold --mib 1 --engine x"]
)
def test_a_command_line_that_makes_no_sense_is_refused(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A size is needed, exactly one, above 0, and a class that there is."""
    with pytest.raises(SystemExit, match="2"):
        guest.parser().parse_args(line.split())
    assert "error:" in capsys.readouterr().err


def test_a_machine_without_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the device there is one line that names it."""
    monkeypatch.setattr("sys.argv", ["fakegb10", "lock", "--seconds", "1"])
    monkeypatch.setattr(guest, "DEVICE", "/nonexistent/fakegb10")
    with pytest.raises(SystemExit, match=r"^fakegb10: /nonexistent/fakegb10: No such file or directory$"):
        guest.main()


def smi(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, processes: str, *arguments: str) -> int:
    """Run the stand-in nvidia-smi where the driver knows these processes; returns its exit status."""
    (tmp_path / "processes").write_text(processes)
    (tmp_path / "version").write_text("NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  595.45.04  Release\n")
    monkeypatch.setattr(nvidia_smi, "PROCESSES", tmp_path / "processes")
    monkeypatch.setattr(nvidia_smi, "VERSION", tmp_path / "version")
    monkeypatch.setattr("sys.argv", ["nvidia-smi", *arguments])
    return nvidia_smi.main()


@pytest.mark.parametrize(
    ("processes", "style", "printed"),
    [
        ("999999999 19593216\n", "csv", "pid, used_gpu_memory [MiB]\n999999999, 19134 MiB\n"),
        ("999999999 1024\n", "csv,noheader,nounits", "999999999, 1\n"),
        ("999999999\n", "csv,noheader", "999999999, [N/A]\n"),
        ("", "csv,noheader", ""),
    ],
)
def test_smi_lists_processes(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    *,
    processes: str,
    style: str,
    printed: str,
) -> None:
    """Each owner has its memory in MiB, or [N/A] when the driver does not tell it."""
    assert smi(monkeypatch, tmp_path, processes, "--query-compute-apps=pid,used_memory", f"--format={style}") == 0
    assert capsys.readouterr().out == printed


def test_smi_knows_no_total(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The GPU has a name and a driver, and no memory of its own."""
    assert smi(monkeypatch, tmp_path, "", "--query-gpu=name,driver_version,memory.total,memory.used") == 0
    header, row = capsys.readouterr().out.splitlines()
    assert header == "name, driver_version, memory.total [MiB], memory.used [MiB]"
    assert row == "NVIDIA GB10, 595.45.04, [N/A], [N/A]"


def test_smi_refuses_what_it_does_not_know(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A field that there is not is named, and without the driver it says so; each with an exit status of its own."""
    assert smi(monkeypatch, tmp_path, "", "--query-gpu=name,pid") == nvidia_smi.INVALID_FIELD
    assert 'Field "pid" is not a valid field' in capsys.readouterr().err
    monkeypatch.setattr(nvidia_smi, "PROCESSES", tmp_path / "absent")
    assert nvidia_smi.main() == nvidia_smi.NO_DRIVER


def test_the_overview_names_processes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a query it shows the driver and each process with its memory."""
    assert smi(monkeypatch, tmp_path, f"{os.getpid()} 2048\n") == 0
    head, row = capsys.readouterr().out.splitlines()
    assert "595.45.04" in head
    assert row.split()[:3] == [str(os.getpid()), "2", "MiB"]


def test_state_is_read() -> None:
    """The driver's figures are added up as they are meant: 2 MiB, 64 KiB and 4 KiB pages."""
    state = fakegb10.parse_state(STATE)
    assert (state.regime, state.in_use_kib, state.refused) == ("C", 524288, 7)
    assert state.pooled_kib == 3 * 2048 + 2 * 64 + 4


@pytest.mark.parametrize(
    "text", ["", STATE.replace("vmm_kib: 524288\n", ""), STATE.replace("7", "x"), STATE + "new: 1\n"]
)
def test_a_state_of_another_driver_is_refused(text: str) -> None:
    """A text that lacks a figure, or has another, is no state."""
    with pytest.raises(GuestError, match="is not what this lab's driver prints"):
        fakegb10.parse_state(text)


def test_processes_are_read() -> None:
    """KiB by process id; unknown is None and not 0."""
    assert fakegb10.parse_processes("12 2048\n13\n14 0\n") == {12: 2048, 13: None, 14: 0}


def test_a_module_is_named_by_what_it_is_built_from() -> None:
    """Kernel, release, architecture and every source file change the name."""
    sources = fakegb10.sources()
    others = [
        replace(TARGET, kernel="6.12.2-amd64"),
        replace(TARGET, release="bookworm"),
        replace(TARGET, debian="arm64"),
    ]
    names = {TARGET.digest(sources), *(other.digest(sources) for other in others)}
    names |= {TARGET.digest({**sources, name: b""}) for name in sources}
    assert len(names) == 4 + len(sources)
    assert {"Kbuild", "build.sh", "fakegb10.h", "driver.c"} <= sources.keys()
    assert TARGET.digest(dict(reversed(sources.items()))) == TARGET.digest(sources)


def test_another_architecture_is_built_with_cross_tools() -> None:
    """The tools are the host's own where they can be, and never emulated ones."""
    assert TARGET.build_arguments("amd64") == ["6.12.1-amd64", "amd64", "x86_64"]
    arm = replace(TARGET, debian="arm64")
    assert arm.build_arguments("amd64")[1:] == ["arm64", "arm64", "aarch64-linux-gnu-"]
    with pytest.raises(HostError, match="amd64 and arm64, not for riscv64"):
        replace(TARGET, debian="riscv64").build_arguments("amd64")


def test_the_build_gets_the_hosts_sources(tmp_path: Path) -> None:
    """The root file system has the machine's release and both architectures, and comes from where the host's does."""
    command = fakegb10.build_command(
        replace(TARGET, debian="arm64"), "amd64", tmp_path / "a b", ["deb http://a.example trixie main"], ["P"]
    )
    assert "--architectures=amd64,arm64" in command
    assert "--aptopt=P" in command
    for made in ("fakegb10.ko", "engine"):
        assert f"--customize-hook=download /build/{made} '{tmp_path}/a b/{made}'" in command
    assert command[-3:] == ["trixie", "/dev/null", "deb http://a.example trixie main"]


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Let a build write empty files; returns the commands that were run."""
    run: list[list[str]] = []

    def tool(command: list[str], _progress: Progress) -> None:
        run.append(command)
        for hook in (word for word in command if word.startswith("--customize-hook=download")):
            Path(hook.split()[-1]).write_bytes(b"")

    monkeypatch.setattr(host, "check_tools", lambda: None)
    monkeypatch.setattr(host, "package_sources", lambda _release: [])
    monkeypatch.setattr(host, "proxy_settings", list)
    monkeypatch.setattr(fakegb10, "run_tool", tool)
    return run


def test_a_module_is_built_once(builds: list[list[str]]) -> None:
    """The second time it comes from the cache."""
    first = fakegb10.ensure_built(TARGET, QUIET)
    assert fakegb10.ensure_built(TARGET, QUIET) == first
    assert sorted(path.name for path in first.iterdir()) == ["engine", "fakegb10.ko"]
    assert len(builds) == 1


@pytest.mark.usefixtures("builds")
@pytest.mark.parametrize(
    ("printed", "said"),
    [
        ("E: Unable to locate package linux-headers-6.12.1-amd64", "no headers for 6.12.1-amd64 any more"),
        ("alloc.c:1: error", "alloc.c:1: error"),
    ],
)
def test_a_build_that_fails_leaves_nothing(monkeypatch: pytest.MonkeyPatch, printed: str, said: str) -> None:
    """The error says what to do, or what the tool said, and the next try builds again."""

    def fail(_command: list[str], _progress: Progress) -> None:
        raise LabError(f"mmdebstrap failed (exit 1); its last lines:\n{printed}")

    monkeypatch.setattr(fakegb10, "run_tool", fail)
    with pytest.raises(LabError, match=re.escape(said)):
        fakegb10.ensure_built(TARGET, QUIET)
    assert list((paths.lab_dir() / "modules").glob("*/")) == []


def test_what_is_shipped_is_there() -> None:
    """Each command of the machine is a program of the lab."""
    assert [name for name in fakegb10.PROGRAMS.values() if not (image.GUEST / name).is_file()] == []

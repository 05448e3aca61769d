"""Who holds memory, and whether a model's is back; and the box as an admission sees it."""

import os
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from plimsoll.box.errors import UsageError
from plimsoll.box.guard.config import ConfigError
from plimsoll.box.host import Host
from plimsoll.box.serve import holders, situation
from plimsoll.box.serve.holders import Gpu, Held, Kind, verdict
from tests.unit.guard_trees import DOCKER, ID, Shown
from tests.unit.real_processes import Start, starting
from tests.unit.serving import holder, kib

UVM = ("/dev/nvidia0", "/dev/nvidia-uvm")
UNIT = "/system.slice/qwen.service"
MEMINFO = (
    "MemTotal: 127506841 kB\nMemFree: 50000000 kB\nMemAvailable: 52000000 kB\nBuffers: 0 kB\nCached: 3000000 kB\n"
    "SwapCached: 0 kB\nAnonPages: 1000000 kB\nSReclaimable: 400000 kB\nSUnreclaim: 300000 kB\nKReclaimable: 400000 kB\n"
)


@pytest.fixture
def box(tmp_path: Path) -> Path:
    """Return the root of a box with a driver that keeps pools, and an nvidia-smi that answers."""
    driver = tmp_path / "proc/driver/nvidia"
    driver.mkdir(parents=True)
    (driver / "version").write_text("NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  595.45.04  Release\n")
    (driver / "params").write_text("EnableSystemMemoryPools: 529\n")
    (tmp_path / "proc/meminfo").write_text(MEMINFO)
    (tmp_path / "proc/net").mkdir()
    (tmp_path / "proc/net/tcp").write_text("  sl  local_address rem_address   st\n")
    says(tmp_path, "echo", "echo '0, [N/A]'")
    return tmp_path


def says(root: Path, processes: str, cards: str) -> None:
    """Have nvidia-smi run one command where it is asked for processes, and another for cards."""
    tools = root / "bin"
    tools.mkdir(exist_ok=True)
    script = tools / "nvidia-smi"
    script.write_text(f"#!/bin/sh\ncase $1 in *compute-apps*) {processes};; *) {cards};; esac\n")
    script.chmod(0o755)


def host(root: Path) -> Host:
    """Return the box, with its own tools before the machine's."""
    return Host(str(root), {"PATH": f"{root}/bin:/usr/bin:/bin"})


def test_no_advice_kills_by_a_name() -> None:
    """Whatever the verdict, nobody is told to end what they cannot name by number, nor to reset the GPU."""
    own, rank = holder("qwen.service", 60, pid=7), holder("VLLM::EngineCor", 40, orphan=True)
    for held in (Held((own,)), Held((rank,)), Held(pool_kib=kib(9)), Held(gpus=(Gpu(0, kib(90)),)), Held()):
        for timed_out in (False, True):
            said = verdict(held, kib(110), kib(50), kib(1), {7}, timed_out=timed_out).said
            assert not re.search(r"pkill|killall|fuser|gpu-reset|-r\b", said)


def test_who_has_the_gpu_open_is_a_holder(box: Path) -> None:
    """A server is named by its unit, with the driver's figure where that is the larger one."""
    says(box, "echo '70, 80000'", "echo '0, [N/A]'")
    Shown(70, "python3", UNIT, ("vllm", "serve"), UVM, rss_kib=30 << 10).write(box)
    Shown(71, "bash", "/user.slice/user-1000.slice/session-1.scope").write(box)
    found = holders.look(host(box))
    assert [(each.pid, each.name, each.held_kib, each.holds_gpu) for each in found.holders] == [
        (70, "qwen.service", 80000 << 10, True)
    ]
    assert (found.pool_kib, found.gpus, found.problems) == (None, (Gpu(0, None),), ())


def test_large_programs_are_named_as_well(box: Path) -> None:
    """Who has much in memory is told although it does not use the GPU, by its name, the largest first."""
    Shown(70, "small", "/user.slice/user-1000.slice/session-1.scope", rss_kib=200 << 10).write(box)
    Shown(71, "editor", "/user.slice/user-1000.slice/session-1.scope", rss_kib=4 << 20).write(box)
    Shown(72, "python3", UNIT, ("vllm", "serve"), UVM, rss_kib=5 << 20).write(box)
    assert [each.name for each in holders.look(host(box)).holders] == ["qwen.service", "editor"]


def test_a_container_has_its_name(box: Path) -> None:
    """A container is called as its daemon calls it."""
    directory = box / f"var/lib/docker/containers/{ID}"
    directory.mkdir(parents=True)
    (directory / "config.v2.json").write_text('{"Name": "/vllm-qwen", "State": {"Running": true}, "Config": {}}')
    (directory / "hostconfig.json").write_text("{}")
    Shown(70, "python3", DOCKER, ("vllm",), UVM).write(box)
    assert [each.name for each in holders.look(host(box)).holders] == ["vllm-qwen"]


@pytest.mark.parametrize(
    ("comm", "argv", "parent", "orphan"),
    [
        ("VLLM::EngineCor", ("VLLM::EngineCore",), 1, True),
        ("sglang::schedul", ("sglang::scheduler_TP0",), 999, True),
        ("python3", ("python3", "-c", "from multiprocessing.spawn import spawn_main; spawn_main()"), 1, True),
        ("VLLM::EngineCor", ("VLLM::EngineCore",), 50, False),
        ("VLLM::EngineCor", ("VLLM::EngineCore",), 51, True),
        ("python3", ("vllm", "serve"), 1, False),
        ("llama-server", ("llama-server",), 1, False),
    ],
)
def test_a_rank_without_a_server_is_an_orphan(
    comm: str, argv: tuple[str, ...], parent: int, orphan: bool, box: Path
) -> None:
    """A rank whose starter is gone belongs to nobody; a server that systemd has started is no orphan."""
    Shown(1, "systemd", "/init.scope", ppid=0).write(box)
    Shown(50, "vllm", UNIT, ("vllm", "serve", "m")).write(box)
    Shown(51, "containerd-shim", "/system.slice/docker.service", ("containerd-shim-runc-v2",)).write(box)
    Shown(70, comm, UNIT, argv, UVM, ppid=parent).write(box)
    found = {each.pid: each.orphan for each in holders.look(host(box)).holders}
    assert found[70] is orphan


def test_who_waits_in_the_kernel_is_told_so(box: Path) -> None:
    """State D is why a SIGKILL has not done anything yet."""
    Shown(70, "python3", UNIT, ("vllm", "serve"), UVM, state="D").write(box)
    found = holders.look(host(box)).holders[0]
    assert found.state == "D"
    assert holders.describe(found) == "qwen.service (pid 70, 0.00 GiB; has the GPU open; waits in the kernel (D))"


def test_the_pool_is_what_is_in_no_bucket_while_nobody_has_the_gpu(box: Path) -> None:
    """Regime B: what is in use and of no known use is the driver's, and comes back when the pool is emptied."""
    found = holders.look(host(box)).pool_kib
    assert found == 127506841 - 50000000 - 3000000 - 1000000 - 400000 - 300000
    (box / "proc/driver/nvidia/params").write_text("EnableSystemMemoryPools: 0\n")
    assert holders.look(host(box)).pool_kib == 0


def test_the_pool_in_regime_c_is_what_is_counted_reclaimable(box: Path) -> None:
    """There the kernel's own counter says how much it is."""
    (box / "proc/meminfo").write_text(MEMINFO.replace("KReclaimable: 400000", "KReclaimable: 60400000"))
    assert holders.look(host(box)).pool_kib == 60_000_000


def test_a_driver_that_does_not_answer_is_a_problem_and_not_nothing(box: Path) -> None:
    """What nvidia-smi should have said is told to be missing."""
    says(box, "exit 9", "exit 9")
    found = holders.look(host(box))
    assert found.problems == ("nvidia-smi: ended with 9",)
    assert holders.look(host(box), with_driver=False).problems == ()


def test_a_faulty_guard_toml_ends_no_look(box: Path) -> None:
    """Who holds memory is looked at all the same, and the fault is told."""
    (box / "etc/plimsoll").mkdir(parents=True)
    (box / "etc/plimsoll/guard.toml").write_text("[linse]\n")
    Shown(70, "python3", UNIT, ("vllm", "serve"), UVM).write(box)
    found = holders.look(host(box))
    assert [each.holds_gpu for each in found.holders] == [True]
    assert "guard.toml:1: unknown section [linse]" in found.problems[0]


def test_without_a_driver_nobody_is_asked(tmp_path: Path) -> None:
    """A box without the driver has no problem with it."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text(MEMINFO)
    assert holders.look(host(tmp_path)) == Held((), 0, (), ())


def test_cards_are_told_apart() -> None:
    """Memory in use by card, unknown where the card has none of its own; noise is left out."""
    text = "0, 96413\n1, 99\n2, [N/A]\nFailed to initialize\n\n"
    assert holders.parse_gpus(text) == (Gpu(0, 96413 << 10), Gpu(1, 99 << 10), Gpu(2, None))


@pytest.fixture
def start() -> Iterator[Start]:
    """Start real programs."""
    with starting() as begin:
        yield begin


def test_a_real_process_that_has_the_device_open_is_found(start: Start, tmp_path: Path) -> None:
    """On the running machine an open device file is what makes a holder, and its end unmakes it."""
    device = tmp_path / "gpu0"
    device.touch()
    child = start("sh", "-c", f"exec 3<{device}; echo; exec sleep 60")
    deadline_s = time.monotonic() + 5
    seen: list[int] = []
    while child.pid not in seen and time.monotonic() < deadline_s:
        seen = [each.pid for each in holders.look(Host(), with_driver=False, gpu_devices=(str(device),)).holders]
    assert child.pid in seen


# --- verdicts ----------------------------------------------------------------------------------------------


def test_memory_that_is_back_is_clean() -> None:
    """Within the tolerance of its level before the start, with nobody of its own left."""
    assert verdict(Held(), kib(111), kib(110.9), kib(1)).kind is Kind.CLEAN
    assert verdict(Held(), kib(111), kib(115), kib(1)).kind is Kind.CLEAN
    other = holder("gnome-shell", 0.1)
    assert verdict(Held((other,)), kib(111), kib(111), kib(1)).kind is Kind.CLEAN


def test_a_leak_above_a_floor_is_still_held() -> None:
    """40 GiB that are missing are not back although 70 are available."""
    found = verdict(Held(pool_kib=kib(40)), kib(110), kib(70), kib(1))
    assert found.kind is Kind.HELD
    assert found.said == (
        "40.00 GiB are missing against the level before its start; the driver keeps up to 40.00 GiB pooled"
    )


def test_its_own_processes_hold_whatever_memory_says() -> None:
    """While one of them is there nothing is back, and it is named."""
    own = holder("qwen.service", 60, pid=7)
    found = verdict(Held((own,)), kib(110), kib(110), kib(1), {7})
    assert found.kind is Kind.HELD
    assert found.said == "qwen.service (pid 7, 60.00 GiB; has the GPU open); end them by their numbers: kill -KILL 7"
    assert verdict(Held((own,)), kib(110), kib(110), kib(1), {8}).kind is Kind.CLEAN


def test_orphan_ranks_hold() -> None:
    """A rank without a server is in the way of the next one, whoever started it."""
    rank = holder("VLLM::EngineCor", 40, orphan=True)
    found = verdict(Held((rank,)), kib(110), kib(70), kib(1))
    assert found.kind is Kind.HELD
    assert found.said.startswith("40.00 GiB are missing against the level before its start; VLLM::EngineCor (pid 4711")
    assert "its server is gone); end them by their numbers: kill -KILL 4711" in found.said
    back = verdict(Held((rank,)), kib(110), kib(110), kib(1))
    assert (back.kind, "in the way: VLLM::EngineCor" in back.said) == (Kind.CLEAN, True)


@pytest.mark.parametrize(
    ("state", "timed_out", "kind"),
    [("D", True, Kind.REBOOT_REQUIRED), ("D", False, Kind.HELD), ("S", True, Kind.HELD)],
)
def test_only_what_cannot_be_killed_takes_a_reboot(state: str, timed_out: bool, kind: Kind) -> None:
    """A process that can still be killed is none, and neither is one that had no time yet."""
    stuck = holder("qwen.service", 60, pid=7, state=state)
    found = verdict(Held((stuck,)), kib(110), kib(50), kib(1), {7}, timed_out=timed_out)
    assert found.kind is kind
    assert ("only a reboot gives it back" in found.said) is (kind is Kind.REBOOT_REQUIRED)


def test_memory_that_nobody_holds_takes_a_reboot() -> None:
    """After the time, with an empty pool and no holder, the driver has lost it."""
    held = Held((holder("editor", 4, holds_gpu=False),))
    found = verdict(held, kib(110), kib(70), kib(1), timed_out=True)
    assert found.kind is Kind.REBOOT_REQUIRED
    assert "nobody holds the GPU; the largest programs are editor (pid 4711, 4.00 GiB)" in found.said
    assert verdict(held, kib(110), kib(70), kib(1)).kind is Kind.HELD


def test_memory_that_others_hold_takes_no_reboot() -> None:
    """Another model that was started meanwhile explains what is missing."""
    found = verdict(Held((holder("other.service", 40),)), kib(110), kib(70), kib(1), timed_out=True)
    assert found.kind is Kind.HELD
    assert "the GPU is held by others too: other.service" in found.said


def test_a_card_that_nobody_has_open_is_told_by_its_number() -> None:
    """Two of eight cards with 94 GiB each are the ranks that have not gone."""
    held = Held(gpus=(Gpu(0, kib(94.2)), Gpu(1, kib(0.1)), Gpu(2, kib(94.2))))
    found = verdict(held, kib(400), kib(400), kib(1))
    assert (found.kind, found.said) == (
        Kind.HELD, "GPU 0: 94.20 GiB, GPU 2: 94.20 GiB in use, and no process has the GPU open",
    )  # fmt: skip


def test_unknown_figures_are_not_called_clean() -> None:
    """Without a baseline, or without a figure now, nobody says that it is back."""
    for before, now in ((None, kib(110)), (kib(110), None)):
        found = verdict(Held(), before, now, kib(1))
        assert found.kind is Kind.HELD
        assert "is not known" in found.said


def test_what_programs_have_of_their_own_is_no_leak() -> None:
    """An editor that was opened meanwhile takes available memory, and not the level."""
    before = holders.level_kib({"AnonPages": kib(2)}, kib(110))
    after = holders.level_kib({"AnonPages": kib(6)}, kib(106))
    assert before == after == kib(112)
    assert holders.level_kib({}, kib(110)) is None
    assert holders.level_kib({"AnonPages": 1}, None) is None


@pytest.mark.parametrize(("footprint", "tolerance"), [(0, 1 / 16), (1.2, 0.075), (16, 1), (87, 2)])
def test_the_tolerance_is_a_part_of_the_footprint(footprint: float, tolerance: float) -> None:
    """A small model is judged more closely than a large one."""
    assert holders.tolerance_kib(kib(footprint)) == kib(tolerance)


# --- the box as an admission sees it -------------------------------------------------------------------------


def test_a_situation_has_all_of_it(box: Path) -> None:
    """Memory by regime, the lines, holders, blocks and the port, in one look."""
    (box / "proc/buddyinfo").write_text("Node 0, zone   Normal " + "1 " * 9 + "10 20\n")
    Shown(70, "python3", UNIT, ("vllm", "serve"), UVM).write(box)
    found = situation.look(host(box), 8000)
    assert (found.available_kib, found.regime, found.mem_total_kib) == (52000000, "B", 127506841)
    assert (found.lines.floor_kib, found.backstop_kib, found.reservations) == (3 << 20, None, ())
    assert [each.name for each in found.holders] == ["qwen.service"]
    assert (found.port_taken, found.pool_kib, found.problems) == (False, None, ())
    assert found.free_2mib_blocks == 10 + 20 * 2


def test_where_earlyoom_acts_belongs_to_a_situation(box: Path) -> None:
    """A start must not pass below the level at which a killer that runs here would shoot it."""
    words = ("/usr/bin/earlyoom", "-m", "5", "-s", "100")
    directory = Shown(60, "earlyoom", "/system.slice/earlyoom.service", words).write(box)
    (directory / "oom_score_adj").write_text("-1000\n")
    (box / "var/lib/dpkg").mkdir(parents=True)
    status = "Package: earlyoom\nStatus: install ok installed\nVersion: 1.7-1\n\n"
    (box / "var/lib/dpkg/status").write_text(status)
    assert situation.look(host(box), 8000).backstop_kib == pytest.approx(127506841 * 0.05, abs=2)


def test_a_situation_without_figures_is_no_situation(tmp_path: Path) -> None:
    """A box that does not say how much memory it has, or whose guard.toml does not do, admits nothing."""
    with pytest.raises(UsageError, match="nothing can be admitted"):
        situation.look(Host(str(tmp_path)), 8000)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text(MEMINFO)
    (tmp_path / "etc/plimsoll").mkdir(parents=True)
    (tmp_path / "etc/plimsoll/guard.toml").write_text("[linse]\n")
    with pytest.raises(ConfigError, match="did you mean 'lines'"):
        situation.look(Host(str(tmp_path)), 8000)


@pytest.mark.parametrize(
    ("text", "page", "blocks"),
    [
        ("Node 0, zone   Normal      0 0 0 0 0 0 0 0 0 3 16\n", 4096, (35, 2)),
        ("Node 0, zone DMA 0 0 0 0 0 0 0 0 0 1 0\nNode 0, zone Normal 0 0 0 0 0 0 0 0 0 0 8\n", 4096, (17, 1)),
        ("Node 0, zone   Normal      9 9 9 9 9 1 0 0 0 1 0 0 0 0\n", 65536, (1 + 16, 1)),
        ("", 4096, (None, None)),
        ("nothing of the kind\n", 4096, (None, None)),
    ],
)
def test_contiguous_blocks(text: str, page: int, blocks: tuple[int | None, int | None]) -> None:
    """Blocks of at least 2 and 32 MiB count by their size; where none is so large, what the largest amount to."""
    assert situation.free_blocks(text, page) == blocks


def test_a_port_that_is_listened_at_is_taken(tmp_path: Path) -> None:
    """By the kernel's own table, whatever address it is; without the table it is not known."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert situation.is_taken(Host(), port) is True
    assert situation.is_taken(Host(), port) is False
    assert situation.is_taken(Host(str(tmp_path)), port) is None


def test_blocks_of_this_machine_are_counted() -> None:
    """The kernel that runs this has the table in the form that is read here."""
    text = Host().text_or_none("/proc/buddyinfo")
    if text is None:
        pytest.skip("this machine does not show /proc/buddyinfo")
    found, _ = situation.free_blocks(text, os.sysconf("SC_PAGE_SIZE"))
    assert found is not None
    assert found >= 0

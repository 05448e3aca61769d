"""One round of the background: everything that the loop decides on, and everything that a kill needs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from plimsoll.box.guard.act import Hand
from plimsoll.box.guard.config import Selector
from plimsoll.box.guard.discovery import Discovery
from plimsoll.box.guard.gpu import Asking, Told
from plimsoll.box.guard.model import KIB_PER_GIB, Sample
from plimsoll.box.guard.reserve import Store
from plimsoll.box.guard.scout import Scout
from plimsoll.box.host import Host
from tests.unit.builders import write_tree
from tests.unit.guard_trees import DOCKER, Shown
from tests.unit.guarding import ARMED, kib
from tests.unit.guarding import reservation as announced

UNIT = "/system.slice/vllm.service"
MEMINFO = """\
MemTotal:       127533056 kB
MemFree:        {free} kB
Cached:           1000000 kB
AnonPages:        1000000 kB
KReclaimable:      500000 kB
SReclaimable:      500000 kB
SUnreclaim:        500000 kB
"""


class Silent(Asking):
    """A driver that is never asked, and tells what the test says."""

    def ask(self) -> bool:
        """Count the question."""
        self.asked = getattr(self, "asked", 0) + 1
        return True


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """Return a box with one engine that has the GPU open."""
    free = {"/proc/meminfo": MEMINFO.format(free=100_000_000), "/proc/sys/kernel/random/boot_id": "boot\n"}
    write_tree(tmp_path, free)
    Shown(10, "vllm", UNIT, argv=["vllm", "serve"], links=["/dev/nvidia-uvm"]).write(tmp_path)
    return Host(str(tmp_path))


@pytest.fixture
def scout(host: Host) -> Iterator[Scout]:
    """Return a scout of that box."""
    hand = Hand(host)
    yield Scout(host, ARMED, Discovery(host), hand, Store(host), Silent())
    hand.close()


def sample(at_s: float, available: float, regime: str = "B") -> Sample:
    """Return a look at memory."""
    return Sample(at_s, kib(available), regime=regime)


def asking(scout: Scout) -> Silent:
    """Return the driver that the scout asks."""
    assert isinstance(scout._asking, Silent)
    return scout._asking


def set_free(host: Host, gib: float) -> None:
    """Change how much memory is free; what is missing is the driver's."""
    Path(host.path("/proc/meminfo")).write_text(MEMINFO.format(free=kib(gib)))


def test_what_is_known(scout: Scout) -> None:
    """A round finds the workloads, as of the sample that it was given."""
    found = scout.round(sample(5, 90))
    assert [each.name for each in found.known.workloads] == ["vllm.service"]
    assert found.known.seen_s == 5
    assert found.discovered.computing == {UNIT}


def test_growth_in_a_load(scout: Scout, host: Host) -> None:
    """While the driver tells nothing yet, the only one that computes has grown by what the driver took."""
    scout.round(sample(101, 90))
    set_free(host, 40)
    (one,) = scout.round(sample(103, 30), hurry=True).known.workloads
    assert one.grew_kib == pytest.approx(kib(100_000_000 / KIB_PER_GIB - 40), abs=2)


def test_growth_of_a_protected_one_is_not_put_to_others(scout: Scout, host: Host, tmp_path: Path) -> None:
    """What the driver took for an engine that is protected does not make another one grow."""
    scout.discovery.go_by(("/dev/nvidia*",), (Selector("unit", "vllm.service"),))
    Shown(50, "python3", DOCKER, links=["/dev/nvidia-uvm"]).write(tmp_path)
    scout.round(sample(101, 90))
    set_free(host, 40)
    Shown(10, "vllm", UNIT, kernel_ticks=900).write(tmp_path)
    by_key = {each.key: each for each in scout.round(sample(103, 30), hurry=True).known.workloads}
    assert by_key[UNIT].grew_kib > kib(40)
    assert by_key[DOCKER].grew_kib == 0


def test_sole_holder_is_said(scout: Scout, host: Host) -> None:
    """What is put down to the only one that computes is said to be put down."""
    set_free(host, 20)
    found = scout.round(sample(1, 20))
    assert found.known.workloads[0].attributed_kib is not None
    assert any("vllm.service is the only one that computes" in each for each in found.problems)


def test_the_driver_is_asked_in_peace_and_more_often_in_need(scout: Scout) -> None:
    """nvidia-smi is asked every five seconds, in every round while memory falls."""
    for at_s in range(10):
        scout.round(sample(float(at_s), 90))
    assert asking(scout).asked == 2
    for at_s in range(10, 13):
        scout.round(sample(float(at_s), 20), hurry=True)
    assert asking(scout).asked == 5


def test_reservation_is_kept_and_ends_with_its_workload(scout: Scout, host: Host) -> None:
    """An announcement holds while its workload is there; when that is gone, it and its file go."""
    store = Store(host)
    store.create()
    announcement = announced(10, 90, 8, id="a" * 16, workload="vllm.service")
    store.add(announcement, lambda _: None)
    assert scout.round(sample(1, 90)).known.reservations == (announcement,)
    for path in sorted(Path(host.path("/proc/10")).rglob("*"), reverse=True):
        path.unlink() if not path.is_dir() or path.is_symlink() else path.rmdir()
    assert scout.round(sample(5, 90)).known.reservations == (announcement,)
    ended = scout.round(sample(20, 90))
    assert ended.known.reservations == ()
    assert ended.ended == (("a" * 16, "vllm.service is gone"),)
    assert store.read() == ((), ())


def test_reservation_that_does_not_fit(scout: Scout, host: Host) -> None:
    """A file that announces what cannot fit is not kept, and that is said once."""
    store = Store(host)
    store.create()
    store.add(announced(95, 90, 8, id="a" * 16, workload="vllm.service"), lambda _: None)
    first, second = scout.round(sample(1, 90)), scout.round(sample(2, 90))
    assert first.known.reservations == second.known.reservations == ()
    assert [identity for identity, _ in first.refused] == ["a" * 16]
    assert second.refused == ()


def test_reserved_workload_is_seen_before_it_uses_the_gpu(scout: Scout, host: Host, tmp_path: Path) -> None:
    """What a reservation is of is known before it opens the GPU, so that its announcement does not end."""
    store = Store(host)
    store.create()
    store.add(announced(10, 90, 8, id="a" * 16, workload="loader.service"), lambda _: None)
    Shown(20, "loader", "/system.slice/loader.service").write(tmp_path)
    scout.round(sample(1, 90))
    late = scout.round(sample(100, 90))
    assert [each.id for each in late.known.reservations] == ["a" * 16]


def test_broken_reservations_stop_nothing(scout: Scout, host: Host, tmp_path: Path) -> None:
    """Where reservations cannot be read, that is said, and the rest of the round is done."""
    (tmp_path / "run/plimsoll").mkdir(parents=True)
    Path(host.path("/run/plimsoll/reservations")).symlink_to("/")
    found = scout.round(sample(1, 90))
    assert found.known.workloads
    assert any("reservations" in each for each in found.problems)


def test_a_kill_is_prepared(scout: Scout, tmp_path: Path) -> None:
    """After a round everything is open that a kill of the likeliest victim needs, and nothing of a protected one."""
    kill = tmp_path / f"sys/fs/cgroup{UNIT}/cgroup.kill"
    kill.parent.mkdir(parents=True)
    kill.touch()
    scout.round(sample(1, 90))
    assert kill in opened()
    scout.discovery.go_by(("/dev/nvidia*",), (Selector("unit", "vllm.*"),))
    assert scout.round(sample(2, 90)).known.workloads[0].protected is not None
    assert kill not in opened()


def opened() -> set[Path]:
    """Return what this process has open."""
    links = [each for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
    return {each.readlink() for each in links}


def test_the_likeliest_first(scout: Scout, tmp_path: Path) -> None:
    """Of many containers those are prepared first that would be chosen."""
    for pid in range(100, 120):
        Shown(pid, "nginx", f"/docker/{pid:064x}", rss_kib=1 << 20).write(tmp_path)
    Shown(50, "python3", DOCKER, links=["/dev/nvidia-uvm"]).write(tmp_path)
    asking(scout).told = Told({50: kib(20), 10: kib(60)}, 1e9)
    scout.round(sample(1, 90))
    assert {UNIT, DOCKER} <= set(scout._hand._ready)


def test_what_the_driver_keeps(scout: Scout) -> None:
    """What the driver keeps comes with who computes, so that it can be told whether it is stranded."""
    asking(scout).told = Told({}, 1.0)
    kept = scout.round(sample(1, 90)).kept
    assert kept is not None
    assert kept.anybody_computes
    assert kept.driver_kib is not None
    assert kept.kib is None
    assert kept._replace(anybody_computes=False).kib == kept.driver_kib

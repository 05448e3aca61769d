"""Announcements of loads: what is refused, how long one holds, and who may write it."""

import argparse
import json
import os
import stat
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.box import cli_reserve, heartbeat, memory
from plimsoll.box.errors import GOOD, REFUSED, UNKNOWN, UsageError
from plimsoll.box.guard import reserve
from plimsoll.box.guard.model import KIB_PER_GIB, Reservation, Sample
from plimsoll.box.guard.reserve import (
    DIRECTORY,
    MAX_FILES,
    SCHEMA,
    Keeping,
    ReservationError,
    Store,
    admit,
    keep,
    parse,
)
from plimsoll.box.host import Host
from tests.unit.builders import MEMINFO, NEEDS_ROOT, process_files, write_tree
from tests.unit.guarding import LINES, kib
from tests.unit.guarding import reservation as announced

BOOT = "0b0b0b0b-0000-4000-8000-000000000000"
ID = "0123456789abcdef"


def reservation(allocate: float, start: float, steady: float = 8, **others: object) -> Reservation:
    """Return an announcement of second 0 that a file can hold."""
    return announced(allocate, start, steady, **{"id": ID, **others})


def sample(available: float | None, at_s: float = 1.0) -> Sample:
    """Return a look at memory."""
    return Sample(at_s, None if available is None else kib(available))


# --- admission --------------------------------------------------------------------------------------


def test_what_fits() -> None:
    """A load that ends above its line is admitted, to the last KiB."""
    assert admit(reservation(90, 100), sample(100), LINES, ()) is None
    assert admit(reservation(92, 100), sample(100), LINES, ()) is None
    assert admit(replace(reservation(92, 100), allocate_kib=kib(92) + 1), sample(100), LINES, ()) is not None


@pytest.mark.parametrize(
    ("wanted", "available", "said"),
    [
        (reservation(98, 100), 100, "below the floor of 3.00 GiB"),
        (reservation(94, 100), 100, "below its steady line of 8.00 GiB"),
        (reservation(10, 100, 3), 100, "must lie above the floor of 3.00 GiB"),
        (reservation(10, 100, 8.5), 100, "must lie at or below the slow line of 8.00 GiB"),
        (reservation(10, 100), None, "not known how much memory"),
    ],
)
def test_what_is_refused(wanted: Reservation, available: float | None, said: str) -> None:
    """What cannot be kept is refused, with both figures that are against each other."""
    reason = admit(wanted, sample(available), LINES, ())
    assert reason is not None
    assert said in reason


def test_steady_line_of_its_own() -> None:
    """A load that declares a line of 5 GiB may end at 6."""
    assert admit(reservation(94, 100, 5), sample(100), LINES, ()) is None


def test_backstop() -> None:
    """A steady line that earlyoom would shoot at is refused, with both lines named; the same without it is not."""
    wanted = reservation(90, 100, 6)
    assert admit(wanted, sample(100), LINES, (), kib(6.08)) is not None
    assert "6.08 GiB, where earlyoom acts" in str(admit(wanted, sample(100), LINES, (), kib(6.08)))
    assert admit(wanted, sample(100), LINES, (), kib(5.9)) is None


def test_others_count_with_what_they_will_still_take() -> None:
    """What others have announced and not taken yet is not there for a newcomer."""
    other = reservation(50, 100, id="f" * 16)
    assert admit(reservation(45, 100), sample(100), LINES, [other]) is not None
    assert admit(reservation(40, 100), sample(100), LINES, [other]) is None
    assert admit(reservation(40, 50), sample(50), LINES, [other]) is None, "the other one has taken all of it"


def test_a_load_that_has_begun() -> None:
    """An announcement that is looked at while its load allocates is held to the rest of it."""
    assert admit(reservation(90, 100), sample(60), LINES, ()) is None


@given(st.integers(1, 130), st.integers(0, 130), st.integers(1, 12), st.lists(st.integers(1, 60), max_size=3))
def test_more_memory_never_refuses(allocate: int, available: int, steady: int, others: list[int]) -> None:
    """What is admitted is admitted with more memory as well; and it ends above the floor and its line."""
    taken = [reservation(each, available, id=f"{n:016x}") for n, each in enumerate(others)]
    wanted = reservation(allocate, available, steady, id="f" * 16)
    if admit(wanted, sample(available), LINES, taken) is None:
        assert available - allocate - sum(others) >= max(3, steady)
        more = [replace(each, available_at_start_kib=kib(available + 5)) for each in taken]
        richer = replace(wanted, available_at_start_kib=kib(available + 5))
        assert admit(richer, sample(available + 5), LINES, more) is None


# --- how long one holds -----------------------------------------------------------------------------


def test_until_it_is_started_or_its_time_is_up() -> None:
    """A load that has not come by its time has lost its announcement."""
    one = reservation(10, 100)
    assert keep(Keeping(), [one], frozenset(), 60).reservations == (one,)
    late = keep(Keeping(), [one], frozenset(), 60.1)
    assert (late.reservations, late.ended) == ((), ((ID, "vllm was not started in time"),))


def test_until_its_workload_is_gone() -> None:
    """The line is kept for as long as the workload is there, and a moment in which it is not seen ends nothing."""
    one, there = reservation(10, 100), frozenset({"vllm"})
    running = keep(Keeping(), [one], there, 10)
    running = keep(running, [one], there, 5000)
    assert running.reservations == (one,)
    missed = keep(running, [one], frozenset(), 5009)
    assert missed.reservations == (one,)
    back = keep(missed, [one], there, 5015)
    assert keep(back, [one], frozenset(), 5020).reservations == (one,)
    gone = keep(back, [one], frozenset(), 5026)
    assert (gone.reservations, gone.ended) == ((), ((ID, "vllm is gone"),))


def test_after_a_restart_of_the_guard() -> None:
    """A guard that knows nothing of the past keeps the announcement of a workload that runs."""
    assert keep(Keeping(), [reservation(10, 100)], frozenset({"vllm"}), 5000).reservations


def test_hostile_name() -> None:
    """A name with an escape sequence does not reach a terminal by the reason."""
    odd = reservation(10, 100, workload="a\x1b[31m")
    assert keep(Keeping(), [odd], frozenset(), 99).ended[0][1].isprintable()


# --- files ------------------------------------------------------------------------------------------


def content(**others: Any) -> dict[str, Any]:  # noqa: ANN401  # any JSON value
    """Return what a file holds."""
    return {"schema": SCHEMA, "boot_id": BOOT, **asdict(reservation(10, 100)), **others}


def test_parse() -> None:
    """What was written is read; what was written before this boot is none."""
    assert parse(content(), BOOT) == reservation(10, 100)
    assert parse(content(), "another") is None


@pytest.mark.parametrize(
    "others",
    [
        {"schema": "plimsoll.reservation/2"},
        {"id": "../../etc/passwd"},
        {"id": 7},
        {"workload": ""},
        {"workload": "a\nb"},
        {"workload": "a" * 2000},
        {"allocate_kib": 0},
        {"allocate_kib": -5},
        {"allocate_kib": True},
        {"allocate_kib": "10"},
        {"allocate_kib": float("nan")},
        {"allocate_kib": float("inf")},
        {"until_s": 0.0},
        {"until_s": 1e9},
        {"steady_line_kib": None},
    ],
)
def test_refused_content(others: dict[str, Any]) -> None:
    """A file that says what makes no sense is no reservation."""
    with pytest.raises(ValueError, match=r"."):
        parse(content(**others), BOOT)


@given(st.dictionaries(st.sampled_from(sorted(content())), st.none() | st.text() | st.floats() | st.integers()))
def test_any_content(others: dict[str, Any]) -> None:
    """Whatever a file holds, it is a reservation that makes sense, or it is refused."""
    try:
        found = parse(content(**others), BOOT)
    except ValueError:
        return
    assert found is None or reserve.against(found) is None


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Return an empty directory of reservations."""
    write_tree(tmp_path, {"/proc/sys/kernel/random/boot_id": f"{BOOT}\n"})
    found = Store(Host(str(tmp_path)))
    found.create()
    return found


def directory(store: Store) -> Path:
    """Return where the reservations are."""
    return Path(store.host.path(DIRECTORY))


def test_add_and_read(store: Store) -> None:
    """What was added is read, and is gone once it was removed."""
    assert store.add(reservation(10, 100), lambda _: None) is None
    assert store.read() == ((reservation(10, 100),), ())
    assert store.remove(ID)
    assert not store.remove(ID)
    assert store.read() == ((), ())


def test_only_root_can_write(store: Store) -> None:
    """Nobody but root sees or writes reservations."""
    assert stat.S_IMODE(directory(store).stat().st_mode) == 0o700
    store.add(reservation(10, 100), lambda _: None)
    assert stat.S_IMODE((directory(store) / f"{ID}.json").stat().st_mode) & 0o022 == 0


def test_no_directory(tmp_path: Path) -> None:
    """Where nothing was ever reserved there is nothing, and nothing to remove."""
    empty = Store(Host(str(tmp_path)))
    assert empty.read() == ((), ())
    assert not empty.remove(ID)


def test_refusal_writes_nothing(store: Store) -> None:
    """What `may` refuses, knowing the others, is not written."""
    store.add(reservation(10, 100), lambda _: None)
    other = reservation(10, 100, id="f" * 16)
    assert store.add(other, lambda present: f"{len(present)} there") == "1 there"
    assert len(store.read()[0]) == 1


def test_number_of_files(store: Store) -> None:
    """There are never more than so many; what is beyond is said."""
    for number in range(MAX_FILES + 1):
        text = json.dumps(content(id=f"{number:016x}"))
        (directory(store) / f"{number:016x}.json").write_text(text)
    found, problems = store.read()
    assert len(found) == MAX_FILES
    assert len(problems) == 1
    assert "already" in str(store.add(reservation(1, 100, id="e" * 16), lambda _: None))


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", "{" * 5000, json.dumps(content(id="f" * 16)), json.dumps(content()) + " " * 5000, "\udcff\0"],
)
def test_broken_files(store: Store, text: str) -> None:
    """A file that cannot be understood costs itself, and is named."""
    (directory(store) / f"{ID}.json").write_bytes(os.fsencode(text))
    other = reservation(1, 100, id="a" * 16)
    store.add(other, lambda _: None)
    found, problems = store.read()
    assert found == (other,)
    assert [ID in problem for problem in problems] == [True]


def test_links_and_devices(store: Store, tmp_path: Path) -> None:
    """A link, a FIFO, a directory or a file with two names is no reservation, and holds up nobody."""
    outside = tmp_path / "outside"
    outside.write_text(json.dumps(content()))
    base = directory(store)
    (base / f"{1:016x}.json").symlink_to(outside)
    os.mkfifo(base / f"{2:016x}.json")
    (base / f"{3:016x}.json").mkdir()
    os.link(outside, base / f"{ID}.json")
    found, problems = store.read()
    assert found == ()
    assert len(problems) == 4


def test_a_link_in_place_of_the_directory(store: Store, tmp_path: Path) -> None:
    """Nothing is read or written through a link."""
    base = directory(store)
    base.rmdir()
    (tmp_path / "elsewhere").mkdir()
    base.symlink_to(tmp_path / "elsewhere")
    for attempt in (store.create, store.read, lambda: store.add(reservation(1, 100), lambda _: None)):
        with pytest.raises(ReservationError):
            attempt()
    assert list((tmp_path / "elsewhere").iterdir()) == []


@NEEDS_ROOT
def test_foreign_owners(store: Store) -> None:
    """A file of a user who may not reserve, or that others may write to, does not count; nor does such a directory."""
    store.add(reservation(1, 100), lambda _: None)
    file = directory(store) / f"{ID}.json"
    os.chown(file, 12345, 12345)
    assert "belongs to user 12345" in store.read()[1][0]
    os.chown(file, 0, 0)
    file.chmod(0o666)
    assert "others may write" in store.read()[1][0]
    directory(store).chmod(0o777)
    with pytest.raises(ReservationError, match="others may write"):
        store.read()
    os.chown(directory(store), 12345, 12345)
    with pytest.raises(ReservationError, match="belongs to user 12345"):
        store.read()


@NEEDS_ROOT
def test_a_group_may_reserve(store: Store) -> None:
    """Members of a named group may reserve, and cannot take away what others have reserved."""
    shared = Store(store.host, ("daemon",))
    shared.create()
    assert stat.S_IMODE(directory(store).stat().st_mode) == 0o3770
    shared.add(reservation(1, 100), lambda _: None)
    file = directory(store) / f"{ID}.json"
    # the user of that name is a member of the group of that name on every Debian
    os.chown(file, 1, 1)
    assert len(shared.read()[0]) == 1
    os.chown(file, 65534, 65534)
    assert shared.read()[0] == ()


@pytest.mark.parametrize("identity", ["../x", "", "0123", "g" * 16, "\x1b[31m"])
def test_release_of_nonsense(store: Store, identity: str) -> None:
    """What is no id is refused before anything is touched."""
    with pytest.raises(UsageError):
        store.remove(identity)


SCHEMAS = Path(__file__).parents[2] / "docs/schemas"


def schema(name: str) -> dict[str, Any]:
    """Return a document's schema."""
    found: dict[str, Any] = json.loads((SCHEMAS / f"{name.replace('/', '-')}.json").read_text())
    return found


def test_documented_file(store: Store) -> None:
    """A file has exactly what its schema says it has."""
    store.add(reservation(10, 100), lambda _: None)
    written = json.loads((directory(store) / f"{ID}.json").read_text())
    documented = schema(SCHEMA)
    assert set(written) == set(documented["required"]) == set(documented["properties"])


# --- the command line -------------------------------------------------------------------------------


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """Return a stock machine with 121.6 GiB, 112 of them available, and no earlyoom."""
    write_tree(tmp_path, {"/proc/meminfo": MEMINFO, "/proc/sys/kernel/random/boot_id": f"{BOOT}\n"})
    return Host(str(tmp_path))


def call(host: Host, *words: str) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser()
    cli_reserve.reserve_arguments(parser)
    return cli_reserve.reserve(parser.parse_args(words), host, b"")


def available_gib(host: Host) -> float:
    """Return what the command goes by."""
    return float(memory.read(host, {})["available_kib"]) / KIB_PER_GIB


def test_reserve_list_release(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    """A reservation is made, shown, and released."""
    before_s = time.monotonic()
    assert call(host, "--for", "vllm.service", "--gib", "50", "--within-s", "300", "--json") == GOOD
    document = json.loads(capsys.readouterr().out)
    documented = schema(cli_reserve.SCHEMA)
    assert set(document) == set(documented["properties"])
    (made,) = document["reservations"]
    assert set(made) == set(documented["$defs"]["reservation"]["properties"])
    assert (made["workload"], made["allocate_bytes"]) == ("vllm.service", 50 << 30)
    (stored,) = Store(host).read()[0]
    assert before_s <= stored.made_s <= time.monotonic()
    assert stored.until_s - stored.made_s == 300
    assert call(host, "--list") == GOOD
    assert "vllm.service: 50.00 GiB" in capsys.readouterr().out
    assert call(host, "--release", made["id"]) == GOOD
    assert call(host, "--list", "--json") == GOOD
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["reservations"] == []


def test_without_a_guard(host: Host, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Who reserves where no guard runs is told that nobody keeps to it; with one there is nothing to say."""
    assert call(host, "--for", "a.service", "--gib", "5", "--within-s", "300") == GOOD
    assert "no guard runs here" in capsys.readouterr().err
    guard = {"pid": 1, "program_sha256": "", "config_sha256": "", "sampled_monotonic_s": time.monotonic()}
    status = {"schema": heartbeat.STATUS_SCHEMA, "guard": guard}
    write_tree(tmp_path, {heartbeat.STATUS: json.dumps(status)})
    assert call(host, "--for", "b.service", "--gib", "5", "--within-s", "300") == GOOD
    assert capsys.readouterr().err == ""


def test_refused_now(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    """What does not fit now is refused with 75, the reason on stderr, and nothing is written."""
    amount = f"{available_gib(host) - 2:.2f}"
    assert call(host, "--for", "vllm.service", "--gib", amount, "--within-s", "300") == REFUSED
    assert "below the floor" in capsys.readouterr().err
    assert Store(host).read() == ((), ())


def test_one_reservation_a_workload(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    """A workload that has a reservation gets no second one."""
    assert call(host, "--for", "vllm.service", "--gib", "5", "--within-s", "300") == GOOD
    assert call(host, "--for", "vllm.service", "--gib", "5", "--within-s", "300") == REFUSED
    assert "already" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["--for", "a"],
        ["--for", "a", "--gib", "5"],
        ["--for", "a", "--gib", "0", "--within-s", "5"],
        ["--for", "a", "--gib", "-1", "--within-s", "5"],
        ["--for", "a", "--gib", "nan", "--within-s", "5"],
        ["--for", "a", "--gib", "5", "--within-s", "inf"],
        ["--for", "a", "--gib", "5", "--within-s", "99999999"],
        ["--for", "pid:x", "--gib", "5", "--within-s", "5"],
        ["--for", "a\nb", "--gib", "5", "--within-s", "5"],
        ["--release", "nonsense"],
        ["--release", ID],
    ],
)
def test_usage(host: Host, words: list[str]) -> None:
    """What makes no sense is refused as usage, and nothing is written."""
    with pytest.raises(UsageError):
        call(host, *words)
    assert Store(host).read()[0] == ()


def test_who_may_not_reserve(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is neither root nor a member of a group that may reserve is told so before anything is looked at."""
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: 1000)
        with pytest.raises(UsageError, match="use sudo"):
            call(host, "--list")
    Store(host).create()
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert call(host, "--list") == GOOD, "one who can read and write there may"


def test_list_says_what_it_cannot_read(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    """A reservation that cannot be understood makes the list incomplete, and its exit code says so."""
    Store(host).create()
    (Path(host.path(DIRECTORY)) / f"{ID}.json").write_text("{")
    assert call(host, "--list") == UNKNOWN
    assert ID in capsys.readouterr().err


def test_earlyoom_is_asked(host: Host, tmp_path: Path) -> None:
    """A steady line at which earlyoom would shoot is refused; one that waits for swap to fill does not shoot."""
    files = process_files(77, "earlyoom")
    dpkg = "Package: earlyoom\nStatus: install ok installed\nVersion: 1.7-2\n"
    swap = MEMINFO + "SwapTotal: 16777212 kB\nSwapFree: 16777212 kB\n"
    write_tree(tmp_path, {**files, "/var/lib/dpkg/status": dpkg, "/proc/meminfo": swap})
    (tmp_path / "proc/77/cmdline").write_bytes(b"earlyoom\0-m\0005\0-s\000100\0")
    words = ["--for", "vllm.service", "--gib", "50", "--within-s", "300", "--steady-gib", "5"]
    assert call(host, *words) == REFUSED
    (tmp_path / "proc/77/cmdline").write_bytes(b"earlyoom\0-m\0005\0")
    assert call(host, *words) == GOOD

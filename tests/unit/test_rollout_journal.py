"""What a journal adds up to, whatever cut it off; and who may write it."""

import fcntl
import itertools
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.fleet.rollout import progress, state
from plimsoll.fleet.rollout.model import (
    GOOD,
    RESUMABLE,
    Begin,
    Event,
    Failure,
    Held,
    HostEvent,
    OnFailure,
    Phase,
    Planned,
    RunEvent,
    Sample,
    Settings,
    Step,
    from_line,
    json_schema,
    sample_from,
    to_line,
)
from plimsoll.fleet.rollout.processes import ROOT
from tests.unit import report_builders

NAMES = ("a", "b", "quiet", "lost")
BEGIN = Begin(
    "20261130T120000Z", 100.0, "anna@laptop", "hosts.yml", "basis", Settings(ssh_config="/x"),
    (
        Planned("a", (Step("kernel", "write \u2028 a file"),)),
        Planned("b", (Step("kernel", "write a file"),), deployed_before=True),
        Planned("quiet"),
        Planned("lost", problem="Connection refused", failure=Failure.UNKNOWN),
    ),
    ("a",), (("a",), ("b",)),
)  # fmt: skip
SAMPLE = Sample("b0071d", 7, ("error\n",), ("x.service",), {"memory": 0.5})
times = st.floats(0, 4e9)
host_events = st.builds(
    HostEvent, times, st.sampled_from(NAMES), st.sampled_from(list(Phase)), st.text(max_size=20),
    st.sampled_from(list(Failure)), st.sampled_from([None, SAMPLE]), st.lists(st.text(max_size=5)).map(tuple),
)  # fmt: skip
run_events = st.builds(RunEvent, times, st.sampled_from(["resume", "batch", "stop", "interrupt", "end"]), st.text())
events = st.lists(st.one_of(host_events, run_events), max_size=30)


def at(host: str, phase: Phase, when_s: float = 0.0, **more: object) -> HostEvent:
    """Return an event of a host."""
    return HostEvent(when_s, host, phase, **more)  # type: ignore[arg-type]  # the fields differ in type


@given(st.one_of(host_events, run_events))
def test_an_event_is_one_line(event: Event) -> None:
    """Whatever a host says, its event is a single line, and is read back as it was."""
    line = to_line(event)
    assert len(line.encode().split(b"\n")) == 1
    assert from_line(line) == event


def test_the_plan_is_one_line() -> None:
    """The first line has all that was confirmed."""
    assert from_line(to_line(BEGIN)) == BEGIN


def test_the_schema_is_that_of_the_lines() -> None:
    """The file that is published says what the records are."""
    published = json.loads((ROOT / "docs/schemas/plimsoll.rollout-1.json").read_text())
    assert published == json_schema()


@pytest.mark.parametrize("line", ["", "{}", "[]", '{"event": "later"}', '{"event": "host"}', "null"])
def test_what_is_no_event(line: str) -> None:
    """Anything else is refused."""
    with pytest.raises(ValueError, match=r"."):
        from_line(line)


@pytest.mark.parametrize("answer", [None, [], {}, {"boot_id": 1, "kernel_seq": 1}, {"boot_id": "b"}, "x"])
def test_what_is_no_sample(answer: object) -> None:
    """What a host says of itself is checked before it is used."""
    with pytest.raises(ValueError, match=r"."):
        sample_from(answer)


@given(events)
def test_who_is_done_stays_done(found: list[Event]) -> None:
    """No resumption brings back a host that has ended well, or that was left out or taken back."""
    before = progress.of(BEGIN, found)
    after = progress.after(before, RunEvent(0.0, "resume"))
    for name, host in before.hosts.items():
        expected = Phase.WAITING if host.phase in RESUMABLE else host.phase
        assert after.hosts[name].phase is expected
    assert (after.stopped, after.ended) == ("", False)


@given(events)
def test_nobody_is_lost(found: list[Event]) -> None:
    """The hosts are those of the plan, in its order, whatever a journal says."""
    assert tuple(progress.of(BEGIN, found).hosts) == NAMES


@given(events)
def test_all_good_means_all(found: list[Event]) -> None:
    """A rollout is good only when each host is, so never with one that was left out."""
    standing = progress.of(BEGIN, found)
    assert standing.all_good == all(phase in GOOD for phase in standing.phases.values())


def test_the_beginning() -> None:
    """A host with nothing to do has ended, one that is not fit is left out, the others wait."""
    standing = progress.first(BEGIN)
    assert list(standing.phases.values()) == [Phase.WAITING, Phase.WAITING, Phase.UNCHANGED, Phase.LEFT_OUT]
    assert standing.hosts["lost"].failure is Failure.UNKNOWN
    assert standing.resumable


def test_a_host_of_which_all_is_held_back() -> None:
    """It is not touched, and what waits there is told."""
    planned = Planned("a", held=(Held("trims", "stops x.service"),))
    begin = Begin(**{**vars(BEGIN), "hosts": (planned,), "batches": ()})
    host = progress.first(begin).hosts["a"]
    assert (host.phase, host.detail) == (Phase.UNCHANGED, "trims waits: it stops x.service (--allow-restart)")


def test_a_soak_goes_on_over_an_interruption() -> None:
    """Its start and the figures before the change are kept, so that its time is not begun again."""
    way: list[Event] = [
        at("a", Phase.APPLYING, 1, baseline=SAMPLE),
        at("a", Phase.VERIFYING, 2),
        at("a", Phase.SOAKING, 3),
    ]
    again: list[Event] = [RunEvent(50, "resume"), at("a", Phase.LOCKING, 51), at("a", Phase.SOAKING, 52)]
    host = progress.of(BEGIN, [*way, *again]).hosts["a"]
    assert (host.soaking_since_s, host.baseline, host.touched) == (3, SAMPLE, True)


def test_a_second_deploy_is_watched_from_its_own_start() -> None:
    """A host that failed and is tried again is measured against how it is then, and watched for the whole time."""
    way: list[Event] = [
        at("a", Phase.APPLYING, 1, baseline=SAMPLE),
        at("a", Phase.SOAKING, 3),
        at("a", Phase.FAILED, 4),
    ]
    host = progress.of(BEGIN, [*way, RunEvent(50, "resume")]).hosts["a"]
    assert (host.phase, host.soaking_since_s, host.baseline) == (Phase.WAITING, None, None)
    assert host.touched


def test_what_can_be_gone_on_with() -> None:
    """After a stop what failed or waits can; after all is done, or was taken back, nothing can."""
    both: list[Event] = [at("a", Phase.DONE), at("b", Phase.DONE), RunEvent(9, "end")]
    assert not progress.of(BEGIN, both).resumable
    assert progress.of(BEGIN, [at("a", Phase.FAILED), RunEvent(8, "stop", "x"), RunEvent(9, "end")]).resumable
    assert not progress.of(BEGIN, [at("a", Phase.REVERTED), RunEvent(9, "end")]).resumable


def test_a_revert_that_was_cut_off_goes_on() -> None:
    """Between the stop and the end of a rollout that takes back, it is the taking back that is resumed."""
    begin = Begin(**{**vars(BEGIN), "settings": Settings(on_failure=OnFailure.REVERT)})
    cut: list[Event] = [at("a", Phase.FAILED), RunEvent(8, "stop", "the canary a failed"), at("a", Phase.REVERTING)]
    assert progress.of(begin, cut).takes_back
    assert not progress.of(begin, [*cut, RunEvent(9, "end")]).takes_back
    assert not progress.of(BEGIN, cut).takes_back


# --- on the disk ------------------------------------------------------------------------------------

WAY = [at("a", Phase.LOCKING), at("a", Phase.APPLYING, baseline=SAMPLE), at("a", Phase.DONE), at("b", Phase.LOCKING)]


def written(directory: Path) -> state.Journal:
    """Return a journal with a few events."""
    journal = state.create(directory, BEGIN)
    for event in WAY:
        journal.append(event)
    return journal


def test_a_journal_cut_anywhere(tmp_path: Path) -> None:
    """After whatever byte of its events it ends, it is read up to the last whole line, and can be gone on with."""
    journal = written(tmp_path)
    content = journal.file.read_bytes()
    begin = content.index(b"\n") + 1
    for size in range(begin, len(content), 7):
        journal.file.write_bytes(content[:size])
        whole = content[:size].count(b"\n") - 1
        assert journal.load() == progress.of(BEGIN, WAY[:whole])
        journal.append(WAY[whole])
        assert journal.load() == progress.of(BEGIN, WAY[: whole + 1])


def test_the_last_rollout_is_the_one_that_was_begun(tmp_path: Path) -> None:
    """One that was cut off before its plan was written down is none."""
    assert state.latest(tmp_path) is None
    journal = written(tmp_path)
    (tmp_path / "20991231T000000Z").mkdir()
    (tmp_path / "20991231T000000Z/journal.jsonl").write_text('{"event": "beg')
    assert state.latest(tmp_path) == journal


@pytest.mark.parametrize("text", ["not JSON\n", f"{to_line(WAY[0])}\n", "\n", ""])
def test_a_journal_that_is_none(text: str, tmp_path: Path) -> None:
    """One message with the file's name."""
    journal = state.Journal(tmp_path)
    journal.file.write_text(text)
    with pytest.raises(state.JournalError, match=r"journal\.jsonl.*begin a new rollout"):
        journal.load()


def test_reports_are_kept(tmp_path: Path) -> None:
    """What was found of a host is read back; a name with a slash stays in its directory; damage is nothing."""
    journal = state.create(tmp_path, BEGIN)
    report = report_builders.host("../a b/c")
    journal.keep_report(report)
    assert journal.report("../a b/c") == report
    (file,) = (journal.directory / "reports").iterdir()
    file.write_text('{"reached": tr')
    assert journal.report("../a b/c") is None
    assert journal.report("never seen") is None


def test_nobody_else_can_read_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is known of hosts is the operator's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    journal = written(state.fleet_directory(tmp_path / "hosts.yml"))
    made = [journal.file, *itertools.takewhile(lambda path: path != tmp_path / "state", journal.file.parents)]
    assert all(path.stat().st_mode & 0o077 == 0 for path in made[:2])


# --- one at a time ----------------------------------------------------------------------------------


def test_a_second_rollout_is_refused(tmp_path: Path) -> None:
    """Who holds the fleet is named; afterwards it is free again."""
    who = "anna@laptop, since noon"
    with state.only_one(tmp_path, who), pytest.raises(state.BusyError, match=who), state.only_one(tmp_path, "ben"):
        pytest.fail("two at a time")
    with state.only_one(tmp_path, "ben"):
        pass


def test_who_is_killed_holds_nothing(tmp_path: Path) -> None:
    """The fleet is free as soon as the process that held it is gone."""
    program = (
        "import pathlib, sys; from plimsoll.fleet.rollout import state\n"
        "with state.only_one(pathlib.Path(sys.argv[1]), 'x'): print('held', flush=True); input()"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(state.BusyError), state.only_one(tmp_path, "y"):
            pytest.fail("two at a time")
        process.kill()
        process.wait()
        with state.only_one(tmp_path, "y"):
            pass


def test_a_deploy_that_is_left_behind_holds_its_host(tmp_path: Path) -> None:
    """A host's lock passes on to the process that deploys, and is free when that has ended."""
    lock = state.host_lock(tmp_path, "a")
    os.set_inheritable(lock, True)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=(lock,)) as process:
        assert locked(tmp_path, lock)
        os.close(lock)
        assert locked(tmp_path)
        process.communicate()
    assert not locked(tmp_path)


def locked(fleet: Path, descriptor: int | None = None) -> bool:
    """Say whether somebody else holds the host; with a descriptor, take it there first."""
    if descriptor is not None:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    other = state.host_lock(fleet, "a")
    try:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(other)
    return False


def test_a_disk_that_is_full(tmp_path: Path) -> None:
    """Half a line is taken back, so that what was written before it can still be read; the error names the file."""
    journal = written(tmp_path)
    whole = journal.file.read_bytes()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handled = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + 10, before[1]))
        with pytest.raises(state.JournalError, match=r"journal\.jsonl: .*nothing further is begun"):
            journal.append(WAY[0])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handled)
    assert journal.file.read_bytes() == whole

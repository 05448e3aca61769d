"""The `machine` fixture: a freshly restored virtual machine for each test."""

import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from lab.errors import GuestError, LabError
from lab.machine import Machine
from lab.progress import Progress
from lab.snapshot import Spec, ensure_snapshot
from tests.vm.deploying import Deployed

HERE = Path(__file__).parent
JOURNAL_TIMEOUT_S = 20.0
TAIL_LINES = 40


def spec_of(item: pytest.Item) -> Spec:
    """The machine a test asks for: `@pytest.mark.machine(release=…, memory_mib=…, ubuntu_ssh=…)`."""
    marker = item.get_closest_marker("machine")
    return Spec(**marker.kwargs) if marker else Spec()


def wants_machine(item: pytest.Item) -> bool:
    """Whether a test uses the fixture of this file, and not one of the same name in its module."""
    if not isinstance(item, pytest.Function) or "machine" not in item.fixturenames:
        return False
    definitions = item._fixtureinfo.name2fixturedefs["machine"]  # no public way says which one wins
    return definitions[-1].func.__module__ == __name__


DEPLOYED = ("opted_in", "hardened_bookworm", "hardened")
"""The fixtures that deploy once a session."""


def group_of(item: pytest.Item) -> str:
    """What has to run in one process: all tests of a machine that is deployed to once; else those of a module."""
    names = getattr(item, "fixturenames", ())
    chosen = getattr(item, "callspec", None)
    parameters = chosen.params.values() if chosen is not None else ()
    return next((name for name in DEPLOYED if name in parameters or name in names), item.nodeid.partition("::")[0])


@pytest.hookimpl(tryfirst=True)  # before the names are given out that tell a worker's group
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say which tests belong together when several processes share the work, and begin with what takes longest."""
    for item in items:
        if item.path.parent == HERE:
            item.add_marker(pytest.mark.xdist_group(group_of(item)))
    items.sort(key=lambda item: (item.path.parent != HERE, group_of(item) not in DEPLOYED))


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Build what the chosen tests need before the first of them starts: no test's time limit pays for it.

    Every process begins with another one, and waits for those that another process builds.
    """
    if session.config.option.collectonly:
        return
    specs = sorted({spec_of(item) for item in session.items if wants_machine(item)}, key=str)
    turn = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % max(1, len(specs))
    for spec in [*specs[turn:], *specs[:turn]]:
        try:
            ensure_snapshot(spec, Progress())
        except LabError as error:
            pytest.exit(f"the lab cannot make the machine that tests need: {error}", returncode=error.exit_code)


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End a deployed machine after the last of its tests.

    Its fixture would keep it until all tests have ended: three that idle, with a guard that looks ten times a second,
    were seen to take a third of two cores from those that still ran.
    """
    group = group_of(item)
    deployed = getattr(item, "funcargs", {}).get("either") or getattr(item, "funcargs", {}).get(group)
    if group in DEPLOYED and isinstance(deployed, Deployed) and (nextitem is None or group_of(nextitem) != group):
        deployed.machine.close()


@pytest.fixture
def machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    """A machine as it was right after its boot; QEMU is killed at the end, whatever the test left running."""
    with Machine.restore(spec_of(request.node), f"test-{os.getpid()}") as restored:
        yield restored


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add console and journal of the machine to the report of a test that failed, timed out included."""
    report = yield
    machine = getattr(item, "funcargs", {}).get("machine")
    if report.failed and report.when == "call" and isinstance(machine, Machine):
        report.sections.append(("the machine's console", tail(machine.serial_log())))
        report.sections.append(("the machine's journal", journal_tail(machine)))
    return report


def tail(text: str) -> str:
    """The last lines of a log."""
    return "\n".join(text.splitlines()[-TAIL_LINES:])


def journal_tail(machine: Machine) -> str:
    """The end of the journal, or why it cannot be had."""
    try:
        return machine.run(f"journalctl --no-pager -n {TAIL_LINES}", JOURNAL_TIMEOUT_S).out
    except GuestError as error:
        return f"not to be had: {error}"

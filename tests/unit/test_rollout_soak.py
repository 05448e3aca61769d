"""What a host must not show after a change, and that what could not be looked at is never good."""

import errno
import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.box.model import Verdict
from plimsoll.fleet.rollout import on_host, soak
from plimsoll.fleet.rollout.model import Held, Sample
from plimsoll.policy import Policy
from tests.unit import report_builders

CALM = Sample("b0071d", 7, (), ("old.service",), {"memory": 0.2, "io": 3.0})


def sample(**changes: Any) -> Sample:  # noqa: ANN401  # the fields differ in type
    """Return a look at a calm host, with some of it changed."""
    return Sample(**{**vars(CALM), **changes})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"boot_id": "another"}, "it restarted by itself"),
        ({"failed_units": ("new.service", "old.service")}, "failed since the change: new.service"),
        ({"kernel_errors": ("BUG: soft lockup",)}, "the kernel reports since the change: BUG: soft lockup"),
        ({"pressure": {"memory": 10.2}}, "10 % of the last minute, for want of memory"),
        ({"failed_units": None}, "systemd does not say"),
        ({"kernel_seq": None}, "the kernel's log cannot be read"),
    ],
)
def test_what_is_worse_than_before(changes: dict[str, Any], said: str) -> None:
    """Each of them alone fails a host, by name."""
    (found,) = soak.problems(CALM, sample(**changes))
    assert said in found


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"failed_units": ()},
        {"pressure": {"memory": 10.1, "io": 12.9}},
        {"pressure": {}},
        {"kernel_errors": ("NVRM: nvCheckOkFailedNoLog: NV_ERR_NO_MEMORY [x]",)},
        {"kernel_seq": 4000},
    ],
)
def test_what_is_not(changes: dict[str, Any]) -> None:
    """What was so before, what is better, and the driver's ordinary grumbling fail nobody."""
    assert soak.problems(CALM, sample(**changes)) == []


units = st.lists(st.sampled_from(["a", "b", "c"]), unique=True).map(tuple)


@given(units, units, st.floats(0, 100), st.floats(0, 100))
def test_only_what_is_new_counts(before: tuple[str, ...], now: tuple[str, ...], calm: float, busy: float) -> None:
    """A host fails for units exactly if one failed that had not, and for pressure if it rose by a tenth of the time."""
    found = soak.problems(
        sample(failed_units=before, pressure={"memory": calm}), sample(failed_units=now, pressure={"memory": busy})
    )
    rose = busy >= calm + soak.MOST_PRESSURE_PERCENT
    assert len(found) == bool(set(now) - set(before)) + rose


def test_a_host_that_cannot_be_watched() -> None:
    """It is told before anything is changed there."""
    assert soak.blind(CALM) == ""
    assert soak.blind(sample(failed_units=None, kernel_seq=None)).count(";") == 1


@pytest.mark.parametrize(
    ("heartbeat", "said"),
    [
        (None, "does not say that it is alive"),
        ({"error": "/run/plimsoll/status.json: damaged"}, "alive: /run/plimsoll/status.json: damaged"),
        ({"sample_age_s": 11.0}, "last sample is 11 s old"),
        ({"sample_age_s": -1.0}, "last sample is -1 s old"),
        ({"sample_age_s": 0.4}, ""),
    ],
)
def test_a_guard_that_is_not_alive(heartbeat: dict[str, Any] | None, said: str) -> None:
    """Only a guard with a sample of just now is taken for alive; a host that is to have none needs none."""
    found = soak.guard_problem(Policy(), {"heartbeat": heartbeat})
    assert (said in found) if said else found == ""
    assert soak.guard_problem(Policy.model_validate({"layers": {"guard": False}}), {"heartbeat": heartbeat}) == ""


@pytest.mark.parametrize(
    ("verdict", "count", "only_unknown"),
    [(Verdict.DRIFTED, 1, False), (Verdict.UNKNOWN, 1, True), (Verdict.PENDING, 0, True), (Verdict.OK, 0, True)],
)
def test_what_is_not_as_it_should_be(verdict: Verdict, count: int, only_unknown: bool) -> None:
    """Bad and unknown controls are told; pending ones are listed apart."""
    report = report_builders.host("a", (verdict,))
    lines, unknown = soak.drift(report, ())
    assert (len(lines), unknown) == (count, only_unknown)
    assert len(soak.pending(report)) == (verdict is Verdict.PENDING)


def test_a_layer_that_is_held_back_is_not_judged() -> None:
    """What waits by choice fails nobody."""
    report = report_builders.host("a", (Verdict.DRIFTED,))
    (layer,) = {j.layer for j in report.controls if j.verdict is Verdict.DRIFTED}
    assert soak.drift(report, [Held(layer, "stops x")]) == ([], True)


# --- how the host finds it out ----------------------------------------------------------------------


class Log:
    """A kernel's log that is read record by record, and was overwritten once meanwhile."""

    def __init__(self, *records: str) -> None:
        self.records = list(records)
        self.overwritten = True

    def read(self, _descriptor: int, _size: int) -> bytes:
        """Return the next record, as the device does."""
        if self.overwritten:
            self.overwritten = False
            raise OSError(errno.EPIPE, os.strerror(errno.EPIPE))
        if not self.records:
            raise BlockingIOError
        return self.records.pop(0).encode()


def test_the_kernels_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors and worse after a number are told, without their details; what a program wrote to the log is not."""
    log = Log(
        "3,5,100,-;older\n", "6,6,101,-;a remark\n", "3,7,102,-;an error\n SUBSYSTEM=pci\n", "2,8,103,c;critical\n",
        "11,9,104,-;a program's error\n", "4,10,105,-;a warning\n",
    )  # fmt: skip
    monkeypatch.setattr(os, "open", lambda *_arguments: 99)
    monkeypatch.setattr(os, "read", log.read)
    assert on_host.kernel_errors(5) == (10, ["an error", "critical"])


def test_a_kernels_log_that_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told as not seen, and not as free of errors."""

    def refuse(*_arguments: object) -> int:
        raise PermissionError

    monkeypatch.setattr(os, "open", refuse)
    assert on_host.kernel_errors(0) == (None, [])


def test_a_systemd_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told as not seen, and not as without failed units."""
    monkeypatch.setenv("PATH", "/nonexistent")
    assert on_host.failed_units() is None

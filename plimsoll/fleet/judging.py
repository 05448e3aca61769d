"""From what a host answered to its report. Pure but for a timer, and proof against whatever an answer contains."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from plimsoll.box.model import Judgement, Place
from plimsoll.controls import plan
from plimsoll.fleet import findings, sshd
from plimsoll.fleet.report import Finding, HostReport

if TYPE_CHECKING:
    import datetime
    from collections.abc import Iterator, Sequence

    from plimsoll.box.model import State
    from plimsoll.fleet.gather import Answer

MAX_JUDGING_S = 5.0
"""Of processor time for one host. An honest one takes 0.1 s; files of a few MiB, made for it, took minutes."""
MAX_TEXT = 4096
"""Characters of a text in a report: as long as a command line of the kernel may be."""
MAX_NOT_SEEN = 200
_Record = TypeVar("_Record", Judgement, Finding)


def host_report(answer: Answer, rules: Sequence[findings.Rule], today: datetime.date) -> HostReport:
    """Return the report on one host; an answer that cannot be judged is a host that was not reached."""
    name, took_ms = answer.host.name, answer.took_ms
    if answer.state is None:
        return HostReport(name, reached=False, problem=answer.problem, took_ms=took_ms)
    try:
        with bounded():
            return _judged(answer, answer.state, rules, today)
    except Exception as error:  # noqa: BLE001 - a host that lies must not end the audit of the others
        return HostReport(name, reached=False, problem=cannot_be_judged(error), took_ms=took_ms)


def cannot_be_judged(error: Exception) -> str:
    """Return why what a host answered is of no use."""
    return f"what the host answered cannot be judged: {type(error).__name__}: {error}"[:MAX_TEXT]


@contextmanager
def bounded(limit_s: float = MAX_JUDGING_S) -> Iterator[None]:
    """Raise TimeoutError in what is done within, once it has used `limit_s` of processor time; main thread only."""

    def expired(_signal: int, _frame: object) -> None:
        raise TimeoutError(f"it takes more than {limit_s:g} s")

    before = signal.signal(signal.SIGVTALRM, expired)
    signal.setitimer(signal.ITIMER_VIRTUAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _judged(answer: Answer, state: State, rules: Sequence[findings.Rule], today: datetime.date) -> HostReport:
    host = answer.host
    return report_of(answer, state, plan.host_plan(host.policy, state, host.waiver_for, today), rules)


def report_of(answer: Answer, state: State, planned: plan.HostPlan, rules: Sequence[findings.Rule]) -> HostReport:
    """Return the report on a host that was planned for already; raises whatever a dishonest answer leads to."""
    return HostReport(
        name=answer.host.name,
        reached=True,
        controls=tuple(map(_shortened, planned.judgements)),
        findings=tuple(map(_shortened, findings.findings(state, rules))),
        not_seen=tuple(not_seen(state)),
        facts=findings.facts(state),
        took_ms=answer.took_ms,
    )


def not_seen(state: State) -> list[str]:
    """Return what this reading of the state could not look at, beyond single controls."""
    found = []
    if state["platform"]["euid"] != 0:
        found.append(
            "it was read without root (sudo wants a password): files and processes that only root may see "
            "are not in this report; log in as root, or allow sudo without a password, to see all"
        )
    told = state["protections"]["not_seen"]
    if not isinstance(told, list):
        raise TypeError("what it says that it could not see is no list")
    found += sshd.not_seen(state.get("sshd_files"))
    return [_cut(str(what)) for what in [*found, *told][:MAX_NOT_SEEN]]


def _shortened(record: _Record) -> _Record:
    """Return a judgement or a finding with its texts cut: a host may have made each as long as its whole answer."""
    changes: dict[str, Any] = {field.name: _cut(getattr(record, field.name)) for field in fields(record)}
    return replace(record, **changes)


def _cut(value: Any) -> Any:  # noqa: ANN401  # a field of a record
    if isinstance(value, Place):
        return Place(_cut(value.file), value.line)
    is_long = isinstance(value, str) and len(value) > MAX_TEXT
    return f"{value[: MAX_TEXT - 1]}…" if is_long else value

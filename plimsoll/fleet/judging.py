"""From what a host answered to its report. Pure, and proof against whatever an answer contains."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.controls import plan
from plimsoll.fleet import findings
from plimsoll.fleet.report import HostReport

if TYPE_CHECKING:
    import datetime
    from collections.abc import Sequence

    from plimsoll.box.model import State
    from plimsoll.fleet.gather import Answer


def host_report(answer: Answer, rules: Sequence[findings.Rule], today: datetime.date) -> HostReport:
    """Return the report on one host; an answer that cannot be judged is a host that was not reached."""
    name, took_ms = answer.host.name, answer.took_ms
    if answer.state is None:
        return HostReport(name, reached=False, problem=answer.problem, took_ms=took_ms)
    try:
        return _judged(answer, answer.state, rules, today)
    except Exception as error:  # noqa: BLE001 - a host that lies must not end the audit of the others
        problem = f"what the host answered cannot be judged: {type(error).__name__}: {error}"
        return HostReport(name, reached=False, problem=problem, took_ms=took_ms)


def _judged(answer: Answer, state: State, rules: Sequence[findings.Rule], today: datetime.date) -> HostReport:
    host = answer.host
    planned = plan.host_plan(host.policy, state, host.waiver_for, today)
    return HostReport(
        name=host.name,
        reached=True,
        controls=planned.judgements,
        findings=findings.findings(state, rules),
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
    return [*found, *map(str, state["protections"]["not_seen"])]

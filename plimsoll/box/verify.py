"""The box judges itself: /etc/plimsoll/wanted.json against the live state, with no operator's machine."""

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any

from plimsoll.box import state as live_state
from plimsoll.box.errors import UNKNOWN, BoxError
from plimsoll.box.host import Host
from plimsoll.box.judge import exit_code, judge
from plimsoll.box.model import AUDIT_SCHEMA, BAD, WANTED_SCHEMA, Judgement, Request, Verdict, Wanted
from plimsoll.box.texts import printable

PATH = "/etc/plimsoll/wanted.json"


class WantedError(BoxError):
    """What is wanted cannot be read; nothing can be judged."""

    exit_code = UNKNOWN


def load_wanted(host: Host) -> tuple[list[Wanted], list[str]]:
    """Return the controls and the command that is told of bad ones; raises WantedError."""
    try:
        data = json.loads(host.text(PATH))
        if data["schema"] != WANTED_SCHEMA:
            raise WantedError(f"{PATH}: schema {data['schema']}, expected {WANTED_SCHEMA}: deploy again")
        return [Wanted.from_json(c) for c in data["controls"]], list(data["notify_command"])
    except FileNotFoundError as error:
        raise WantedError(f"{PATH} is missing: this host was not deployed to, or was reverted") from error
    except OSError as error:
        raise WantedError(f"{PATH}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise WantedError(f"{PATH}: damaged ({error!r}): deploy again") from error


def judge_host(host: Host, wanted: list[Wanted]) -> list[Judgement]:
    """Read the live state as far as it is needed, and judge it."""
    today = datetime.datetime.now().astimezone().date()
    return judge(wanted, live_state.read(Request.for_wanted(wanted), host), today)


def report(name: str, judgements: Sequence[Judgement]) -> dict[str, Any]:
    """Return the audit document (schema plimsoll.audit/1) for one host."""
    return {
        "schema": AUDIT_SCHEMA,
        "hosts": {name: {"reached": True, "controls": [j.to_json() for j in judgements]}},
    }


def lines(judgements: Sequence[Judgement]) -> list[str]:
    """Return a line for every control that is not ok, then one that counts all verdicts."""
    width = max((len(j.id) for j in judgements), default=0)
    shown = [
        f"{j.verdict:<12}{j.id:<{width}}  {printable(j.reason)}" for j in judgements if j.verdict is not Verdict.OK
    ]
    counts = {v: sum(1 for j in judgements if j.verdict is v) for v in reversed(Verdict)}
    return [*shown, ", ".join(f"{n} {v}" for v, n in counts.items() if n)]


def notify(host: Host, command: Sequence[str], document: Mapping[str, Any]) -> str:
    """Hand the report to the command on its standard input; return what came of it, empty for success."""
    ran = host.run(*command, timeout_s=60, given=json.dumps(document))
    return "" if ran.code == 0 else f"{command[0]}: {ran.problem}"


def should_notify(judgements: Sequence[Judgement]) -> bool:
    """Say whether somebody is to be told: of anything bad, and of what could not be looked at."""
    return any(j.verdict in BAD or j.verdict is Verdict.UNKNOWN for j in judgements)


__all__ = ["exit_code", "judge_host", "lines", "load_wanted", "notify", "report", "should_notify"]

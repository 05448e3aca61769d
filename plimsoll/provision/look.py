"""One look at a host: its policy, its state, and what follows from the two."""

import datetime
import json
import secrets
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from facts.state import LoginAndState
from plimsoll import inventory
from plimsoll.box.model import State
from plimsoll.controls import plan, preflight
from plimsoll.fleet import reader
from plimsoll.policy import Policy
from plimsoll.provision import connection

if TYPE_CHECKING:
    from pyinfra.api.host import Host


FRESH_S = 30
"""For so long a look speaks for the host: a run over many hosts, or one that asks first, may take longer."""
LIMIT_S = 120
"""After which the host ends the reading by itself: the time that a command has (group_data/all.py)."""


@dataclass(frozen=True)
class Look:
    """What is known of one host at one moment."""

    name: str
    known: bool
    """Whether the inventory names it; otherwise the default policy is in force."""
    policy: Policy
    state: State
    plan: plan.HostPlan
    sudo: bool
    at_s: float = field(default_factory=time.monotonic)
    """When it was, by a clock that is never set."""

    def holds(self) -> bool:
        """Say whether the host still is as it was seen: this run does nothing to it, and it was just now."""
        return not any(self.plan.layers) and time.monotonic() - self.at_s < FRESH_S

    def problems(self) -> list[str]:
        """Return what forbids a deploy."""
        return preflight.problems(self.policy, self.state)

    def notes(self) -> list[str]:
        """Return what a person should know of the host."""
        return preflight.notes(self.policy, self.state)


def look(host: "Host", name: str) -> Look | None:
    """Read the host's state in one round trip, and plan; None where it could not be read.

    sudo is used where the login is not root; where it wants a password, the host is asked twice.
    """
    entry = inventory.load_or_exit().host(name)
    connection.without_delay(host)
    found = _ask(host, entry.policy)
    if found is None:
        return None
    uid, state = found
    today = datetime.datetime.now().astimezone().date()
    planned = plan.host_plan(entry.policy, state, entry.waiver_for, today)
    return Look(
        name=name,
        known=entry.known,
        policy=entry.policy,
        state=state,
        plan=planned.without(_held_layers(host)),
        sudo=uid != 0,
    )


def _ask(host: "Host", policy: Policy) -> tuple[int, State] | None:
    """Return the user id of the login and the state, as root if that can be had."""
    found = _answer(host, policy, sudo=False)
    if found is None or found[1]["platform"]["euid"] == 0:
        return found
    # pyinfra asks for the password, or knows it
    with_password = _answer(host, policy, sudo=True)
    return None if with_password is None else (found[0], with_password[1])


def _answer(host: "Host", policy: Policy, *, sudo: bool) -> tuple[int, State] | None:
    mark = secrets.token_hex(16)
    question = {"request": plan.request(policy).to_json(), "mark": mark, "limit_s": LIMIT_S}
    given = [reader.first_line(), json.dumps(question)]
    return host.get_fact(LoginAndState, mark=mark, _stdin=given, _sudo=sudo)


def _held_layers(host: "Host") -> list[str]:
    """Return the layers that this run is to leave as they are: a rollout holds back what would disturb a model."""
    return [layer for layer in str(host.data.get("plimsoll_held_layers") or "").split(",") if layer]

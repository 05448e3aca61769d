"""One look at a host: its policy, its state, and what follows from the two."""

import datetime
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from facts.state import HostState, LoginUid
from plimsoll import inventory, zipapp
from plimsoll.box.model import State
from plimsoll.controls import plan, preflight
from plimsoll.policy import Policy
from plimsoll.provision import connection

if TYPE_CHECKING:
    from pyinfra.api.host import Host


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

    def problems(self) -> list[str]:
        """Return what forbids a deploy."""
        return preflight.problems(self.policy, self.state)

    def notes(self) -> list[str]:
        """Return what a person should know of the host."""
        return preflight.notes(self.policy, self.state)


def look(host: "Host", name: str) -> Look | None:
    """Read the host's state, one round trip after the first, and plan; None where it could not be read.

    sudo is used where the login is not root, and asks for a password where the host wants one.
    """
    entry = inventory.load_or_exit().host(name)
    connection.without_delay(host)
    uid = host.get_fact(LoginUid)
    if uid is None:
        return None
    text = json.dumps(plan.request(entry.policy).to_json())
    state = host.get_fact(HostState, request=text, on_stdin=True, _stdin=zipapp.first_line(), _sudo=uid != 0)
    if state is None:
        return None
    today = datetime.datetime.now().astimezone().date()
    return Look(
        name=name,
        known=entry.known,
        policy=entry.policy,
        state=state,
        plan=plan.host_plan(entry.policy, state, entry.waiver_for, today),
        sudo=uid != 0,
    )

"""Our pyinfra operations: one a layer, and the look afterwards. Every host has the same sequence of them.

A layer that is as it should be yields nothing and costs no round trip. One operation a control would cost
11.1 s of pyinfra's own bookkeeping for 50 hosts and 45 controls; one a layer costs 1.6 to 3.6 s.
"""

import json
import shlex
from collections.abc import Generator
from typing import TYPE_CHECKING

from pyinfra import logger
from pyinfra.api.command import FunctionCommand, PyinfraCommand, StringCommand
from pyinfra.api.operation import operation
from pyinfra.context import host, state

from plimsoll import zipapp
from plimsoll.box.model import GUARDED_LAYER
from plimsoll.controls.plan import LayerPlan
from plimsoll.provision import connection, pyinfra_patch, report
from plimsoll.provision.look import Look, look

if TYPE_CHECKING:
    from pyinfra.api.host import Host
    from pyinfra.api.state import State

pyinfra_patch.apply()


@operation()
def apply_layer(plan: LayerPlan) -> Generator[PyinfraCommand, None, None]:
    """Carry out one layer's plan on the host; the plan was made, and announced, from the state before."""
    if not plan:
        host.noop(f"the layer {plan.layer} is as it should be")
        return
    text = json.dumps(plan.to_json())
    if plan.layer == "box":
        # The program comes with the command: a first deploy finds none on the host.
        yield StringCommand(zipapp.from_memory("apply"), _stdin=[zipapp.first_line(), text])
    elif plan.layer == GUARDED_LAYER:
        yield from _guarded(plan.layer, text)
    else:
        yield StringCommand(zipapp.installed("apply"), _stdin=text)


def _guarded(layer: str, plan: str) -> Generator[PyinfraCommand, None, None]:
    """Change what a login depends on: armed before, proven by a fresh login after, or taken back at once and failed."""
    take_back = zipapp.installed("rollback", "fire", "--layer", layer)
    yield StringCommand(zipapp.installed("rollback", "arm", "--layer", layer))
    yield StringCommand(f"{zipapp.installed('apply')} || {{ {take_back}; exit 1; }}", _stdin=plan)
    problems: list[str] = []
    yield FunctionCommand(_prove_login, [problems], {})
    if problems:
        yield StringCommand(take_back)
        yield _failing(f"the layer {layer} was taken back: {problems[0]}")
    yield StringCommand(zipapp.installed("rollback", "disarm"))


def _prove_login(state: "State", host: "Host", problems: list[str]) -> None:
    """Prove that somebody can still log in, or say in `problems` why not."""
    del state
    try:
        if connection.is_local(host):
            logger.info(host.print_prefix + connection.prove_key_exchange(_listening(host)))
        else:
            logger.info(host.print_prefix + connection.prove_fresh_login(host))
    except connection.NoLoginError as error:
        logger.error(f"{host.print_prefix}{error}: taking the layer {GUARDED_LAYER} back")
        problems.append(str(error))


def _listening(host: "Host") -> list[tuple[str, int]]:
    """Return each address and port that sshd, or the socket that passes connections to it, listens on."""
    dump = StringCommand("PATH=$PATH:/usr/sbin sshd -T; systemctl show -p Listen --value ssh.socket")
    _status, output = host.run_shell_command(dump, _sudo=bool(host.data.get("plimsoll_sudo", False)))
    return connection.listening_addresses(output.stdout)


@operation()
def verify(before: Look) -> Generator[PyinfraCommand, None, None]:
    """Look again after the changes, show what was found, and fail the host if anything is not as it should be.

    Where nothing was to be changed, what was seen a moment ago is what there is.

    Yields nothing while pyinfra plans, since there is nothing to verify yet; a command that fails, rather
    than an exception, because that would end the run of every other host.
    """
    if not state.is_executing:
        host.noop("verified after the changes")
        return
    after = before if before.holds() else look(host, before.name)
    if after is None:
        yield _failing(f"{before.name}: the state after the changes could not be read")
        return
    report.show(after)
    bad = report.wrong(after)
    if bad:
        listed = "\n".join(bad)
        yield _failing(f"{len(bad)} of {len(after.plan.judgements)} controls are not as they should be:\n{listed}")


def _failing(message: str) -> StringCommand:
    return StringCommand(f"printf '%s\\n' {shlex.quote(message)} >&2; exit 1")

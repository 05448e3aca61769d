"""`pyinfra gx10 deploy.py`: look, plan, apply layer by layer, look again.

Running it again changes nothing. `--dry --diff` shows what it would do, to the line.
"""

from pyinfra import logger
from pyinfra.context import config, host, state

from plimsoll.controls import registry
from plimsoll.fleet.text import printable
from plimsoll.provision import operations, report
from plimsoll.provision.look import Look, look

config.REQUIRE_PYINFRA_VERSION = ">=3.10,<4"

LAYER_TIMEOUT_S = 900
"""Longer than the slowest layer may take: a package that waits 120 s for another package manager's lock and is
then fetched over a slow line; an initramfs that is rebuilt."""


def refuse(problems: list[str]) -> None:
    """Leave this host out of the run, with the reasons; the others go on."""
    for problem in problems:
        logger.error(f"{host.print_prefix}{printable(problem)}")
    state.fail_hosts({host})  # type: ignore[no-untyped-call]  # pyinfra does not annotate it


def harden(before: Look) -> None:
    """Queue the operations: the same sequence on every host, whatever its policy."""
    for layer in registry.LAYERS:
        operations.apply_layer(
            name=f"Layer {layer}",
            plan=before.plan.layer(layer),
            _sudo=before.sudo,
            _timeout=LAYER_TIMEOUT_S,
        )
    operations.verify(name="Verify the live state", before=before)


def main() -> None:
    """Look at the host, and harden it unless something forbids to."""
    if host.data.get("ssh_strict_host_key_checking") is None:
        refuse(["group_data/all.py was not read (strict host keys, time-outs): run pyinfra from the repository's root"])
        return
    before = look(host, host.name)
    if before is None:
        refuse(["its state could not be read: see above"])
        return
    host.data.plimsoll_sudo = before.sudo
    problems = before.problems()
    if problems:
        refuse(problems)
        return
    report.show_plan(before, with_diff=config.DIFF)
    harden(before)


main()

"""`pyinfra gx10 audit.py`: has the host drifted, and who overrides whom. Read only.

The same reading and judging as `plimsoll audit`, for those who have pyinfra's inventory, sudo password and
connectors at hand already. A host that is not as it should be fails, with its controls named.
"""

from pyinfra import logger
from pyinfra.context import config, host, state

from plimsoll.provision import report
from plimsoll.provision.look import Look, look

config.REQUIRE_PYINFRA_VERSION = ">=3.10,<4"


def problems(found: Look | None) -> list[str]:
    """Return a line for everything that is not as it should be, or could not be told."""
    return ["its state could not be read: see above"] if found is None else report.wrong(found)


def main() -> None:
    """Look once, show it, and fail the host if anything is not as it should be."""
    found = look(host, host.name)
    if found is not None:
        report.show(found)
    wrong = problems(found)
    for problem in wrong:
        logger.error(f"{host.print_prefix}{problem}")
    if wrong:
        state.fail_hosts({host})  # type: ignore[no-untyped-call]  # pyinfra does not annotate it


main()

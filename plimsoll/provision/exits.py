"""Exit codes where pyinfra itself would say 0 although nothing, or not all, was done."""

import atexit
import os
import signal
import sys
from types import FrameType
from typing import TYPE_CHECKING, NoReturn, cast

from pyinfra.context import ctx_state, state

if TYPE_CHECKING:
    from pyinfra.api.host import Host

EXIT_USAGE = 4
EXIT_INTERRUPTED = 130
_NOBODY = (
    "plimsoll: no host was meant, and nothing was done: the name is mistyped, or --limit or --exclude left nobody. "
    "An alias of ~/.ssh/config that only its jump host can resolve is given as @ssh/NAME."
)


def refuse_nobody() -> None:
    """Have this process end with 4 where its inventory turns out to be empty; for pyinfra's config.py.

    pyinfra warns of a name that it does not know, runs nothing, and exits with 0. It has no hook for that: what it
    would call for each host is never called. So it is looked for at the very end.
    """
    atexit.register(_end)


def _end() -> None:
    if nobody_was_meant():
        print(_NOBODY, file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(EXIT_USAGE)


def nobody_was_meant() -> bool:
    """Say whether pyinfra came as far as its inventory, and has no host in it, or none after --limit and --exclude."""
    if not ctx_state.isset() or not state.initialised:  # type: ignore[no-untyped-call]  # pyinfra does not annotate it
        return False
    # None where nothing limits them, which pyinfra's annotation leaves out
    limited = cast("list[Host] | None", state.limit_hosts)
    return not (list(state.inventory) if limited is None else limited)


def tell_of_interrupts() -> None:
    """Have Ctrl-C end this process with 130; for pyinfra's config.py, which is read after pyinfra has set its own 0."""
    signal.signal(signal.SIGINT, _interrupted)


def _interrupted(_signal: int, _frame: FrameType | None) -> NoReturn:
    print("plimsoll: interrupted", file=sys.stderr)
    sys.exit(EXIT_INTERRUPTED)

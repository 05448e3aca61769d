"""Progress lines on stderr, each with the time since the work began."""

import sys
import time


class Progress:
    """Prints what happens, when; silent where nobody watches.

    `quiet` drops the lines: a test reports only what failed.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._start_s = time.monotonic()

    def elapsed_s(self) -> float:
        """Seconds since the work began."""
        return time.monotonic() - self._start_s

    def say(self, text: str) -> None:
        """One line, at once."""
        if not self._quiet:
            print(f"[{self.elapsed_s():6.1f} s] {text}", file=sys.stderr, flush=True)

"""The whole live state of a host in one round trip."""

import json
from typing import Any

from pyinfra.api.exceptions import FactProcessError
from pyinfra.api.facts import FactBase

from plimsoll import zipapp


class HostState(FactBase[dict[str, Any] | None]):
    """What `plimsoll.box.state.read` returns; None where it could not be read.

    `pyinfra gx10 fact facts.state.HostState` prints it. Nothing is written on the host.
    """

    def command(self, request: str = "{}", on_stdin: bool = False) -> str:  # pyinfra's form
        """Return the command; `request` is a plimsoll.box.model.Request as JSON.

        With `on_stdin` the caller hands the program over with `_stdin`, which keeps it out of sudo's log.
        """
        command = zipapp.from_memory("state", "--request", request)
        return command if on_stdin else f"{command} <<'END'\n{zipapp.first_line()}\nEND"

    def process(self, output: list[str]) -> dict[str, Any]:
        """Return the JSON of the last line; a shell may have greeted before it."""
        try:
            found = json.loads(output[-1])
        except ValueError as error:
            raise FactProcessError(f"the host answered something else than a state: {output[-1][:80]!r}") from error
        if not isinstance(found, dict):
            raise FactProcessError("the host answered JSON that is not a state")
        return found


class LoginUid(FactBase[int | None]):
    """The user id that the login has, before any sudo."""

    def command(self) -> str:
        """Return the command."""
        return "id -u"

    def process(self, output: list[str]) -> int:
        """Return the number on the last line."""
        if not output[-1].strip().isdigit():
            raise FactProcessError(f"`id -u` answered {output[-1][:80]!r}")
        return int(output[-1])

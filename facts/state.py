"""The whole live state of a host in one round trip."""

import json
from typing import Any

from pyinfra.api.exceptions import FactProcessError
from pyinfra.api.facts import FactBase

from plimsoll import zipapp
from plimsoll.fleet import gather, reader


class HostState(FactBase[dict[str, Any] | None]):
    """What `plimsoll.box.state.read` returns; None where it could not be read.

    `pyinfra gx10 fact facts.state.HostState` prints it. Nothing is written on the host.
    """

    def command(self, request: str = "{}") -> str:
        """Return the command; `request` is a plimsoll.box.model.Request as JSON."""
        command = zipapp.from_memory("state", "--request", request)
        return f"{command} <<'END'\n{zipapp.first_line()}\nEND"

    def process(self, output: list[str]) -> dict[str, Any]:
        """Return the JSON of the last line; a shell may have greeted before it."""
        try:
            found = json.loads(output[-1])
        except ValueError as error:
            raise FactProcessError(f"the host answered something else than a state: {output[-1][:80]!r}") from error
        if not isinstance(found, dict):
            raise FactProcessError("the host answered JSON that is not a state")
        return found


class LoginAndState(FactBase[tuple[int, dict[str, Any]] | None]):
    """The user id of the login, and the state: as root where the login is root, or sudo wants no password.

    The caller hands over what an audit sends (`reader.first_line()` and a question) with `_stdin`, which keeps both
    out of sudo's log. None where nothing could be read.
    """

    def command(self, mark: str) -> str:
        """Return the command; `mark` is the question's, which the answer stands between."""
        self.mark = mark
        return f"id -u; {gather.as_root(reader.command())}"

    def process(self, output: list[str]) -> tuple[int, dict[str, Any]]:
        """Return both; a shell may have greeted before them."""
        state, problem = gather.parse("\n".join(output).encode(), self.mark)
        if state is None:
            raise FactProcessError(problem)
        uid = output[output.index(self.mark) - 1]
        if not uid.isdigit():
            raise FactProcessError(f"`id -u` answered {uid[:80]!r}")
        return int(uid), dict(state)

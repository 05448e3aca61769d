"""The unit that waits for a model's end: who is watched, how it is sent for, and how it is sent away."""

from collections.abc import Iterable

from plimsoll.box.host import Host, Ran
from plimsoll.box.serve.acting import Act
from plimsoll.box.serve.causes import Ended
from plimsoll.box.serve.launch import START_TIMEOUT_S, Seen
from plimsoll.box.serve.model import Holder, Model
from plimsoll.box.serve.records import State

PROGRAM = "/usr/local/bin/plimsoll"
SCORE = -900
"""It takes some 20 MB, and who is to say what was killed must not be killed first."""


def unit_of(name: str) -> str:
    """Return the unit that waits for a model's end."""
    return f"plimsoll-attend-{name}.service"


def command(name: str, program: str = PROGRAM) -> tuple[str, ...]:
    """Return the command that starts it: outside of any login, and again if it fails itself."""
    properties = {
        "OOMScoreAdjust": str(SCORE),
        "Restart": "on-failure",
        "RestartSec": "5s",
        "StartLimitIntervalSec": "300s",
        "StartLimitBurst": "3",
    }
    return (
        "systemd-run", "--quiet", "--collect", f"--unit={unit_of(name)}", "--slice=system.slice",
        f"--description=Wait for the end of the model {name}",
        *(f"--property={key}={value}" for key, value in properties.items()),
        "--", program, "serve", "attend", name,
    )  # fmt: skip


def send_for(act: Act, name: str) -> None:
    """Have somebody wait for a model's end; where nobody can, that is said, and the model serves all the same."""
    dismiss(act.host, name)
    ran: Ran = act.host.run(*command(name), timeout_s=START_TIMEOUT_S)
    if ran.code != 0:
        act.say(f"{name}: nobody waits for its end, which will not be told: {ran.problem}")


def dismiss(host: Host, name: str) -> None:
    """End the unit that waits, if there is one."""
    host.run("systemctl", "stop", "--", unit_of(name), timeout_s=START_TIMEOUT_S)


def is_there(host: Host, name: str) -> bool:
    """Say whether somebody waits for a model's end."""
    return host.run("systemctl", "is-active", "--quiet", "--", unit_of(name)).code == 0


def watched(seen: Seen, held: Iterable[Holder]) -> tuple[int, ...]:
    """Return whose end is the model's end: its main process, and who holds the GPU for it.

    A server was seen to report that it is healthy for an hour after the process that held its memory had died.
    """
    own = set(seen.pids)
    return tuple(sorted(({seen.main_pid} | {each.pid for each in held if each.holds_gpu and each.pid in own}) - {0}))


def ended(model: Model, state: State) -> Ended:
    """Return what is known of who ended, for whoever looks for the cause."""
    return Ended(
        unit=state.unit or model.unit, container=state.container, pids=state.pids, since_unix_s=state.began_unix_s
    )

"""Layer sshd: running before it is needed, protected, and never a source of unkillable processes."""

from plimsoll.box.model import Judgement, State, Wanted
from plimsoll.controls.record import DROP_IN, Action, Control, SessionScore, UnitProperty, UnitState, Why
from plimsoll.controls.values import Fixed, Size
from plimsoll.controls.weights import weights
from plimsoll.policy import Policy

CANDIDATES = ("ssh.service", "sshd.service")
SOCKET = "ssh.socket"


def own_unit(state: State) -> list[str]:
    """Return sshd's unit under its own name: ssh.service on Debian and Ubuntu, sshd.service elsewhere."""
    units = ((name, state["units"].get(name, {}).get("show", {})) for name in CANDIDATES)
    return [n for n, show in units if show.get("LoadState") in ("loaded", "masked") and show.get("Id") == n][:1]


def socket_is_active(state: State) -> bool:
    """Say whether systemd listens in sshd's place."""
    return bool(state["units"][SOCKET].get("show", {}).get("ActiveState") == "active")


def _retires_socket(policy: Policy, state: State) -> bool:
    show = state["units"][SOCKET].get("show", {})
    return policy.sshd.retire_socket and bool(show.get("LoadState") != "not-found")


class SshdState(UnitState):
    """sshd's unit state; a socket that hands its connections over is left alone."""

    def live_actions(self, wanted: Wanted, judgement: Judgement, state: State) -> list[Action]:
        """Check the configuration before the daemon is started with it; at boot it is started without its alias."""
        found = super().live_actions(wanted, judgement, state)
        actions = [("start-at-boot", wanted.target) if action[0] == "enable" else action for action in found]
        return [("sshd-check",), *actions] if ("start", wanted.target) in actions else actions


class SocketRetired(UnitState):
    """Opt-in: sshd listens by itself, and ssh.socket is gone, in the order that Ubuntu's links demand.

    Disabling removes the link by which ssh.service requires the socket, daemon-reload makes systemd forget
    it; only then can the socket be stopped without taking sshd with it. It is never masked: a package
    upgrade that starts a masked required unit would fail and leave sshd down.
    """

    def live_actions(self, wanted: Wanted, judgement: Judgement, state: State) -> list[Action]:
        """Disable, reload, start the service, stop the socket, restart the service."""
        del wanted
        if judgement.verdict in ("ok", "unknown"):
            return []
        service = own_unit(state)[0]
        return [("sshd-check",), ("retire-socket", SOCKET, service)]


CONTROLS: tuple[Control, ...] = (
    SshdState(
        id="sshd/running",
        target="ssh.service",
        targets=own_unit,
        default="enabled active",
        value=Fixed("enabled active"),
        why=Why(
            reason="Where a socket starts sshd at the first connection, a stall is the worst moment to need a new "
            "process. sshd is started at boot and stays.",
            evidence="On a starved box new logins hung for more than two minutes in uninterruptible sleep.",
            source="field report from an ASUS Ascent GX10, July 2026; Ubuntu 24.04 starts sshd by ssh.socket",
            cost="About 8 MiB for the daemon.",
            risk="None known: an active ssh.socket keeps its port and passes it on.",
            skip_if="You do not use OpenSSH's server.",
        ),
    ),
    SocketRetired(
        id="sshd/socket-retired",
        target=SOCKET,
        applies=_retires_socket,
        default="disabled inactive",
        value=Fixed("disabled inactive"),
        why=Why(
            reason="sshd without anybody in between: one unit less to fail at boot.",
            evidence="Opt-in. By default the listening socket stays as it is.",
            source="Ubuntu 24.04, openssh-server",
            cost="None.",
            risk="A port or address that only the socket has would be lost; such a host is refused with the port "
            "named. A fresh login is proven afterwards, or everything is taken back.",
            skip_if="sshd shall be reached on a port that only ssh.socket knows.",
        ),
    ),
    SessionScore(
        id="sshd/sessions",
        target="ssh.service",
        targets=own_unit,
        section="Service",
        name="OOMScoreAdjust",
        file=DROP_IN,
        why=Why(
            reason="sshd remembers the score it was started with and gives it back to every session. With -1000 "
            "on the unit all that is started from a login, the model server included, can no longer be chosen "
            "by the kernel, which then shoots everything else. The listener puts itself at -1000 anyway.",
            evidence="With OOMScoreAdjust=-1000 in a drop-in every new shell and its children had -1000; without "
            "it the listener had -1000 all the same and sessions 0.",
            source="Debian 13 virtual machine, OpenSSH 10.0",
            cost="None.",
            risk="None known.",
            skip_if="Never: recipes that set it protect the engine from the OOM killer, not sshd.",
        ),
    ),
    UnitProperty(
        id="sshd/MemoryMin",
        target="ssh.service",
        targets=own_unit,
        possible=CANDIDATES,
        section="Service",
        name="MemoryMin",
        file=DROP_IN,
        default="256M",
        value=Size(),
        why=Why(
            reason="sshd was not killed when boxes stopped answering, it was starved: its pages were gone.",
            evidence="With MemoryMin on unit and slice no page of a protected unit was swapped out under a hog; with "
            "a killer that measures the driver's memory beside it 31 of 31 logins came back within 3.1 s on a box "
            "that wedges otherwise.",
            source="Debian 13 virtual machine, kernel 6.12; a driver stand-in that books as reported",
            cost="Nothing while idle.",
            risk="daemon-reload alone leaves memory.min at 0, so the cgroup's file is written as well.",
            skip_if="Never, as far as is known.",
        ),
    ),
    *weights(
        "sshd",
        "ssh.service",
        "The key exchange of a login needs the processor while every core is in reclaim.",
        "Somebody who hammers sshd gets more of the processor and the disk.",
        targets=own_unit,
        possible=CANDIDATES,
    ),
)

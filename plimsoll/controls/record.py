"""The control record: what is set, where it is kept, how it comes into force, and why.

Applying, auditing, undoing and documenting a setting all read the same record; adding a setting is adding
one to the module of its layer.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from plimsoll.box.model import Judgement, Kind, Request, State, Waiver, Wanted
from plimsoll.box.quantities import parse_bytes
from plimsoll.box.readings import CGROUP_FILE
from plimsoll.controls.values import Fixed, ValueSpec
from plimsoll.policy import Policy

Action = tuple[str, ...]
"""An action of plimsoll.box.actions: its name and its arguments."""
DROP_IN = "/etc/systemd/system/{unit}.d/plimsoll.conf"
"""Where a unit's properties are kept; sorts after systemctl edit's override.conf and after names with digits."""
Waivers = Callable[[str], Waiver | None]


@dataclass(frozen=True)
class Why:
    """The reasons for a setting, as its page in the documentation gives them."""

    reason: str
    evidence: str
    source: str
    """Where the evidence is from: a measurement with its box and date, a manual page, a kernel source."""
    cost: str
    risk: str
    skip_if: str


@dataclass(frozen=True, kw_only=True)
class Control:
    """One setting. Subclasses say what kind it is and how it comes into force."""

    id: str
    """`LAYER/NAME`, unique; what a policy, a waiver and a report call it by."""
    why: Why
    target: str
    default: str
    value: ValueSpec
    name: str = ""
    section: str = ""
    file: str = ""
    targets: Callable[[State], Sequence[str]] | None = None
    """For a record that stands for several units: which of them this host has."""
    applies: Callable[[Policy, State], bool] | None = None
    """Says whether a host is to have it at all, for what is opt-in within its layer."""
    choose: Callable[[str, Policy, State], str] | None = None
    """Turns the policy's value into this host's, where that depends on the host."""
    made: bool = False
    """Whether the value is made from a section of the policy and from the host, and is not one to be given."""

    kind = Kind.SYSCTL
    """The kind of the record; every subclass has its own."""

    @property
    def shown_file(self) -> str:
        """Its file for a person, with a word in the place of what differs between several."""
        return self.file.format(unit="UNIT" if self.targets else self.target)

    @property
    def layer(self) -> str:
        """The layer that the control belongs to."""
        return self.id.partition("/")[0]

    def wanted(self, policy: Policy, state: State, waiver: Waivers) -> list[Wanted]:
        """Return what this control wants of this host: nothing where the policy leaves it alone (null)."""
        left_alone = self.id in policy.values and policy.values[self.id] is None
        if left_alone or (self.applies is not None and not self.applies(policy, state)):
            return []
        value = self.value.parse(policy.values[self.id]) if self.id in policy.values else self.default
        if self.choose is not None:
            value = self.choose(value, policy, state)
        names = [self.target] if self.targets is None else list(self.targets(state))
        return [self._one(name, value, waiver(self.id)) for name in names]

    def _one(self, target: str, value: str, waiver: Waiver | None) -> Wanted:
        own = self.id if self.targets is None else f"{self.id}:{target}"
        return Wanted(
            id=own,
            layer=self.layer,
            kind=self.kind,
            target=target,
            value=value,
            name=self.name,
            section=self.section,
            file=self.file.format(unit=target),
            waiver=waiver,
        )

    def request(self) -> Request:
        """Return what a state must contain before it is known what this control wants."""
        return Request()

    def paths(self, policy: Policy, units: Iterable[str]) -> set[str]:
        """Return the files that a deploy with this policy may write for it; `units` may be targets of any control."""
        del policy
        names = units if "{unit}" in self.file else (self.target,)
        return {self.file.format(unit=name) for name in names} if self.file else set()

    def after(self, wanted: Wanted) -> tuple[Action, ...]:
        """Return what has to follow a change of its file, when it is applied and when it is undone."""
        del wanted
        return ()

    def live_actions(self, wanted: Wanted, judgement: Judgement, state: State) -> list[Action]:
        """Return what brings the running system to the wanted value, where its file alone does not."""
        del wanted, judgement, state
        return []

    def undo(self) -> str:
        """Return, for the documentation, what reverting does beyond restoring the file."""
        return ""


@dataclass(frozen=True, kw_only=True)
class Sysctl(Control):
    """A kernel setting below /proc/sys; what this kernel does not have is left out and said."""

    kind = Kind.SYSCTL

    def request(self) -> Request:
        """Ask for the live value."""
        return Request(sysctls=(self.target,))

    def live_actions(self, wanted: Wanted, judgement: Judgement, state: State) -> list[Action]:
        """Write the value."""
        del state
        differs = judgement.live is not None and judgement.live.split() != wanted.value.split()
        return [("sysctl", wanted.target, wanted.value)] if differs else []

    def undo(self) -> str:
        """Say what happens to the live value."""
        return "The value that the kernel had before the first deploy is written back."


@dataclass(frozen=True, kw_only=True)
class UnitProperty(Control):
    """A property of a unit, kept in a drop-in; in force is what its cgroup or its process has."""

    kind = Kind.UNIT_PROPERTY
    possible: tuple[str, ...] = ()
    """The units that may be there, for a record that stands for several."""
    restarts: bool = False
    """Whether a score comes into force by restarting the unit; sshd is never restarted for this."""

    def request(self) -> Request:
        """Ask for the unit."""
        return Request(units=self.possible or (self.target,))

    def after(self, wanted: Wanted) -> tuple[Action, ...]:
        """Make systemd read its files."""
        restart = (("restart", wanted.target),) if self.restarts else ()
        return (("daemon-reload",), *restart)

    def live_actions(self, wanted: Wanted, judgement: Judgement, state: State) -> list[Action]:
        """Write the cgroup's file: daemon-reload alone leaves memory.min at 0 (seen with systemd 257)."""
        if judgement.verdict in ("unknown", "unsupported"):
            return []
        if self.name not in CGROUP_FILE:
            stale = judgement.live != wanted.value and judgement.verdict != "shadowed"
            return [("restart", wanted.target)] if self.restarts and stale else []
        chain = state["units"][wanted.target]["cgroup"]
        if not chain:
            return []
        raw = chain[0].get(CGROUP_FILE[self.name])
        value = wanted.value
        if self.name.startswith("Memory"):
            value = str(parse_bytes(wanted.value))
        if raw is not None and raw.split()[-1] == value:
            return []
        return [("cgroup", f"{chain[0]['path']}/{CGROUP_FILE[self.name]}", value)]

    def undo(self) -> str:
        """Say what happens to the cgroup."""
        return "The cgroup's file gets the value that it had before the first deploy."


@dataclass(frozen=True, kw_only=True)
class ManagerProperty(Control):
    """A setting of the system manager, of the user managers or of journald, kept in a .conf.d file."""

    kind = Kind.MANAGER_PROPERTY
    activation: tuple[Action, ...]

    def after(self, wanted: Wanted) -> tuple[Action, ...]:
        """Make the manager read its files."""
        del wanted
        return self.activation

    def live_actions(self, wanted: Wanted, judgement: Judgement, state: State) -> list[Action]:
        """Make the manager read its files, if it runs with older ones."""
        del wanted, state
        return list(self.activation) if judgement.verdict in ("pending", "drifted") else []


@dataclass(frozen=True, kw_only=True)
class UnitState(Control):
    """Whether a unit is enabled and running: `ENABLEMENT ACTIVITY`."""

    kind = Kind.UNIT_STATE

    def request(self) -> Request:
        """Ask for the unit."""
        return Request(units=(self.target,))

    def live_actions(self, wanted: Wanted, judgement: Judgement, state: State) -> list[Action]:
        """Enable, start, stop or mask, as far as it is not so."""
        del state
        enablement, activity = wanted.value.split()
        actions: list[Action] = []
        if judgement.persisted != wanted.value:
            actions.append(({"enabled": "enable", "masked": "mask"}[enablement], wanted.target))
        if judgement.live != wanted.value:
            actions.append(({"active": "start", "inactive": "stop"}[activity], wanted.target))
        return actions

    def undo(self) -> str:
        """Say what happens to the unit."""
        return "The unit is enabled, disabled, masked, started or stopped as it was."


@dataclass(frozen=True, kw_only=True)
class OwnUnit(UnitState):
    """A unit that comes with us: its file, which has a template of its name, and whether it is enabled and running."""

    def after(self, wanted: Wanted) -> tuple[Action, ...]:
        """Make systemd read the file, and have a running unit go by it."""
        return (("daemon-reload",), ("renew", wanted.target))

    def undo(self) -> str:
        """Say what happens to the unit."""
        return "The unit is stopped, and its file and what it kept below /var/lib are removed."


@dataclass(frozen=True, kw_only=True)
class Heartbeat(Control):
    """What a running daemon of ours says of itself, and the kernel of it; `name` says which of it."""

    kind = Kind.HEARTBEAT
    mend: str
    """The action that mends it: `hand-over` (no moment without a daemon), or `restart`."""

    def request(self) -> Request:
        """Ask for the unit, and for the file that it goes by."""
        return Request(units=(self.target,), files=(self.file,) if self.file else ())

    def after(self, wanted: Wanted) -> tuple[Action, ...]:
        """Have a running daemon read its file anew."""
        return ((self.mend, wanted.target),)

    def live_actions(self, wanted: Wanted, judgement: Judgement, state: State) -> list[Action]:
        """Mend a daemon that runs and is not as it should be."""
        is_running = state["units"][wanted.target].get("process") is not None
        return [(self.mend, wanted.target)] if is_running and judgement.verdict == "drifted" else []

    def undo(self) -> str:
        """Say where it goes."""
        return "It goes with the unit."


@dataclass(frozen=True, kw_only=True)
class Package(Control):
    """A Debian package that must be installed; which version is the release's choice."""

    kind = Kind.PACKAGE

    def request(self) -> Request:
        """Ask for the version."""
        return Request(packages=(self.target,))

    def live_actions(self, wanted: Wanted, judgement: Judgement, state: State) -> list[Action]:
        """Fetch it before anything of its layer is written, and install it afterwards."""
        del state
        if judgement.live is not None or judgement.verdict == "unsupported":
            return []
        return [("fetch", wanted.target), ("install", wanted.target)]

    def undo(self) -> str:
        """Say what happens to the package."""
        return "The package is purged if it was installed by a deploy."


@dataclass(frozen=True, kw_only=True)
class Cmdline(Control):
    """What a daemon was really started with; `default` and the chosen value are a JSON list of arguments."""

    kind = Kind.CMDLINE
    made: bool = True
    variable: str

    def request(self) -> Request:
        """Ask for the unit and the file that its arguments come from."""
        return Request(units=(self.target,), files=(self.file,))

    def after(self, wanted: Wanted) -> tuple[Action, ...]:
        """Start the daemon with the arguments that the file now has."""
        return (("try-restart", wanted.target),)

    def live_actions(self, wanted: Wanted, judgement: Judgement, state: State) -> list[Action]:
        """Restart a daemon that runs with other arguments than it would be started with."""
        del state
        stale = judgement.live is not None and judgement.live != wanted.value
        # where somebody else's line wins, it would get that one again, at every deploy
        return [("try-restart", wanted.target)] if stale and judgement.verdict != "shadowed" else []


@dataclass(frozen=True, kw_only=True)
class ModuleOption(Control):
    """An option of a kernel module, in force from the next boot."""

    kind = Kind.MODULE_OPTION

    def request(self) -> Request:
        """Ask for the module."""
        return Request(modules=(self.target,))

    def after(self, wanted: Wanted) -> tuple[Action, ...]:
        """Rebuild the initramfs, which on these boxes loads the driver."""
        del wanted
        return (("initramfs",),)

    def undo(self) -> str:
        """Say when it is undone."""
        return "In force from the next boot."


@dataclass(frozen=True, kw_only=True)
class SessionScore(Control):
    """The OOM score that a login hands to all that is started from it."""

    kind = Kind.SESSION_SCORE
    value: ValueSpec = field(default=Fixed("0"))
    default: str = "0"

    def request(self) -> Request:
        """Ask for the unit."""
        return Request(units=(self.target,))

    def after(self, wanted: Wanted) -> tuple[Action, ...]:
        """Make systemd read its files."""
        del wanted
        return (("daemon-reload",),)

    def live_actions(self, wanted: Wanted, judgement: Judgement, state: State) -> list[Action]:
        """Restart sshd, which hands on the score that it was started with; its sessions live on."""
        del state
        if judgement.verdict in ("unknown", "unsupported", "pending") or judgement.live in (None, wanted.value):
            return []
        return [("sshd-check",), ("restart", wanted.target)]


@dataclass(frozen=True, kw_only=True)
class Declaration(Control):
    """A file that declares what a section of the policy says: read when it is needed, nothing runs because of it."""

    kind = Kind.DECLARATION
    made: bool = True
    sets: str
    """What it says, for a person."""

    @property
    def shown_file(self) -> str:
        """Its file for a person; `target` is the word for what differs."""
        return self.file.format(unit=self.target)

    def declared(self, policy: Policy) -> dict[str, Any]:
        """Return what its files are to declare, in JSON types, by what differs in their paths."""
        raise NotImplementedError

    def wanted(self, policy: Policy, state: State, waiver: Waivers) -> list[Wanted]:
        """Return a control for each file that the policy asks for."""
        del state
        if self.id in policy.values:
            return []
        found = self.declared(policy).items()
        return [self._one(target, json.dumps(value, ensure_ascii=False), waiver(self.id)) for target, value in found]

    def paths(self, policy: Policy, units: Iterable[str]) -> set[str]:
        """Return the files that a deploy with this policy may write."""
        del units
        return {self.file.format(unit=target) for target in self.declared(policy)}

    def undo(self) -> str:
        """Say what happens to what runs."""
        return "The file goes; a model that runs goes on."

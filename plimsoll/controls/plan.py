"""From a policy and a state to what a deploy does: wanted controls, verdicts, and one plan a layer. Pure."""

import datetime
import difflib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from plimsoll.box.actions import known
from plimsoll.box.judge import judge
from plimsoll.box.model import GUARDED_LAYER, PLAN_SCHEMA, Judgement, Request, State, Verdict, Waiver, Wanted
from plimsoll.controls import box, preflight, registry, render
from plimsoll.controls.record import Action, Control
from plimsoll.policy import Policy

LEFT_ALONE = (Verdict.UNSUPPORTED, Verdict.WAIVED)
"""Verdicts whose control is not written: the kernel would refuse it, or somebody answers for the deviation."""


@dataclass(frozen=True)
class FileChange:
    """A file that has to be written, with what is there now (None: nothing, or nothing that can be shown)."""

    file: render.File
    before: str | None

    def diff(self) -> Iterator[str]:
        """Yield the change as a unified diff; a program and its data are named, not shown."""
        if self.file.is_program or not self.file.judged:
            size, start = len(self.file.content), self.file.sha256[:12]
            yield f"{self.file.path}: {size} bytes, sha256 {start}, made from this checkout and the inventory"
            return
        after = self.file.content.decode().splitlines()
        yield from difflib.unified_diff(
            (self.before or "").splitlines(), after, self.file.path, self.file.path, lineterm="", n=2
        )


@dataclass(frozen=True)
class LayerPlan:
    """What one layer has to do on one host; nothing if it is as it should be."""

    layer: str
    changes: tuple[FileChange, ...]
    actions: tuple[Action, ...]
    left_over: tuple[str, ...] = ()
    """Files that the layer wrote once and that the policy no longer asks for: they are put back as they were."""
    unproven: bool = False
    """Whether an earlier run was cut off before it had proven a login: the host would take the layer back."""

    def __bool__(self) -> bool:
        """Say whether there is anything to do."""
        return bool(self.changes or self.actions or self.left_over or self.unproven)

    def to_json(self) -> dict[str, Any]:
        """Return the plan in the form that `plimsoll apply` takes."""
        return {
            "schema": PLAN_SCHEMA,
            "layer": self.layer,
            "files": [_file_json(change.file) for change in self.changes],
            "put_back": list(self.left_over),
            "actions": [list(action) for action in self.actions],
        }

    def lines(self) -> list[str]:
        """Return what would be done, a line a file or action."""
        proof = ["prove a fresh login, which an earlier run did not come to"] if self.unproven else []
        written = [f"write {change.file.path}" for change in self.changes]
        back = [f"put back {path}" for path in self.left_over]
        return [*written, *back, *(" ".join(action) for action in self.actions), *proof]


def _file_json(file: render.File) -> dict[str, Any]:
    content = {"program": True} if file.is_program else {"content": file.content.decode()}
    checked = {"check": file.check} if file.check else {}
    return {"path": file.path, "mode": file.mode, "after": [" ".join(a) for a in file.after], **content, **checked}


@dataclass(frozen=True)
class HostPlan:
    """Everything that is known of one host before anything is done to it."""

    wanted: tuple[Wanted, ...]
    judgements: tuple[Judgement, ...]
    layers: tuple[LayerPlan, ...]

    def layer(self, name: str) -> LayerPlan:
        """Return the plan of a layer; an empty one where it is off."""
        return next((p for p in self.layers if p.layer == name), LayerPlan(name, (), ()))

    def without(self, held: Collection[str]) -> "HostPlan":
        """Return the plan without the layers that are held back, and without the verdicts over them."""
        judged = tuple(j for j in self.judgements if j.layer not in held)
        return HostPlan(self.wanted, judged, tuple(p for p in self.layers if p.layer not in held))


def request(policy: Policy) -> Request:
    """Return everything that a state must contain to plan for, judge and report on a host with this policy."""
    beyond = Request(files=managed_paths(policy), units=tuple(preflight.KILLERS))
    return registry.request_for(policy).merged(beyond)


def host_plan(policy: Policy, state: State, waiver: Callable[[str], Waiver | None], today: datetime.date) -> HostPlan:
    """Return what is wanted, found and to be done on the host with this state."""
    controls = registry.controls_for(policy)
    pairs = [(control, w) for control in controls for w in control.wanted(policy, state, waiver)]
    judgements = judge([w for _, w in pairs], state, today)
    kept = [
        _Kept(control, wanted, judgement)
        for (control, wanted), judgement in zip(pairs, judgements, strict=True)
        if judgement.verdict not in LEFT_ALONE
    ]
    files = {layer: _files(layer, kept) for layer in registry.LAYERS}
    files["box"] = list(render.program_files())
    everything = [*(w for _, w in pairs), *(f.wanted(layer) for layer, fs in files.items() for f in fs if f.judged)]
    files["box"] = render.box_files(everything, policy)
    return HostPlan(
        wanted=tuple(everything),
        judgements=(*judgements, *judge(everything[len(pairs) :], state, today)),
        layers=tuple(
            _layer_plan(layer, files[layer], kept, state)
            for layer in registry.LAYERS
            if registry.layer_is_on(layer, policy)
        ),
    )


@dataclass(frozen=True)
class _Kept:
    control: Control
    wanted: Wanted
    judgement: Judgement


def _files(layer: str, kept: Sequence[_Kept]) -> list[render.File]:
    mine = [k for k in kept if k.control.layer == layer]
    return render.layer_files(layer, [k.wanted for k in mine], [(k.wanted, k.control.after(k.wanted)) for k in mine])


def _layer_plan(layer: str, files: Sequence[render.File], kept: Sequence[_Kept], state: State) -> LayerPlan:
    changes = [FileChange(f, _text(state, f)) for f in files if not _is_as_wanted(state, f)]
    follow = (action for change in changes for action in change.file.after)
    live = (a for k in kept if k.control.layer == layer for a in k.control.live_actions(k.wanted, k.judgement, state))
    paths = {file.path for file in files}
    left_over = [p for p, owner in state["ledger"]["files"].items() if owner == layer and p not in paths]
    unproven = layer == GUARDED_LAYER and bool(state.get("rollback_armed"))
    steps = sorted(dict.fromkeys([*follow, *live]), key=lambda action: known(action).order)
    return LayerPlan(layer, tuple(changes), tuple(steps), tuple(left_over), unproven)


def _is_as_wanted(state: State, file: render.File) -> bool:
    found = state["files"].get(file.path, {})
    owned = (found.get("uid"), found.get("gid")) == (0, 0)
    return owned and (found.get("sha256"), found.get("mode")) == (file.sha256, file.mode)


def _text(state: State, file: render.File) -> str | None:
    text = state["files"].get(file.path, {}).get("text")
    return None if text is None else str(text)


def managed_paths(policy: Policy) -> tuple[str, ...]:
    """Return every path that a deploy may write with this policy, for the state to be read with them."""
    controls = registry.controls_for(policy)
    units = {name for c in controls for name in c.request().units} | {c.target for c in controls}
    kept = {path for c in controls for path in c.paths(policy, units)}
    return tuple(sorted(kept | {box.WANTED} | {f.path for f in render.program_files()}))

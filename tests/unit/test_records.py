"""Every control is a whole record: why, value, place."""

import dataclasses

import pytest

from plimsoll.box.model import Judgement, Kind, Verdict, Wanted
from plimsoll.controls import registry, trims
from plimsoll.controls.record import Control, Why
from plimsoll.policy import Policy

CONTROLS = [*registry.every_control(), *trims.controls(Policy(trims=("cups.service",)))]
each = pytest.mark.parametrize("control", CONTROLS, ids=[c.id for c in CONTROLS])


def test_ids_are_unique() -> None:
    """No two controls are called the same."""
    assert len({c.id for c in CONTROLS}) == len(CONTROLS)


@each
def test_why(control: Control) -> None:
    """A record gives its reason, evidence, source, cost, risk and who should skip it, each as a text of its own."""
    texts = [getattr(control.why, field.name) for field in dataclasses.fields(Why)]
    assert all(text.strip() == text and len(text) >= len("None.") for text in texts)
    assert len({control.why.reason, control.why.evidence, control.why.source}) == 3


GIVEN = [c for c in CONTROLS if not c.made]


@pytest.mark.parametrize("control", GIVEN, ids=[c.id for c in GIVEN])
def test_default_is_a_value_that_it_accepts(control: Control) -> None:
    """The default is what a policy could have said as well, in the form in which it is written."""
    digits = control.default.lstrip("-").isdigit()
    assert control.value.parse(int(control.default) if digits else control.default) == control.default
    assert control.value.describes


@each
def test_layer(control: Control) -> None:
    """The layer in the id is one that a deploy goes through."""
    assert control.layer in registry.LAYERS


@each
def test_place(control: Control) -> None:
    """What systemd or a package manager does not keep itself has an absolute path that persists it."""
    kept_elsewhere = {Kind.UNIT_STATE, Kind.PACKAGE, Kind.HEARTBEAT}
    assert control.file.startswith("/etc/") or (control.kind in kept_elsewhere and not control.file)
    needs_section = {Kind.UNIT_PROPERTY, Kind.MANAGER_PROPERTY, Kind.SESSION_SCORE}
    named = {*needs_section, Kind.HEARTBEAT, Kind.MODULE_OPTION, Kind.DECLARATION}
    assert bool(control.section) is (control.kind in needs_section)
    assert bool(control.name) is (control.kind in named)


def test_every_layer_of_a_policy_has_controls() -> None:
    """A layer that a policy can switch on is one that does something."""
    assert {c.layer for c in CONTROLS} == set(registry.LAYERS)
    assert set(type(Policy().layers).model_fields) == set(registry.LAYERS) - {"box", "trims"}


def test_layers_are_chosen_by_the_policy() -> None:
    """A policy gets the controls of its layers and no others; the program's own layer cannot be switched off."""
    nothing = dict.fromkeys(type(Policy().layers).model_fields, False)
    assert {c.layer for c in registry.controls_for(Policy.model_validate({"layers": nothing}))} == {"box"}
    assert "recovery" not in {c.layer for c in registry.controls_for(Policy())}


def test_what_starts_a_trimmed_unit_is_trimmed_too() -> None:
    """A unit that comes back over its socket, timer or bus name goes with its companions, each once."""
    named = trims.units(Policy(trims=("cups.service", "cups.socket", "dgx-dashboard.service")))
    assert named[:2] == ["cups.service", "cups.socket"]
    assert "dgx-dashboard-admin.service" in named
    assert len(named) == len(set(named))


def test_specs_by_id() -> None:
    """The inventory can look up what a value may be by the control's id."""
    assert registry.value_specs()["recovery/kernel.panic"].parse(20) == "20"


RESTARTING = [c for c in CONTROLS if c.id in ("earlyoom/arguments", "journald/OOMScoreAdjust")]


@pytest.mark.parametrize(("verdict", "restarts"), [(Verdict.DRIFTED, True), (Verdict.SHADOWED, False)])
@pytest.mark.parametrize("control", RESTARTING, ids=[c.id for c in RESTARTING])
def test_nothing_is_restarted_into_the_same_value(control: Control, verdict: Verdict, *, restarts: bool) -> None:
    """A daemon is restarted for another value, and not again and again where somebody else's line wins."""
    wanted = Wanted(control.id, control.layer, control.kind, control.target, "mine", control.name)
    found = Judgement(control.id, control.layer, verdict, "mine", "theirs", "theirs", None, "")
    assert bool(control.live_actions(wanted, found, {"units": {}})) == restarts


def test_both_kinds_that_restart_were_tried() -> None:
    """There is a daemon's command line, and a score that comes into force by a restart."""
    assert {type(control).__name__ for control in RESTARTING} == {"Cmdline", "UnitProperty"}

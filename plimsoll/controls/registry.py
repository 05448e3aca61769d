"""All controls, in the order in which their layers are applied."""

import functools
from collections.abc import Iterable, Mapping

from plimsoll.box import model
from plimsoll.box.model import Request
from plimsoll.controls import (
    box,
    driver_option,
    earlyoom,
    guard,
    journald,
    kernel,
    models,
    recovery,
    slices,
    sshd,
    trims,
    user_manager,
)
from plimsoll.controls.record import Control
from plimsoll.controls.values import ValueSpec
from plimsoll.policy import Policy

_MODULES = (box, kernel, slices, journald, sshd, user_manager, earlyoom, guard, models, recovery, driver_option)
LAYERS = model.LAYERS


@functools.cache
def every_control() -> tuple[Control, ...]:
    """Return every record there is, opt-in ones included; trims are made from the policy and are not among them."""
    return tuple(control for module in _MODULES for control in module.CONTROLS)


def value_specs() -> Mapping[str, ValueSpec]:
    """Return what each control's value may be, by control id."""
    return {control.id: control.value for control in every_control()}


def layer_is_on(layer: str, policy: Policy) -> bool:
    """Say whether the policy has a layer applied; the program's own is always on, trims if any are named."""
    if layer == "trims":
        return bool(policy.trims)
    return layer == "box" or bool(getattr(policy.layers, layer))


def controls_for(policy: Policy) -> list[Control]:
    """Return the controls of the layers that the policy has switched on, in order."""
    chosen: list[Control] = [c for c in every_control() if layer_is_on(c.layer, policy)]
    return [*chosen, *trims.controls(policy)]


def request_for(policy: Policy) -> Request:
    """Return what a state must contain before it is known what is wanted of the host."""
    requests: Iterable[Request] = (control.request() for control in controls_for(policy))
    return functools.reduce(Request.merged, requests, Request())

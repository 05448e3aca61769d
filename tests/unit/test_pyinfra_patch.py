"""What stands in for a function of pyinfra says the same as that function."""

import importlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pyinfra
import pytest
from pyinfra.api import util

from plimsoll.provision import pyinfra_patch

Order = Callable[[Any], list[int]]


def called(order: Order, state: object, depth: int) -> list[int]:
    """Call it from so many frames of this file."""
    return called(order, state, depth - 1) if depth else order(state)


@pytest.mark.parametrize("file", [__file__, "no-such-file.py", None])
@pytest.mark.parametrize("is_cli", [False, True])
@pytest.mark.parametrize("depth", [0, 5])
def test_the_same_order(file: str | None, depth: int, monkeypatch: pytest.MonkeyPatch, *, is_cli: bool) -> None:
    """Both find the same lines, whichever file is deployed, on the command line and in a program."""
    monkeypatch.setattr(pyinfra, "is_cli", is_cli)
    state = SimpleNamespace(current_deploy_filename=file, current_op_file_number=7)
    original, ours = (
        called(order, state, depth) for order in (util.get_operation_order_from_stack, pyinfra_patch.order)
    )
    assert ours == original
    assert (len(ours) - is_cli > depth) == (file != "no-such-file.py")


def test_it_is_in_place() -> None:
    """Operations are ordered by it once ours are loaded."""
    importlib.import_module("plimsoll.provision.operations")
    assert vars(importlib.import_module("pyinfra.api.operation"))[pyinfra_patch.NAME] is pyinfra_patch.order


def test_a_release_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where pyinfra has no such function, nothing is put there."""
    module = importlib.import_module("pyinfra.api.operation")
    monkeypatch.delattr(module, pyinfra_patch.NAME)
    pyinfra_patch.apply()
    assert not hasattr(module, pyinfra_patch.NAME)

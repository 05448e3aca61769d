"""Fixtures of several files: a box that `plimsoll serve` acts on, and a model server on it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.serve_box import Box, Server, box, serving


@pytest.fixture
def b(tmp_path: Path) -> Iterator[Box]:
    """Yield a box with 110 GiB available, whose attendants are processes that only wait."""
    with box(tmp_path) as made:
        yield made


@pytest.fixture
def server() -> Iterator[Server]:
    """Yield a server that serves `m`."""
    with serving("m") as made:
        yield made

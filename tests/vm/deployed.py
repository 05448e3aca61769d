"""Fixtures: two machines that were deployed to, each made once and shared by all tests that leave it as it was."""

from collections.abc import Iterator

import pytest

from tests.vm import deploying


@pytest.fixture(scope="session")
def hardened() -> Iterator[deploying.Deployed]:
    """Yield a Debian 13 machine with the default layers, and what it was like before them."""
    with deploying.started("hardened") as machine:
        before = deploying.stock_values(machine)
        yield deploying.Deployed(machine, before, deploying.deploy(machine))


@pytest.fixture(scope="session")
def opted_in() -> Iterator[deploying.Deployed]:
    """Yield a Debian 13 machine with every opt-in layer on, which has the units that its trims name."""
    with deploying.started("opted-in") as machine:
        before = deploying.stock_values(machine)
        deploying.add_bus_activated_unit(machine)
        yield deploying.Deployed(machine, before, deploying.deploy(machine, deploying.OPTED_IN))

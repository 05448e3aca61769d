"""Fixtures: machines that were deployed to, each made once and shared by all tests that leave it as it was."""

from collections.abc import Iterator

import pytest

from lab.snapshot import Spec
from tests.vm import deploying


@pytest.fixture(scope="session")
def hardened() -> Iterator[deploying.Deployed]:
    """Yield a Debian 13 machine with the default layers, and what it was like before them."""
    with deploying.started("trixie") as machine:
        yield deploying.observed_deploy(machine)


@pytest.fixture(scope="session")
def hardened_bookworm() -> Iterator[deploying.Deployed]:
    """Yield a Debian 12 machine with the default layers."""
    with deploying.started("bookworm", Spec("bookworm")) as machine:
        yield deploying.observed_deploy(machine)


@pytest.fixture(scope="session", params=["hardened", "hardened_bookworm"], ids=["trixie", "bookworm"])
def either(request: pytest.FixtureRequest) -> deploying.Deployed:
    """Return the machine of each release in turn."""
    deployed: deploying.Deployed = request.getfixturevalue(request.param)
    return deployed


@pytest.fixture(scope="session")
def opted_in() -> Iterator[deploying.Deployed]:
    """Yield a Debian 13 machine with every opt-in layer on, which has the unit that its trims name."""
    with deploying.started("opted-in") as machine:
        deploying.add_bus_activated_unit(machine)
        yield deploying.observed_deploy(machine, deploying.OPTED_IN)

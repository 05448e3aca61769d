"""What `--dry --diff` announces is exactly what a run changes, and by itself it changes nothing."""

import re
from collections.abc import Iterator

import pytest

from lab.machine import Machine
from tests.vm import deploying

pytestmark = [pytest.mark.vm, pytest.mark.timeout(1800)]

OWN_RECORDS = ("/var/lib/plimsoll/ledger.json", "/var/lib/plimsoll/guard/arming.json")
"""What every deploy keeps for the way back, and what the guard keeps once it runs: what is not announced."""
KEPT_BESIDE = "/etc/default/earlyoom.dpkg-dist"
"""The package's own configuration, which dpkg puts beside ours."""
# the file in /home is sudo's: it marks that somebody has used it
FILES = (
    "find /etc /usr /boot /opt /root /home /var/lib /var/spool -xdev "
    r"-not -path '/var/lib/systemd/*' -not -path '/var/lib/apt/*' -not -path '/var/lib/dpkg/*' "
    r"-not -path '/etc/rc?.d/*' -not -name '*.pyc' -not -name __pycache__ -not -name .sudo_as_admin_successful "
    r"\( -type f -printf '%p %m %U:%G %s %T@ %i\n' -o -type l -printf '%p -> %l\n' "
    r"-o -type d -printf '%p/ %m %U:%G\n' \)"
)
# the kernel lowers the last one by itself when an interrupt takes long, as on a busy emulated processor
SYSCTLS = r"sysctl -a -r '^(vm|kernel)\.' 2>/dev/null | grep -Ev 'random|ns_last_pid|pty|perf_event_max_sample_rate'"
UNITS = "systemctl list-unit-files --no-legend --no-pager --full"
DIFFED = re.compile(r"    --- (\S+)")


class Announced:
    """What a dry run said that it would do."""

    def __init__(self, said: str) -> None:
        self.files = set(re.findall(r"^  \w+: write (\S+)$", said, re.MULTILINE))
        self.actions = [tuple(a.split()) for a in re.findall(r"^  \w+: ((?!write )\S+ ?.*)$", said, re.MULTILINE)]
        self.contents = contents(said)

    def values(self, action: str) -> dict[str, str]:
        """Return what it would set by this kind of action."""
        return {a[1]: a[2] for a in self.actions if a[0] == action}


def contents(said: str) -> dict[str, str]:
    """Return, for every file that the diff shows, the text that it would have; all of them are new."""
    found: dict[str, str] = {}
    path = ""
    for line in said.splitlines():
        if match := DIFFED.match(line):
            path = match[1]
        elif path and line.startswith("    +") and not line.startswith("    +++"):
            found[path] = found.get(path, "") + line[5:] + "\n"
    return found


def lines(machine: Machine, command: str) -> set[str]:
    """Return the lines of an output."""
    return set(machine.succeed(command, timeout_s=300).splitlines())


def paths(changed: set[str]) -> set[str]:
    """Return the files and links among the lines of FILES, directories left out."""
    return {line.split(" ")[0] for line in changed if not line.split(" ")[0].endswith("/")}


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    """Yield a machine that nothing was done to."""
    with deploying.started("dry") as started:
        yield started


@pytest.fixture(scope="module")
def stock(machine: Machine) -> dict[str, set[str]]:
    """Return files, kernel values and units as they were before anything."""
    return {command: lines(machine, command) for command in (FILES, SYSCTLS, UNITS)}


@pytest.fixture(scope="module")
def announced(machine: Machine, stock: dict[str, set[str]]) -> Announced:
    """Return what a dry run on the stock machine announces."""
    del stock
    run = deploying.pyinfra(machine, "--dry", "--diff", machine.name, "deploy.py")
    assert run.code == 0, run.err
    return Announced(run.err)


def test_a_dry_run_changes_nothing(machine: Machine, stock: dict[str, set[str]], announced: Announced) -> None:
    """After a dry run every file, kernel value and unit is as it was before."""
    assert announced.files
    changed = {line for command, before in stock.items() for line in before ^ lines(machine, command)}
    assert changed == set()
    machine.fail("test -e /var/lib/plimsoll -o -e /run/plimsoll -o -e /etc/plimsoll")


def test_a_run_changes_what_was_announced(machine: Machine, stock: dict[str, set[str]], announced: Announced) -> None:
    """A run writes the announced files with the announced content, sets the announced values, and nothing else."""
    deploying.deploy(machine)
    installed = {*machine.succeed("dpkg --listfiles earlyoom").split(), KEPT_BESIDE}
    now = {command: lines(machine, command) for command in stock}
    new = paths(now[FILES] ^ stock[FILES]) - installed
    links = {path for path in new if ".wants/" in path}
    assert new - links == (announced.files | set(OWN_RECORDS)) - installed
    assert {path: machine.read(path) for path in announced.contents} == announced.contents
    assert announced.files - announced.contents.keys() == {
        "/usr/local/lib/plimsoll/plimsoll.pyz",
        "/etc/plimsoll/wanted.json",
    }
    changed = {line.split(" = ")[0]: line.split(" = ")[1] for line in now[SYSCTLS] - stock[SYSCTLS]}
    assert announced.values("sysctl") == changed
    units = {line.split()[0] for line in now[UNITS] ^ stock[UNITS]}
    assert units == {
        "plimsoll-verify.service",
        "plimsoll-verify.timer",
        "plimsoll-verify.path",
        "plimsoll-guard.service",
        "plimsoll-serve@.service",
        "earlyoom.service",
    }
    for path, value in announced.values("cgroup").items():
        assert machine.read(path).split()[-1] == value, path
    assert ("fetch", "earlyoom") in announced.actions
    assert ("install", "earlyoom") in announced.actions

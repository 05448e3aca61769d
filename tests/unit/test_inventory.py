"""The inventory: merging, looking hosts up, and one clear message for whatever is wrong."""

import socket
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plimsoll import inventory
from plimsoll.inventory import Inventory, InventoryError, load
from plimsoll.policy import Policy

ROOT = Path(__file__).resolve().parents[2]


class _Number:
    """A control's value that must be a number."""

    def parse(self, raw: object) -> str:
        if isinstance(raw, bool) or not str(raw).isdecimal():
            raise ValueError(f"wants a whole number, not {raw!r}")
        return str(raw)


SPECS: Mapping[str, inventory.ValueSpec] = {
    "kernel/vm.min_free_kbytes": _Number(),
    "sshd/MemoryMin": _Number(),
}


@pytest.fixture(autouse=True)
def _controls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inventory, "_value_specs", lambda: SPECS)
    monkeypatch.setattr(inventory, "_kernel_reserve_kib", lambda: 262144)


Loader = Callable[[str], Inventory]


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Loader:
    """Return a function that loads an inventory of the given text."""
    monkeypatch.chdir(tmp_path)

    def _read(text: str) -> Inventory:
        path = tmp_path / "hosts.yml"
        path.write_text(text)
        return load(path)

    return _read


MERGING = """\
defaults:
  layers: {recovery: true, earlyoom: false}
  values: {sshd/MemoryMin: 1, kernel/vm.min_free_kbytes: 70000}
  trims: [cups.service]
groups:
  spark:
    hosts: [gx10, gx11]
    policy:
      layers: {earlyoom: true}
      values: {sshd/MemoryMin: 2}
  late:
    hosts: [gx10]
    policy:
      values: {sshd/MemoryMin: 3}
      trims: [gdm.service]
hosts:
  gx10:
    policy:
      values: {kernel/vm.min_free_kbytes: null}
  gx11:
  gx12: {address: 192.0.2.12, port: 2222, user: admin}
"""


def test_merge_order(read: Loader) -> None:
    """Defaults, then groups in file order, then the host: mappings merge, lists are replaced, null stays."""
    loaded = read(MERGING)
    gx10 = loaded.host("gx10")
    assert gx10.groups == ("spark", "late")
    assert gx10.policy.layers.recovery
    assert gx10.policy.layers.earlyoom
    assert gx10.policy.values == {"sshd/MemoryMin": 3, "kernel/vm.min_free_kbytes": None}
    assert gx10.policy.trims == ("gdm.service",)
    assert loaded.host("gx11").policy.values == {"sshd/MemoryMin": 2, "kernel/vm.min_free_kbytes": 70000}
    assert not loaded.host("gx12").policy.layers.earlyoom
    assert loaded.groups == {"spark": ("gx10", "gx11"), "late": ("gx10",)}


def test_floor_above_the_default_reserve(read: Loader) -> None:
    """The floor is held against the default reserve where no level names one; null leaves it unknown."""
    floor = "defaults:\n  ladder:\n    floor_gib: 0.2\n"
    with pytest.raises(InventoryError, match=r"floor_gib \(0.2 GiB\) must lie above .* \(0.25 GiB\)") as caught:
        read(floor)
    assert caught.value.line == 3
    assert read(floor + "  values: {kernel/vm.min_free_kbytes: null}\n").defaults.ladder.floor_gib == 0.2


def test_connection_data(read: Loader) -> None:
    """Address, port and user are there only where they are given."""
    loaded = read(MERGING)
    given_host, plain = loaded.host("gx12"), loaded.host("gx11")
    assert (given_host.address, given_host.port, given_host.user) == ("192.0.2.12", 2222, "admin")
    assert (plain.address, plain.port, plain.user) == (None, None, None)


def test_unknown_host_has_the_defaults(read: Loader) -> None:
    """A host that is not in the file gets the defaults and is said to be unknown."""
    host = read(MERGING).host("elsewhere")
    assert not host.known
    assert host.name == "elsewhere"
    assert host.groups == ()
    assert host.policy.layers.recovery
    assert host.policy.trims == ("cups.service",)


def test_ssh_connector_prefix(read: Loader) -> None:
    """A host given to pyinfra as @ssh/NAME is NAME."""
    assert read(MERGING).host("@ssh/gx10").groups == ("spark", "late")


def test_local_host(read: Loader, monkeypatch: pytest.MonkeyPatch) -> None:
    """@local is an entry of that name, else the machine's host name, else the defaults."""
    monkeypatch.setattr(socket, "gethostname", lambda: "gx10")
    assert read("hosts: {'@local': , gx10: }").host("@local").name == "@local"
    by_name = read(MERGING).host("@local")
    assert by_name.name == "gx10"
    assert by_name.known
    assert not read("hosts: {other: }").host("@local").known


WAIVERS = """\
hosts: {a: , b: , c: }
groups: {some: {hosts: [b]}}
waivers:
  - {control: sshd/MemoryMin, hosts: [a], reason: one, until: 2027-01-31}
  - {control: sshd/MemoryMin, hosts: [some], reason: two, until: 2027-01-31}
  - {control: sshd/MemoryMin, hosts: [all], reason: three, until: 2027-01-31}
"""


@pytest.mark.parametrize(
    ("host", "reasons"),
    [("a", ["one", "three"]), ("b", ["two", "three"]), ("c", ["three"]), ("x", ["three"])],
)
def test_waivers_of_a_host(read: Loader, host: str, reasons: list[str]) -> None:
    """A waiver is for hosts, for the hosts of groups, or for all, unknown ones included."""
    assert [waiver.reason for waiver in read(WAIVERS).host(host).waivers] == reasons


def test_waiver_of_a_trim(read: Loader) -> None:
    """A unit that some level trims is a control that can be waived."""
    waiver = "waivers:\n- {control: trims/cups.service, hosts: [all], reason: x, until: 2027-01-31}\n"
    assert read("defaults: {trims: [cups.service]}\n" + waiver).waivers[0].control == "trims/cups.service"
    with pytest.raises(InventoryError, match=r"unknown control 'trims/cups\.service'"):
        read(waiver)


def test_waiver_holds_through_its_last_day(read: Loader) -> None:
    """A waiver holds on the day it names and not on the next."""
    waiver = read(WAIVERS).waivers[0]
    assert waiver.holds(date(2027, 1, 31))
    assert not waiver.holds(date(2027, 2, 1))


def test_empty_sections_are_fine(read: Loader) -> None:
    """A section whose lines are all commented out is an empty one."""
    text = "defaults:\n  values:\n  trims:\n  layers:\ngroups:\nwaivers:\nhosts:\n  gx10:\n    policy:\n"
    assert read(text).host("gx10").known


def test_an_empty_section_overrides_nothing(read: Loader) -> None:
    """An empty section of a host leaves what its groups and the defaults say."""
    loaded = read("defaults: {values: {sshd/MemoryMin: 1}}\nhosts: {a: {policy: {values: , layers: }}}\n")
    assert loaded.host("a").policy.values == {"sshd/MemoryMin": 1}


def test_one_level_may_rely_on_another(read: Loader) -> None:
    """The ladder is judged when all levels are merged, not level by level."""
    loaded = read(
        "defaults: {ladder: {slow_enter_gib: 2.0, floor_gib: 1.0}}\n"
        "hosts: {a: {policy: {ladder: {slow_leave_gib: 2.5}}}}\n"
    )
    assert loaded.host("a").policy.ladder.slow_leave_gib == 2.5


ERRORS = [
    ("", "1: is empty; the keys are defaults, groups, hosts, waivers"),
    ("- a\n", "1: the file: must be a mapping (key: value), not ['a']"),
    ("host: {}\n", "1: unknown key 'host' in the file; did you mean 'hosts'?"),
    (
        "defaults:\n  layers:\n    kernal: true\n",
        "3: unknown key 'kernal' in defaults.layers; did you mean 'kernel'?",
    ),
    (
        "defaults:\n  values:\n    kernel/vm.min_free_kbyte: 5\n",
        ("3: unknown control 'kernel/vm.min_free_kbyte' in defaults.values; did you mean 'kernel/vm.min_free_kbytes'?"),
    ),
    (
        "defaults:\n  layers:\n    kernel: yes\n",
        '3: defaults.layers.kernel must be true or false, not "yes": write true or false',
    ),
    ("defaults: {layers: {kernel: 1}}\n", "1: defaults.layers.kernel must be true or false, not 1"),
    (
        "defaults:\n  values:\n    sshd/MemoryMin: 0644\n",
        "3: programs read 0644 differently: write a plain decimal number, or put it in quotes",
    ),
    (
        "hosts:\n  a:\n    policy:\n      values:\n        sshd/MemoryMin: off\n",
        "5: sshd/MemoryMin in hosts.a.policy.values: wants a whole number, not 'off'",
    ),
    (
        "defaults: {values: {sshd/MemoryMin: [1]}}\n",
        "1: defaults.values.sshd/MemoryMin: must be one value, not a list or a mapping",
    ),
    (
        'defaults:\n  ladder:\n    floor_gib: "3"\n',
        '3: defaults.ladder.floor_gib must be a number, not "3": leave out the quotes',
    ),
    ("defaults: {ladder: {floor_gib: -1}}\n", "1: defaults.ladder.floor_gib must be greater than 0, not -1"),
    (
        "defaults: {earlyoom: {term_percent: 5.5}}\n",
        "1: defaults.earlyoom.term_percent must be a whole number, not 5.5",
    ),
    ("hosts: {a: {port: true}}\n", "1: hosts.a.port must be a whole number, not true"),
    ("hosts: {a: {port: 70000}}\n", "1: hosts.a.port must be less than or equal to 65535, not 70000"),
    ("hosts: {a: {user: 5}}\n", "1: hosts.a.user must be text, not 5: put it in quotes"),
    (
        "hosts: {a: {address: -oProxyCommand=x}}\n",
        "1: hosts.a.address: must be one word that does not begin with '-', not '-oProxyCommand=x'",
    ),
    ("hosts: {a: 5}\n", "1: hosts.a: must be a mapping (key: value), not 5"),
    ("hosts: [a]\n", "1: hosts: must be a mapping (key: value), not ['a']"),
    ("hosts: {'a b': }\n", "1: 'a b' is no host name: letters, digits, '.', '_' and '-'"),
    ("hosts: {a: }\ngroups:\n  a: {hosts: [a]}\n", "3: 'a' is a host as well as a group: rename one of them"),
    ("groups: {all: }\n", "1: the group name 'all' is taken by pyinfra: choose another"),
    ("groups: {_x: }\n", "1: '_x' is no group name: a-z first, then a-z, 0-9, '_' and '-'"),
    (
        "hosts: {gx10: }\ngroups:\n  spark:\n    hosts:\n      - gx10\n      - gx11\n",
        "6: unknown host 'gx11' in groups.spark.hosts; did you mean 'gx10'?",
    ),
    ("hosts:\n  a:\n  a:\n", "3: the key 'a' is there twice (first on line 2)"),
    ("hosts:\n\ta:\n", "2: a tab where YAML allows none: use spaces"),
    (
        "defaults: {trims: [ssh.service]}\n",
        "1: defaults.trims.0: ssh.service must not be trimmed: the box could not be reached without it",
    ),
    (
        "waivers:\n- control: sshd/MemoryMi\n  hosts: [all]\n  reason: x\n  until: 2027-01-31\n",
        "2: unknown control 'sshd/MemoryMi'; did you mean 'sshd/MemoryMin'?",
    ),
    (
        "waivers:\n- control: sshd/MemoryMin\n  hosts: [gx10]\n  reason: x\n  until: 2027-01-31\n",
        "3: unknown host or group 'gx10' in waivers.0.hosts; known: all",
    ),
    (
        "waivers:\n- control: sshd/MemoryMin\n  hosts: []\n  reason: x\n  until: 2027-01-31\n",
        "3: waivers.0.hosts: must name hosts, groups or all",
    ),
    (
        "waivers:\n- control: sshd/MemoryMin\n  hosts: [all]\n  reason: ' '\n  until: 2027-01-31\n",
        "4: waivers.0.reason: must not be blank",
    ),
    (
        "waivers:\n- control: sshd/MemoryMin\n  hosts: [all]\n  until: 2027-01-31\n",
        "2: waivers.0 lacks the key 'reason'",
    ),
    (
        "waivers:\n- control: sshd/MemoryMin\n  hosts: [all]\n  reason: x\n  until: 2026-02-30\n",
        "5: waivers.0.until: must be a day that exists, as YYYY-MM-DD, not '2026-02-30'",
    ),
    (
        "waivers:\n- control: sshd/MemoryMin\n  hosts: [all]\n  reason: x\n  until: 20270131\n",
        "5: waivers.0.until: must be a day that exists, as YYYY-MM-DD, not 20270131",
    ),
    (
        "defaults:\n  ladder:\n    floor_gib: 9.5\n",
        "3: ladder.slow_enter_gib (8 GiB) must lie above ladder.floor_gib (9.5 GiB)",
    ),
    (
        (
            "groups:\n  g:\n    hosts: [a]\n    policy:\n      ladder: {slow_enter_gib: 5.0}\n"
            "hosts:\n  a:\n    policy:\n      earlyoom:\n        term_percent: 5\n"
        ),
        "10: ladder.slow_enter_gib (5 GiB) must lie above earlyoom.term_percent (6.08 GiB) (policy of a)",
    ),
]


@pytest.mark.parametrize(("text", "message"), ERRORS)
def test_one_clear_message(read: Loader, text: str, message: str) -> None:
    """Each mistake is one message with file, line, what is wrong and what to write."""
    with pytest.raises(InventoryError) as caught:
        read(text)
    assert str(caught.value) == f"hosts.yml:{message}"


def test_the_first_error_by_line(read: Loader) -> None:
    """Of several errors the one that stands first in the file is told."""
    with pytest.raises(InventoryError) as caught:
        read("hosts:\n  a:\n    port: x\ndefaults:\n  trims: [foo]\n")
    assert caught.value.line == 3


def test_missing_file(tmp_path: Path) -> None:
    """A file that is not there is told with its path and what to do."""
    with pytest.raises(InventoryError, match="no such file: create it, or set PLIMSOLL_INVENTORY"):
        load(tmp_path / "none.yml")


def test_directory_and_foreign_encoding(tmp_path: Path) -> None:
    """A directory and a file that is not UTF-8 are told as what they are."""
    with pytest.raises(InventoryError, match="cannot be read"):
        load(tmp_path)
    path = tmp_path / "latin1.yml"
    path.write_bytes(b"hosts:\n  gr\xfcn:\n")
    with pytest.raises(InventoryError, match="not UTF-8") as caught:
        load(path)
    assert caught.value.line == 2


def test_path_is_beside_the_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The inventory is the repository's, wherever one stands, unless the environment names another."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PLIMSOLL_INVENTORY", raising=False)
    assert inventory.inventory_path() == ROOT / "inventory" / "hosts.yml"
    monkeypatch.setenv("PLIMSOLL_INVENTORY", "other.yml")
    assert inventory.inventory_path() == Path("other.yml")


def test_load_or_exit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A bad inventory ends the process with status 4 and one line on stderr."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "bad.yml"
    path.write_text("host: 1\n")
    monkeypatch.setenv("PLIMSOLL_INVENTORY", str(path))
    with pytest.raises(SystemExit) as caught:
        inventory.load_or_exit()
    assert caught.value.code == 4
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "plimsoll: bad.yml:1: unknown key 'host' in the file; did you mean 'hosts'?\n"


def test_shipped_inventory_has_the_harmless_defaults() -> None:
    """What is shipped names gx10 in the group spark and changes no default."""
    host = load(ROOT / "inventory" / "hosts.yml").host("gx10")
    assert host.known
    assert host.groups == ("spark",)
    assert host.policy == Policy()


_WORDS = st.sampled_from(
    [
        "defaults",
        "groups",
        "hosts",
        "waivers",
        "policy",
        "layers",
        "values",
        "ladder",
        "kernel",
        "trims",
        "all",
        "sshd/MemoryMin",
        "floor_gib",
        "until",
        "reason",
        "control",
        "gx10",
        "earlyoom",
        "term_percent",
        "prefer",
    ]
)
_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    _WORDS,
    st.sampled_from(["yes", "1:30", "0644", "64M", "2027-01-31"]),
)
_TREES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_WORDS, inner, max_size=4),
    max_leaves=20,
)


def _flow(tree: object) -> str:
    """Write a tree as flow YAML without quoting anything, which is where the traps are."""
    if isinstance(tree, dict):
        return "{" + ", ".join(f"{key}: {_flow(value)}" for key, value in tree.items()) + "}"
    if isinstance(tree, list):
        return "[" + ", ".join(map(_flow, tree)) + "]"
    if tree is None:
        return "null"
    return str(tree).lower() if isinstance(tree, bool) else str(tree)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tree=_TREES)
def test_load_raises_nothing_else(tmp_path: Path, tree: object) -> None:
    """Whatever a file says, the outcome is an inventory or one InventoryError."""
    path = tmp_path / "hosts.yml"
    path.write_text(_flow(tree))
    try:
        loaded = load(path)
    except InventoryError as error:
        assert "\n" not in str(error)
    else:
        assert loaded.host("gx10").policy is not None

"""`plimsoll explain`: the record of a control, and what a host has for it."""

import dataclasses
import datetime
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from plimsoll.box import state
from plimsoll.box.chain import Link
from plimsoll.controls import plan, registry
from plimsoll.fleet import cli, explain, gather, records
from plimsoll.inventory import Host, load
from tests.unit.builders import stock_host, write_tree

INVENTORY = """\
defaults:
  layers: {earlyoom: false}
groups: {pair: {hosts: [a, b]}}
hosts:
  a: {policy: {values: {kernel/kernel.sysrq: 176}}}
  b: {policy: {trims: [cups.service]}}
  c: {policy: {values: {kernel/kernel.sysrq: null}}}
  d: {policy: {layers: {kernel: false}}}
waivers:
  - {control: kernel/kernel.sysrq, hosts: [pair], reason: strangers at the console, until: 2099-12-31}
"""
TODAY = datetime.date(2026, 12, 1)
SYSRQ = "kernel/kernel.sysrq"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return what runs a command line against INVENTORY, and gives exit code, output and diagnostics."""
    path = tmp_path / "hosts.yml"
    path.write_text(INVENTORY)
    monkeypatch.setenv("PLIMSOLL_INVENTORY", str(path))
    monkeypatch.setenv("COLUMNS", "80")

    def command_line(*arguments: str) -> tuple[int, str, str]:
        code = cli.run(["explain", *arguments])
        return (code, *capsys.readouterr())

    return command_line


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the states that hosts answer with, by name; one that has none here does not answer."""
    found: dict[str, Any] = {}

    def asked(hosts: Sequence[Host], _ssh: gather.Ssh, each: Callable[[gather.Answer], object]) -> list[object]:
        return [each(gather.Answer(h, found.get(h.name), "" if h.name in found else "timed out", 5)) for h in hosts]

    monkeypatch.setattr(gather, "gather", asked)
    return found


def _state_of(tmp_path: Path, host: str, **files: str) -> dict[str, Any]:
    root = tmp_path / "root"
    root.mkdir()
    machine = stock_host(root)
    write_tree(root, files)
    policy = load(tmp_path / "hosts.yml").host(host).policy
    read: dict[str, Any] = json.loads(json.dumps(state.read(plan.request(policy), machine)))
    return read


def _words(text: str) -> str:
    return " ".join(text.split())


# --- the record -------------------------------------------------------------------------------------


def test_the_record(run: Run) -> None:
    """Without a host: what is set, where, why, how it is undone, and what the inventory makes of it."""
    code, out, err = run(SYSRQ)
    control = next(c for c in registry.every_control() if c.id == SYSRQ)
    assert (code, err) == (0, "")
    text = _words(out)
    for why in dataclasses.asdict(control.why).values():
        assert _words(why) in text
    for said in (
        "default 1",
        "accepts a whole number from 0 to 511",
        "kept in /etc/sysctl.d/zz-plimsoll.conf",
        "comes into force at once",
        "sudo plimsoll revert --layer kernel",
        "pair, until 2099-12-31: strangers at the console",
    ):
        assert said in text


def test_values_of_the_inventory(run: Run) -> None:
    """Each value once, with its hosts: from the policy, by default, left alone, or with its layer off."""
    found = json.loads(run(SYSRQ, "--json")[1])["control"]["values"]
    assert [(v["value"], v["note"], v["hosts"], v["others"]) for v in found] == [
        ("176", "from the policy", ["a"], False),
        ("1", "the default", ["b"], True),
        (None, "left alone (null)", ["c"], False),
        (None, "the layer kernel is off", ["d"], False),
    ]
    assert "1 (the default): b, hosts that are not in the inventory" in _words(run(SYSRQ)[1])


def test_a_value_that_all_have(run: Run) -> None:
    """A value that is the same everywhere is said without a list of hosts."""
    assert "5s (the default): every host" in _words(run("journald/SyncIntervalSec")[1])


def test_a_unit_that_is_trimmed(run: Run) -> None:
    """A unit that the inventory names is a control of its own, and so is one that could be named."""
    assert "masked inactive (the default): b" in _words(run("trims/cups.socket")[1])
    assert "not named in trims: every host" in _words(run("trims/snapd.service")[1])


@pytest.mark.parametrize("control", [c.id for c in registry.every_control()])
def test_every_record_is_explained(run: Run, control: str) -> None:
    """No control is without what it sets, when it takes effect, how it is verified and undone."""
    found = json.loads(run(control, "--json")[1])
    assert found["schema"] == "plimsoll.explain/1"
    record = found["control"]
    assert record["id"] == control
    for key in ("sets", "accepts", "values", "kept_in", "in_force", "verified_by", "undo", "why"):
        assert record[key]


def test_one_unit_of_several(run: Run) -> None:
    """A control as a report names it, with its unit, is explained by its record."""
    assert json.loads(run("sshd/MemoryMin:ssh.service", "--json")[1])["control"]["id"] == "sshd/MemoryMin"


def test_a_file(run: Run) -> None:
    """A file is explained by what it keeps, the program's own too."""
    found = json.loads(run("kernel/file:/etc/sysctl.d/zz-plimsoll.conf", "--json")[1])["control"]
    assert SYSRQ in found["keeps"]
    code, out, _ = run("box/file:/usr/local/bin/plimsoll")
    assert (code, "belongs to the program itself" in _words(out)) == (0, True)


@pytest.mark.parametrize("layer", registry.LAYERS)
def test_a_layer(run: Run, layer: str) -> None:
    """A layer lists its controls, and no others."""
    code, out, _ = run(layer)
    listed = json.loads(run(layer, "--json")[1])["controls"]
    assert code == 0
    assert listed
    for control in registry.every_control():
        assert (control.id in out.splitlines()) is (control.layer == layer)
    assert all(control["layer"] == layer and control["id"] in out for control in listed)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("kernel.sysrq", f"did you mean '{SYSRQ}'?"),
        ("kernel/kernel.sysrk", f"did you mean '{SYSRQ}'?"),
        ("kernal", "did you mean 'kernel'?"),
        (f"{SYSRQ}:ssh.service", f"did you mean '{SYSRQ}'?"),
        ("\x1b[2J", "known: "),
    ],
)
def test_unknown_controls(run: Run, name: str, hint: str) -> None:
    """A name that is none is exit code 4, with the nearest one."""
    code, out, err = run(name)
    assert (code, out) == (4, "")
    assert f"there is no control or layer {name!r}; " in err
    assert hint in err
    assert "\x1b" not in err


def test_a_layer_with_a_host(run: Run) -> None:
    """A layer has no value on a host: exit code 4, and what to name instead."""
    code, _, err = run("kernel", "a")
    assert code == 4
    assert "name one of its controls (`plimsoll explain kernel` lists them)" in err


@pytest.mark.usefixtures("run")
def test_whatever_an_audit_names(tmp_path: Path) -> None:
    """Every control in a report, with its unit or as a file, can be asked for by that name."""
    known = load(tmp_path / "hosts.yml")
    read = _state_of(tmp_path, "b")
    named = [wanted.id for wanted in plan.host_plan(known.host("b").policy, read, lambda _: None, TODAY).wanted]
    assert {"sshd/running:ssh.service", "trims/cups.path", "box/file:/usr/local/bin/plimsoll"} <= set(named)
    for name in named:
        assert name.startswith(records.record(name, known)["id"])


# --- on a host --------------------------------------------------------------------------------------


def test_what_a_host_has(run: Run, answers: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a host: verdict, live and persisted value, and every file of the chain with its role."""
    links = [
        Link("/etc/sysctl.d/99-local.conf", 3, "0", "decides"),
        Link("/usr/lib/x.conf", 0, None, "hidden", "/etc/x.conf"),
    ]
    monkeypatch.setattr(explain, "chain", lambda *_: links)
    answers["b"] = _state_of(tmp_path, "b", **{"/etc/sysctl.d/99-local.conf": "\n\nkernel.sysrq = 0\n"})
    code, out, err = run("kernel/kernel.hung_task_timeout_secs", "b")
    text = _words(out)
    assert (code, err) == (2, "")
    assert "b: kernel/kernel.hung_task_timeout_secs is unpersisted" in text
    assert "wanted 120 live 120 after a reboot none" in text
    assert "decides │ /etc/sysctl.d/99-local.conf:3 │ 0" in text
    assert "hidden by /etc/x.conf │ /usr/lib/x.conf │ │" in text
    assert all(len(line) <= 80 for line in out.splitlines())


def test_the_chain_of_a_sysctl(run: Run, answers: dict[str, Any], tmp_path: Path) -> None:
    """A later file that wins is in the chain, with its line and its value."""
    write = {"/etc/sysctl.d/99-local.conf": "# mine\nkernel.hung_task_timeout_secs = 300\n"}
    answers["b"] = _state_of(tmp_path, "b", **write)
    code, out, _ = run("kernel/kernel.hung_task_timeout_secs", "b", "--json")
    (found,) = json.loads(out)["hosts"]["b"]["controls"]
    assert code == 2
    assert (found["persisted"], found["decided_by"]) == ("300", {"file": "/etc/sysctl.d/99-local.conf", "line": 2})
    link = next(each for each in found["chain"] if each["role"] == "decides")
    assert (link["file"], link["line"], link["value"]) == ("/etc/sysctl.d/99-local.conf", 2, "300")


@pytest.mark.usefixtures("answers")
def test_a_host_that_does_not_answer(run: Run) -> None:
    """The record is shown, the host is not known and why, and the exit code is 3."""
    code, out, _ = run(SYSRQ, "a")
    assert code == 3
    assert "a: not known: timed out" in out
    assert "a whole number from 0 to 511" in out
    found = json.loads(run(SYSRQ, "a", "--json")[1])["hosts"]["a"]
    assert found == {"reached": False, "problem": "timed out", "controls": []}


@pytest.mark.parametrize("lie", [{}, {"units": "\x1b[2J"}, {"units": {"ssh.service": None}, "sysctl": []}])
def test_a_host_that_lies(run: Run, answers: dict[str, Any], lie: dict[str, Any]) -> None:
    """A state of another form than any host has is a host of which nothing is known, not an error of ours."""
    answers["a"] = lie
    code, out, err = run(SYSRQ, "a")
    assert (code, err) == (3, "")
    assert "a: not known: what the host answered cannot be judged" in out
    assert "\x1b" not in out


def test_a_host_that_sends_escapes(run: Run, answers: dict[str, Any], tmp_path: Path) -> None:
    """What a host says is shown as characters."""
    answers["b"] = _state_of(tmp_path, "b")
    answers["b"]["sysctl"]["kernel.sysrq"] = {"value": "\x1b[2J[red]1[/red]"}
    _, out, _ = run(SYSRQ, "b")
    assert "\x1b" not in out
    assert r"\x1b[2J[red]1[/red]" in out


def test_a_host_that_is_left_alone(run: Run, answers: dict[str, Any], tmp_path: Path) -> None:
    """Where the policy leaves a control alone, that is said, and is no drift."""
    answers["c"] = _state_of(tmp_path, "c")
    code, out, _ = run(SYSRQ, "c")
    assert code == 0
    assert "c: left alone with this" in out


def test_several_units_and_hosts(run: Run, answers: dict[str, Any], tmp_path: Path) -> None:
    """A record that stands for several units has each of them, on every host of a group; the worst is the exit code."""
    answers["b"] = _state_of(tmp_path, "b")
    code, out, _ = run("slices/login:MemoryMin", "pair", "--json")
    hosts = json.loads(out)["hosts"]
    assert code == 3
    assert not hosts["a"]["reached"]
    units = [control["id"] for control in hosts["b"]["controls"]]
    assert "slices/login:MemoryMin:dbus.service" in units
    assert len(units) > 1
    one = json.loads(run("slices/login:MemoryMin:dbus.service", "b", "--json")[1])["hosts"]["b"]["controls"]
    assert [control["id"] for control in one] == ["slices/login:MemoryMin:dbus.service"]


def test_a_file_on_a_host(run: Run, answers: dict[str, Any], tmp_path: Path) -> None:
    """A file of ours has a verdict on a host like any control."""
    answers["b"] = _state_of(tmp_path, "b")
    code, out, _ = run("kernel/file:/etc/sysctl.d/zz-plimsoll.conf", "b")
    assert code == 2
    assert "is drifted" in _words(out)
    assert "/etc/sysctl.d/zz-plimsoll.conf is missing" in _words(out)


@pytest.mark.usefixtures("answers")
def test_a_name_that_is_no_host(run: Run) -> None:
    """What ssh would take for an option is refused before anything is connected to."""
    code, _, err = run(SYSRQ, "--", "-oProxyCommand=x")
    assert code == 4
    assert "is no host name" in err

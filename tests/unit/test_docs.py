"""The documentation says what the code does: made parts are fresh, commands and links exist, formats fit."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import pytest

from lab.cli import cli as lab_cli
from plimsoll import inventory
from plimsoll.box import apply, cli, errors, ledger, state, verify
from plimsoll.box.host import Host
from plimsoll.box.model import Judgement, Kind, Place, Request, Verdict, Waiver, Wanted
from plimsoll.controls import docs, registry, render
from plimsoll.controls.record import Control
from plimsoll.fleet import doctor_checks, login, watch
from plimsoll.fleet.cli import COMMANDS
from plimsoll.fleet.report import Finding, FindingKind, HostReport, Report, WaiverNote

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
BY_HAND = [page for page in PAGES if page.name not in ("test-results.md", docs.SETTINGS)]


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


# --- what is made -----------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [docs.SETTINGS, *docs.MADE])
def test_made_pages_are_fresh(page: str) -> None:
    """A page with made parts is what `make docs` would write now."""
    assert (docs.DOCS / page).read_text() == docs.pages()[docs.DOCS / page], f"docs/{page} is stale: make docs"


def test_a_page_without_a_place_for_a_made_part_is_refused() -> None:
    """A part that has lost its marks is an error, and not silently left out."""
    with pytest.raises(ValueError, match="must have one place"):
        docs.filled("no marks here", {"policy": lambda: "x"})


def test_what_is_written_by_hand_around_a_made_part_is_kept() -> None:
    """Only what stands between the marks is replaced."""
    text = "before\n<!-- made: a -->\nold\n<!-- end: a -->\nafter\n"
    assert docs.filled(text, {"a": lambda: "new"}) == text.replace("old", "new")


@pytest.mark.parametrize("control", registry.every_control(), ids=lambda control: control.id)
def test_every_control_has_its_reasons_on_the_page(control: Control) -> None:
    """A control's section has its six reasons, its default, its values, and how it is verified and undone."""
    section = docs.settings_page().split(f"### {control.id}\n")[1].split("\n### ")[0].split("\n## ")[0]
    why = control.why
    for text in (why.reason, why.evidence, why.source, why.cost, why.risk, why.skip_if):
        assert text in section
    assert control.value.describes in section
    assert docs.verified_by(control) in section
    assert f"`{docs.undo_command(control.layer)}`" in section


@pytest.mark.parametrize("layer", registry.LAYERS)
def test_the_undo_that_is_named_is_accepted(
    layer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command that a page names for undoing a layer is one that the program takes from root."""
    monkeypatch.setattr("os.geteuid", lambda: 0)
    words = docs.undo_command(layer).split()[2:]
    assert cli.main([*words, "--dry"], Host(str(tmp_path))) == 0, capsys.readouterr().err


def test_every_layer_is_on_the_page() -> None:
    """Each layer has a heading with what it is for."""
    page = docs.settings_page()
    for layer in registry.LAYERS:
        assert f"\n## {layer}\n" in page
        assert docs.layer_summary(layer)[1:] in page


# --- the inventory ----------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(3))
def test_the_inventorys_examples_are_valid(number: int, tmp_path: Path) -> None:
    """Each YAML example of docs/inventory.md can be loaded as it stands."""
    examples = re.findall(r"```yaml\n(.*?)```", (docs.DOCS / "inventory.md").read_text(), re.DOTALL)
    assert len(examples) == 3
    file = tmp_path / "hosts.yml"
    file.write_text(examples[number])
    assert inventory.load(file).hosts


def test_the_inventorys_mistakes_are_told_as_the_page_says(tmp_path: Path) -> None:
    """Each mistake of docs/inventory.md has the message that stands beside it."""
    text = (docs.DOCS / "inventory.md").read_text()
    rows = re.findall(r"^\| `(.+)` \| `plimsoll: inventory/hosts.yml:4: (.+)` \|$", text, re.MULTILINE)
    assert len(rows) == 4
    file = tmp_path / "hosts.yml"
    for mistake, message in rows:
        file.write_text(f"hosts:\n  gx10:\n    policy:\n      {mistake}\n")
        with pytest.raises(inventory.InventoryError) as raised:
            inventory.load(file)
        assert (raised.value.line, raised.value.message) == (4, message)


@pytest.mark.parametrize("model", ["_File", "_HostEntry", "_GroupEntry", "_WaiverEntry"])
def test_every_key_of_the_inventory_is_described(model: str) -> None:
    """Each key of the file, of a host, a group and a waiver is named in docs/inventory.md."""
    text = (docs.DOCS / "inventory.md").read_text()
    prefix = {"_File": "", "_HostEntry": "hosts.NAME.", "_GroupEntry": "groups.NAME.", "_WaiverEntry": "waivers[]."}
    for key in getattr(inventory, model).model_fields:
        assert re.search(rf"`{re.escape(prefix[model] + key)}\b", text), key


# --- commands ---------------------------------------------------------------------------------------


def _shell_lines(page: Path) -> Iterator[str]:
    for block in re.findall(r"^```(?:sh)?\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
        yield from (line.partition(" #")[0].strip() for line in block.splitlines())
    yield from re.findall(r"`([^`\n]+)`", page.read_text())


def _after(line: str, command: str) -> list[str] | None:
    """Return the words after `command` if the line runs it."""
    words = line.removeprefix("sudo ").replace("[", "").replace("]", "").split()
    parts = command.split()
    start = [word.rpartition("/")[2] if position == 0 else word for position, word in enumerate(words)]
    return words[len(parts) :] if start[: len(parts)] == parts else None


def _subparsers(parser: Any) -> Mapping[str, Any]:  # noqa: ANN401  # argparse has no public type for it
    found: Mapping[str, Any] = next(action for action in parser._actions if action.dest == "command").choices
    return found


def _box_options() -> dict[str, set[str]]:
    return {name: _options(_subparsers(cli._parser(name))[name]) for name in cli._COMMANDS}


def _options(parser: Any) -> set[str]:  # noqa: ANN401  # as above
    """Return the options of a command, and of those below it."""
    below = [each for action in parser._actions if isinstance(action.choices, dict) for each in action.choices.values()]
    return set(parser._option_string_actions).union(*map(_options, below))


def _click_options(command: click.Command) -> set[str]:
    return {option for parameter in command.params for option in parameter.opts if option.startswith("--")}


def _fleet_options() -> dict[str, set[str]]:
    loaded = {name: __import__(module, fromlist=["command"]).command for name, module in COMMANDS.items()}
    return {name: _click_options(command) for name, command in loaded.items()}


def _plimsoll_options() -> dict[str, set[str]]:
    """Return what either side has of a command that both know."""
    box, fleet = _box_options(), _fleet_options()
    return {name: box.get(name, set()) | fleet.get(name, set()) for name in {*box, *fleet}}


def _make_targets() -> dict[str, set[str]]:
    names = re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return {name: set() for name in names}


KNOWN: list[tuple[str, Callable[[], dict[str, set[str]]]]] = [
    ("make", _make_targets),
    ("plimsoll", _plimsoll_options),
    ("python -m lab", lambda: {name: _click_options(command) for name, command in lab_cli.commands.items()}),
]


@pytest.mark.parametrize(("command", "known"), KNOWN, ids=[command for command, _ in KNOWN])
@pytest.mark.parametrize("page", BY_HAND, ids=_name)
def test_commands_exist(page: Path, command: str, known: Callable[[], dict[str, set[str]]]) -> None:
    """Every make target, plimsoll command and lab command that a page names exists, with its options."""
    found = known()
    for line in _shell_lines(page):
        words = _after(line, command)
        if not words or not re.fullmatch(r"[a-z][a-z-]*", words[0]):
            continue
        assert words[0] in found, line
        # behind `--` stands another program's command line
        own = words[: words.index("--")] if "--" in words else words
        options = {word.partition("=")[0] for word in own if re.match(r"--[a-z]", word)}
        assert options <= found[words[0]], line


def test_commands_are_really_looked_at() -> None:
    """The pages name commands of each kind, so that the test above has something to fail on."""
    lines = [line for page in BY_HAND for line in _shell_lines(page)]
    for command, _known in KNOWN:
        assert any(_after(line, command) for line in lines), command


def test_pyinfra_is_given_files_that_exist() -> None:
    """Every `pyinfra TARGET FILE.py` names files of this repository."""
    named = 0
    for line in (line for page in BY_HAND for line in _shell_lines(page)):
        for word in _after(line, "pyinfra") or ():
            if word.endswith(".py"):
                named += 1
                assert (ROOT / word).exists(), line
    assert named


def test_exit_codes_are_those_of_the_program() -> None:
    """The README's table has each exit code of the program."""
    listed = set(map(int, re.findall(r"^\| (\d+) \|", (ROOT / "README.md").read_text(), re.MULTILINE)))
    assert listed == set(errors.EXIT_CODES)


def test_every_verdict_is_explained_in_order() -> None:
    """The table of verdicts has them all, in their order of precedence."""
    text = (docs.DOCS / "how-it-works.md").read_text()
    rows = re.findall(r"^\| `([a-z]+)` \|.*\|$", text.split("## Verdicts")[1].split("\n## ")[0], re.MULTILINE)
    assert rows == list(Verdict)


# --- links and words --------------------------------------------------------------------------------


def _headings(page: Path) -> set[str]:
    return {docs.anchor(heading) for heading in re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)}


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_relative_links_lead_somewhere(page: Path) -> None:
    """Every link within the repository leads to a file that exists, and to a heading in it."""
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith("https://"):
            continue
        path, _, fragment = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        assert not fragment or fragment in _headings(file), target


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_pages_stand_alone(page: Path) -> None:
    """No page has a path of the machine it was written on, a tracker's number, or a note to be filled in later."""
    text = page.read_text()
    assert str(ROOT) not in text
    assert str(Path.home() / ".ssh") not in text
    assert not re.search(r"(?i)\bissues? #?\d|\B#\d+\b|\b(TODO|FIXME|TBD|XXX|coming soon|lorem ipsum)\b", text)


# --- schemas ----------------------------------------------------------------------------------------

TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
IGNORED = {"$schema", "$defs", "title", "description"}


def _schema(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((docs.DOCS / "schemas" / f"plimsoll.{name}-1.json").read_text())
    return found


def _problems(value: Any, schema: Mapping[str, Any], whole: Mapping[str, Any], at: str = "$") -> list[str]:  # noqa: ANN401
    """Return where a JSON value does not fit: the part of JSON Schema that the files use, and no more."""
    if "$ref" in schema:
        return _problems(value, whole["$defs"][schema["$ref"].rpartition("/")[2]], whole, at)
    found: list[str] = []
    for keyword, wanted in schema.items():
        if keyword not in IGNORED:
            found += CHECKS[keyword](value, wanted, schema, whole, at)
    return found


def _check_type(value: Any, wanted: Any, *others: Any) -> list[str]:  # noqa: ANN401
    names = [wanted] if isinstance(wanted, str) else wanted
    is_bool = isinstance(value, bool)
    fits = any(isinstance(value, TYPES[n]) and (not is_bool or n == "boolean") for n in names)
    return [] if fits else [f"{others[-1]}: {value!r} is not {wanted}"]


def _check_required(value: Any, wanted: Any, *others: Any) -> list[str]:  # noqa: ANN401
    return [f"{others[-1]}: lacks {key}" for key in wanted if isinstance(value, dict) and key not in value]


def _check_properties(value: Any, wanted: Any, _schema: Any, whole: Any, at: str) -> list[str]:  # noqa: ANN401
    pairs = [(k, v) for k, v in value.items() if k in wanted] if isinstance(value, dict) else []
    return [p for key, item in pairs for p in _problems(item, wanted[key], whole, f"{at}.{key}")]


def _check_additional(value: Any, wanted: Any, schema: Any, whole: Any, at: str) -> list[str]:  # noqa: ANN401
    extra = set(value) - set(schema.get("properties", ())) if isinstance(value, dict) else set()
    if wanted is False:
        return [f"{at}: {key} is not known" for key in extra]
    return [p for key in extra for p in _problems(value[key], wanted, whole, f"{at}.{key}")]


def _check_items(value: Any, wanted: Any, _schema: Any, whole: Any, at: str) -> list[str]:  # noqa: ANN401
    items = value if isinstance(value, list) else []
    return [p for number, item in enumerate(items) for p in _problems(item, wanted, whole, f"{at}[{number}]")]


def _check_one_of(value: Any, wanted: Any, _schema: Any, whole: Any, at: str) -> list[str]:  # noqa: ANN401
    fitting = [each for each in wanted if not _problems(value, each, whole, at)]
    return [] if len(fitting) == 1 else [f"{at}: {value!r} fits {len(fitting)} of {len(wanted)} forms"]


CHECKS: Mapping[str, Callable[..., list[str]]] = {
    "type": _check_type,
    "required": _check_required,
    "properties": _check_properties,
    "additionalProperties": _check_additional,
    "items": _check_items,
    "oneOf": _check_one_of,
    "const": lambda value, wanted, *o: [] if value == wanted else [f"{o[-1]}: {value!r} is not {wanted!r}"],
    "enum": lambda value, wanted, *o: [] if value in wanted else [f"{o[-1]}: {value!r} is none of {wanted}"],
    "minimum": lambda value, wanted, *o: [] if value >= wanted else [f"{o[-1]}: {value} is below {wanted}"],
    "pattern": lambda value, wanted, *o: [] if re.search(wanted, value) else [f"{o[-1]}: {value!r}"],
}


def _fits(name: str, document: object) -> None:
    schema = _schema(name)
    assert _problems(json.loads(json.dumps(document)), schema, schema) == []


def test_a_state_fits_its_schema() -> None:
    """What is read of the machine that the test runs on has the promised form."""
    _fits("state", state.read(Request(sysctls=("kernel.panic", "no.such.key"), units=("ssh.service",)), Host()))


def test_an_audit_fits_its_schema() -> None:
    """A report with each verdict, with and without a place, has the promised form."""
    judgements = [
        Judgement("kernel/a", "kernel", verdict, "1", live, live, place, "why")
        for verdict in Verdict
        for live, place in (("1", Place("/etc/sysctl.d/a.conf", 3)), (None, None))
    ]
    _fits("audit", verify.report("gx10", judgements))


def test_a_report_over_many_hosts_fits_its_schema() -> None:
    """So has a report with a host that was not reached, a finding, a fact that is not known, and a waiver."""
    finding = Finding("x", FindingKind.KNOWN_BAD, "t", "s", "w", "e", "s", "2026-08-01", "a", Place("/etc/x", 2))
    judgement = Judgement("kernel/a", "kernel", Verdict.OK, "1", "1", "1", None, "")
    reached = HostReport("a", True, "", (judgement,), (finding,), ("no root",), {"kernel": "6.12", "driver": None}, 7)
    note = WaiverNote("kernel/a", ("a",), "2026-01-31", "expired")
    report = Report("2026-11-30T10:00:00+00:00", (reached, HostReport("b", reached=False, problem="why")), (note,))
    _fits("audit", report.to_json())
    assert Report.from_json(json.loads(json.dumps(report.to_json()))) == report


def test_what_is_watched_fits_its_schema() -> None:
    """A line of each kind of event, with every status and every outcome of a login, has the promised form."""
    for event in ("login", "command", "held"):
        for status in watch.Status:
            for kind in login.Kind:
                _fits("watch", json.loads(watch.Event("gx10", event, status, 1, kind, 0.5, "why", True).json()))


def test_what_the_doctor_says_fits_its_schema() -> None:
    """A check of each outcome, of a host and of this machine, has the promised form."""
    healths = list(doctor_checks.Health)
    checks = [doctor_checks.Check("python", h, "3.11", "", hosts).to_json() for h in healths for hosts in ((), ("a",))]
    _fits("doctor", {"schema": doctor_checks.DOCTOR_SCHEMA, "checks": checks})


def test_what_is_wanted_fits_its_schema() -> None:
    """/etc/plimsoll/wanted.json with every kind of control, and a waiver, has the promised form."""
    wanted = [Wanted(f"kernel/{kind}", "kernel", kind, "target", "value", file="/etc/x") for kind in Kind]
    waived = Wanted("kernel/w", "kernel", Kind.SYSCTL, "a.b", "1", waiver=Waiver("a reason", "2027-01-31"))
    _fits("wanted", json.loads(render.wanted_document((*wanted, waived), ())))


def test_a_ledger_fits_its_schema(tmp_path: Path) -> None:
    """The ledger of a change to a file that was there, one that was not, and a kernel value has the promised form."""
    host = Host(str(tmp_path))
    (tmp_path / "proc/sys/kernel").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/panic").write_text("0\n")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/old.conf").write_text("before\n")
    paths = ("/etc/old.conf", "/etc/new.d/new.conf")
    plan = {
        "schema": "plimsoll.plan/1",
        "layer": "kernel",
        "files": [{"path": path, "mode": "0644", "after": ["daemon-reload"], "content": "x\n"} for path in paths],
        "actions": [["sysctl", "kernel.panic", "20"]],
    }
    list(apply.apply(plan, host))
    document = json.loads(host.text(ledger.PATH))
    assert [entry["kind"] for entry in document["entries"]] == ["file", "directory", "file", "sysctl"]
    _fits("ledger", document)


@pytest.mark.parametrize(
    ("name", "document"),
    [
        ("audit", {"schema": "plimsoll.audit/1", "hosts": {"a": {"reached": "yes", "controls": []}}}),
        ("audit", {"schema": "plimsoll.audit/2", "hosts": {}}),
        ("wanted", {"schema": "plimsoll.wanted/1", "written_by": "", "notify_command": [], "controls": [{"id": "a"}]}),
        ("ledger", {"schema": "plimsoll.ledger/1", "sha256": "x", "entries": []}),
        ("ledger", {"schema": "plimsoll.ledger/1", "sha256": "0" * 64, "entries": [{"kind": "file"}]}),
        ("state", {"schema": "plimsoll.state/1"}),
    ],
)
def test_the_schemas_refuse_what_does_not_fit(name: str, document: dict[str, Any]) -> None:
    """A document of another version, or with a field missing or of another type, does not pass."""
    assert _problems(document, _schema(name), _schema(name))

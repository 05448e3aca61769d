"""The layer models: files that the box reads as the policy means them, who may start models, and what a boot starts."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.box import apply, declarations, revert
from plimsoll.box.actions import ActionError
from plimsoll.box.guard import last_resort
from plimsoll.box.host import Host
from plimsoll.box.model import Verdict
from plimsoll.box.resolve import parse_ini
from plimsoll.box.serve import config, keys
from plimsoll.box.serve.model import Command
from plimsoll.controls import box, guard, models, plan, render
from plimsoll.policy import Policy
from tests.unit.builders import NEEDS_ROOT, FakeHost, names_in, stock_host, tree
from tests.unit.test_plan import NO_DAEMONS, TODAY, carry_out, look

READY = {"url": "http://127.0.0.1:8000/v1/models", "model_id": "qwen"}
QWEN: dict[str, Any] = {
    "run": {
        "command": ["/opt/vllm/bin/vllm", "serve", 'a "quoted" \\ ü 𝄞\n\x7f\t'],
        "environment": {"A": "1", "B": "x = 'y'"},
        "at_boot": True,
    },
    "need": {"gib": 92, "steady_gib": 6.5, "weights": ["/srv/qwen"]},
    "ready": READY,
    "kill": {"oom_score_adj": -500, "guard_may_kill": False},
    "fallback": {"model": "small"},
    "hooks": {"failed": ["/usr/bin/page", "it's down"]},
}
SMALL: dict[str, Any] = {"run": {"unit": "small.service"}, "ready": READY}
TWO: dict[str, Any] = {"models": {"qwen": QWEN, "small": SMALL}}
SUDOERS_MAIN = {"/etc/sudoers": "root ALL=(ALL) ALL\n@includedir /etc/sudoers.d\n"}


def files(**choices: Any) -> dict[str, render.File]:  # noqa: ANN401  # sections of a policy
    """Return the files of the layer that a host with this policy gets, by path."""
    policy = Policy.model_validate(choices)
    pairs = [(c, wanted) for c in models.CONTROLS for wanted in c.wanted(policy, {}, lambda _id: None)]
    made = render.layer_files("models", [w for _, w in pairs], [(w, c.after(w)) for c, w in pairs])
    return {file.path: file for file in made}


def text(path: str, **choices: Any) -> str:  # noqa: ANN401  # as above
    """Return the text of one of them."""
    return files(**choices)[path].content.decode()


def on(host: FakeHost, **choices: Any) -> plan.HostPlan:  # noqa: ANN401  # as above
    """Return what a deploy with these choices would do to a host."""
    policy = Policy.model_validate({**NO_DAEMONS, **choices})
    return plan.host_plan(policy, look(host, policy), lambda _id: None, TODAY)


# --- models -----------------------------------------------------------------------------------------


def test_a_default_install_has_nothing() -> None:
    """Without models and operators in the policy no file is written."""
    assert files() == {}


def test_the_box_reads_what_the_policy_says() -> None:
    """The box's own reader takes the file, and finds in it every value as it was given."""
    path = "/etc/plimsoll/models.d/qwen.toml"
    found = config.parse(text(path, **TWO), path)
    assert isinstance(found.place, Command)
    assert found.place.argv == tuple(QWEN["run"]["command"])
    assert found.place.environment == QWEN["run"]["environment"]
    assert (found.name, found.fallback, found.at_boot, found.oom_score_adj) == ("qwen", "small", True, -500)
    assert found.need.declared_kib == 92 << 20
    assert found.hooks.failed == ("/usr/bin/page", "it's down")


def test_what_the_policy_leaves_open_is_the_boxs_to_choose() -> None:
    """A key that nobody has given is not written, so that a later version's default counts."""
    assert tomllib.loads(text("/etc/plimsoll/models.d/small.toml", **TWO)) == SMALL


_TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8)


@given(
    st.lists(_TEXTS, max_size=4),
    st.dictionaries(st.from_regex(r"[A-Z_]{1,4}", fullmatch=True), st.text(st.characters(codec="utf-8"), max_size=6)),
    st.floats(0.01, 65536),
)
def test_any_text_arrives(words: list[str], environment: dict[str, str], gib: float) -> None:
    """Whatever the box takes comes through TOML as it is: quotes, backslashes, line ends, characters of any plane."""
    one_line = {name: value for name, value in environment.items() if not {"\0", "\n"} & set(value)}
    document = {
        "run": {"command": ["/x", *words], "environment": one_line},
        "need": {"gib": gib},
        "ready": READY,
    }
    assert config.check({"m": document}) == []
    assert tomllib.loads(models.toml("m", document)) == document


def test_every_key_of_the_box_can_be_given() -> None:
    """Each section and key that the box knows is one that a policy may have, and none is lost on the way."""
    document = {section: dict.fromkeys(known, "x") for section, known in keys.BY_SECTION.items()}
    assert tomllib.loads(models.toml("m", document)) == document
    for section, known in keys.BY_SECTION.items():
        for key in known:
            with pytest.raises(ValueError, match=rf"{section}\.{key}\b.*null is no value"):
                _refused({"models": {"m": {section: {key: None}}}})


def _refused(choices: dict[str, Any]) -> None:
    from pydantic import ValidationError  # noqa: PLC0415  # only to put its places and messages into one text

    try:
        Policy.model_validate(choices)
    except ValidationError as error:
        said = [f"{'.'.join(str(part) for part in each['loc'])}: {each['msg']}" for each in error.errors()]
        raise ValueError("; ".join(said)) from error


# --- the guard --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("run", "selector"),
    [
        ({"unit": "vllm-qwen.service"}, "unit:vllm-qwen.service"),
        ({"command": ["/x"]}, "unit:model-qwen.service"),
        ({"compose": "/srv/My.Qwen/compose.yml", "service": "vllm"}, "unit:myqwen-vllm-[0-9]*"),
    ],
)
def test_the_guard_spares_what_it_may_not_stop(run: dict[str, Any], selector: str) -> None:
    """A model that the guard may not stop is among what guard.toml protects, after what the policy names itself."""
    host = {"platform": {"mem_total_kib": 128 << 20}}
    spared = {"run": run, "ready": READY, "kill": {"guard_may_kill": False}}
    choices = {"models": {"qwen": spared, "other": SMALL}, "guard": {"protect": ["unit:db.service"]}}
    made = guard.tables(Policy.model_validate(choices), host)
    assert made["victims"]["protect"] == ["unit:db.service", selector]
    off = Policy.model_validate({**choices, "layers": {"models": False}})
    assert guard.tables(off, host)["victims"]["protect"] == ["unit:db.service"]


# --- at boot ----------------------------------------------------------------------------------------


def test_only_what_is_asked_for_starts_at_boot() -> None:
    """The target of a boot wants the unit of each model with at_boot, and of no other; without one there is no file."""
    assert declarations.READERS["at-boot"](text(models.AT_BOOT, **TWO)) == ["plimsoll-serve@qwen.service"]
    assert models.AT_BOOT not in files(models={"small": SMALL})


def _boot_unit() -> dict[str, list[str]]:
    (file,) = [each for each in render.box_files((), Policy()) if each.path.endswith("/plimsoll-serve@.service")]
    found: dict[str, list[str]] = {}
    for line in parse_ini({"path": file.path, "text": file.content.decode()}):
        found.setdefault(line.key, []).append(line.value)
    return found


def test_after_an_unclean_boot_nothing_is_started() -> None:
    """The unit looks for the mark of the last resort, after whoever leaves it, and starts what an operator would."""
    unit = _boot_unit()
    assert unit["ConditionPathExists"] == [f"!{last_resort.MARK}"]
    assert "plimsoll-last-resort.service" in " ".join(unit["After"]).split()
    assert unit["ExecStart"][0].endswith(f"{box.WRAPPER} serve start %i")
    assert "WantedBy" not in unit


def test_a_boot_does_not_wait_for_a_load() -> None:
    """The unit counts as up as soon as it runs, and is not started again by systemd when it is refused."""
    unit = _boot_unit()
    assert (unit["Type"], unit["Restart"]) == (["exec"], ["no"])


def test_two_models_start_one_after_the_other(tmp_path: Path) -> None:
    """What stands before the command makes a second start wait until the first has ended, and is not handed on."""
    flock, close, _lock, *_rest = _boot_unit()["ExecStart"][0].split()
    lock, log = tmp_path / "lock", tmp_path / "log"
    # the first holds the lock until the second is there and waits for it
    script = f"echo in >> {log}; ls -l /proc/self/fd | grep -c {lock} >> {log}; cat >/dev/null; echo out >> {log}"
    start = [flock, close, str(lock), "sh", "-c", script]
    first = subprocess.Popen(start, stdin=subprocess.PIPE)
    second = subprocess.Popen(start, stdin=subprocess.DEVNULL)
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            second.wait(0.1)
    finally:
        first.communicate(b"")
        second.wait(10)
    assert log.read_text().split() == ["in", "0", "out"] * 2


# --- operators --------------------------------------------------------------------------------------

OPERATORS = {**TWO, "serve": {"operators": ["engines", "night-shift"]}}
VISUDO = shutil.which("visudo", path=f"{os.environ['PATH']}:/usr/sbin")
NEEDS_SUDO = pytest.mark.skipif(VISUDO is None, reason="sudo is not installed")


def test_operators_get_the_commands_and_no_others() -> None:
    """Each command stands there to the word: no pattern, no program but ours, no verb beyond these."""
    said = declarations.READERS["operators"](text(models.SUDOERS, **OPERATORS))
    assert said["groups"] == ["engines", "night-shift"]
    words = [command.split() for command in said["commands"]]
    assert {(each[0], each[1]) for each in words} == {("/usr/local/bin/plimsoll", "serve")}
    assert {each[2] for each in words} == {"start", "stop", "restart", "switch", "check", "status"}
    assert {tuple(each[3:]) for each in words if each[2] == "switch"} == {("qwen", "small"), ("small", "qwen")}
    assert {word for each in words for word in each if word.startswith("-")} == {"--prove", "--json"}
    assert not set("*?[]!\\") & set("".join(said["commands"]))


def test_no_operators_no_rule() -> None:
    """Without a group that is named there is no rule."""
    assert models.SUDOERS not in files(**TWO)


@NEEDS_SUDO
def test_sudo_takes_the_rule(tmp_path: Path) -> None:
    """Visudo itself finds nothing wrong with what is written, also with many models."""
    many = {f"m{number}": {**SMALL, "run": {"unit": f"m{number}.service"}} for number in range(12)}
    rule = tmp_path / "plimsoll"
    rule.write_text(text(models.SUDOERS, models=many, serve={"operators": ["engines"]}))
    assert subprocess.run([str(VISUDO), "-c", "-f", str(rule)], check=False, capture_output=True).returncode == 0


def test_the_rule_is_roots_alone() -> None:
    """The file has the mode that sudo asks for, and is checked before it is placed."""
    file = files(**OPERATORS)[models.SUDOERS]
    assert (file.mode, file.check) == ("0440", "sudoers")
    assert [each.check for path, each in files(**OPERATORS).items() if path != models.SUDOERS] == ["", "", ""]


def _rule(content: str, check: str = "sudoers") -> dict[str, Any]:
    file = {"path": models.SUDOERS, "mode": "0440", "after": [], "content": content, "check": check}
    other = {"path": "/etc/plimsoll/models.d/x.toml", "mode": "0644", "after": [], "content": "x\n"}
    return {"schema": "plimsoll.plan/1", "layer": "models", "files": [other, file], "actions": []}


@NEEDS_ROOT
def test_a_faulty_rule_is_not_placed(tmp_path: Path) -> None:
    """A rule that visudo refuses, which would lock everybody out of sudo, is never there, and no other file either."""
    host = FakeHost(str(tmp_path), failing={("visudo", "-c", "-f"): "x:1:9: syntax error\nnonsense\n        ^\n"})
    write(tmp_path, SUDOERS_MAIN)
    with pytest.raises(ActionError, match=r"plimsoll was not written: visudo -c: x:1:9: syntax error$"):
        list(apply.apply(_rule("nonsense"), host))
    assert not (tmp_path / "etc/plimsoll/models.d").exists()
    assert not (tmp_path / "etc/sudoers.d").exists()


@NEEDS_ROOT
@NEEDS_SUDO
@pytest.mark.parametrize("content", ["%engines ALL=(root NOPASSWD: /bin/true\n", "nonsense"])
def test_visudo_itself_refuses_a_faulty_rule(tmp_path: Path, content: str) -> None:
    """The real program is asked in the way that it answers."""
    write(tmp_path, SUDOERS_MAIN)
    with pytest.raises(ActionError, match=r"was not written: visudo -c: .*syntax error"):
        list(apply.apply(_rule(content), Host(str(tmp_path))))
    assert not (tmp_path / "etc/sudoers.d").exists()


@NEEDS_ROOT
def test_the_rule_is_asked_about_before_it_is_there(tmp_path: Path) -> None:
    """Visudo is given the staged file, whose name sudo itself would pass over."""
    host = FakeHost(str(tmp_path))
    write(tmp_path, SUDOERS_MAIN)
    list(apply.apply(_rule("%a ALL=(root) NOPASSWD: /bin/true\n"), host))
    ((*_visudo, asked),) = [call for call in host.calls if call[0] == "visudo"]
    assert (Path(asked).parent, "." in Path(asked).name) == (tmp_path / "etc/sudoers.d", True)
    assert (tmp_path / models.SUDOERS.lstrip("/")).exists()


@pytest.mark.parametrize("main", ["", "# @includedir /etc/sudoers.d\n", "@includedir /etc/sudoers.e\n"])
@NEEDS_ROOT
def test_a_rule_that_sudo_would_not_see_is_not_placed(tmp_path: Path, main: str) -> None:
    """Where sudo does not read the directory, that is said instead of a rule without effect."""
    write(tmp_path, {"/etc/sudoers": main})
    with pytest.raises(ActionError, match="does not include its directory"):
        list(apply.apply(_rule("%a ALL=(root) NOPASSWD: /bin/true\n"), FakeHost(str(tmp_path))))
    assert not (tmp_path / "etc/sudoers.d").exists()


@NEEDS_ROOT
def test_a_check_that_is_not_known_is_refused(tmp_path: Path) -> None:
    """A plan of a later version is not carried out half."""
    with pytest.raises(ActionError, match="older than the plan"):
        list(apply.apply(_rule("x", check="tomorrow"), FakeHost(str(tmp_path))))


@pytest.mark.parametrize("old", ["@includedir /etc/sudoers.d", "#includedir /etc/sudoers.d/ "])
def test_both_spellings_of_an_include(old: str) -> None:
    """The older spelling begins like a comment and is none."""
    assert declarations.includes_sudoers_d(f"Defaults env_reset\n{old}\n")


# --- on a host --------------------------------------------------------------------------------------


def write(root: Path, given_files: dict[str, str]) -> None:
    """Write files below `root`."""
    for path, content in given_files.items():
        real = root / path.lstrip("/")
        real.parent.mkdir(parents=True, exist_ok=True)
        real.write_text(content)


def _machine(root: Path) -> FakeHost:
    return stock_host(root, **SUDOERS_MAIN)


def _drifted(found: plan.HostPlan) -> dict[str, str]:
    """Return the reasons of what has drifted in the layer."""
    return {j.id: j.reason for j in found.judgements if (j.layer, j.verdict) == ("models", Verdict.DRIFTED)}


@NEEDS_ROOT
def test_a_second_run_changes_nothing(tmp_path: Path) -> None:
    """After a deploy every file is as wanted, and the same policy has nothing left to do in the layer."""
    host = _machine(tmp_path)
    carry_out(host, on(host, **OPERATORS))
    after = on(host, **OPERATORS)
    assert not after.layer("models")
    verdicts = {j.id: j.verdict for j in after.judgements if j.layer == "models"}
    assert set(verdicts.values()) == {Verdict.OK}
    assert {"models/model:qwen", "models/model:small", "models/at-boot", "models/operators"} < set(verdicts)
    assert oct((tmp_path / models.SUDOERS.lstrip("/")).stat().st_mode & 0o777) == "0o440"


@NEEDS_ROOT
def test_nothing_is_started_or_stopped(tmp_path: Path) -> None:
    """A deploy of models makes systemd read its files and does nothing to any unit."""
    host = _machine(tmp_path)
    carry_out(host, on(host))
    host.calls.clear()
    found = on(host, **OPERATORS).layer("models")
    assert set(found.actions) == {("daemon-reload",)}


@NEEDS_ROOT
def test_what_leaves_the_policy_leaves_the_host(tmp_path: Path) -> None:
    """A model, its start at boot and its operators go with the next deploy; the other model stays."""
    host = _machine(tmp_path)
    carry_out(host, on(host, **OPERATORS))
    carry_out(host, on(host, models={"small": SMALL}))
    assert names_in(tmp_path / "etc/plimsoll/models.d") == ["small.toml"]
    assert not (tmp_path / models.AT_BOOT.lstrip("/")).exists()
    assert not (tmp_path / models.SUDOERS.lstrip("/")).exists()
    assert not on(host, models={"small": SMALL}).layer("models")
    carry_out(host, on(host))
    assert names_in(tmp_path / "etc/plimsoll/models.d") == []


@NEEDS_ROOT
def test_a_revert_leaves_no_trace(tmp_path: Path) -> None:
    """Taking the layer back leaves the machine as it was before it."""
    host = _machine(tmp_path)
    carry_out(host, on(host))
    before = tree(tmp_path)
    carry_out(host, on(host, **OPERATORS))
    assert {outcome for outcome, _ in revert.revert(host, "models")} == {"done"}
    changed = {path for path, found in tree(tmp_path).items() if before.get(path) != found}
    assert changed <= {"etc/plimsoll/wanted.json", "var/lib/plimsoll/ledger.json"}
    assert set(tree(tmp_path)) == set(before)


@NEEDS_ROOT
@pytest.mark.parametrize(
    ("path", "edit", "said"),
    [
        ("/etc/plimsoll/models.d/qwen.toml", "[run]\nunit = 'x.service'\n", "says something else"),
        ("/etc/plimsoll/models.d/qwen.toml", "[run\n", "cannot be understood"),
        (models.AT_BOOT, "[Unit]\nWants=a.service\n", "says something else"),
        (models.SUDOERS, "ALL ALL=(ALL) NOPASSWD: ALL\n", "cannot be understood: a rule that is none of ours"),
        (models.SUDOERS, "%engines ALL=(root) NOPASSWD: /bin/sh\n", "says something else"),
    ],
)
def test_an_edit_is_drift(tmp_path: Path, path: str, edit: str, said: str) -> None:
    """What somebody has changed on the box is told, and put right by the next deploy."""
    host = _machine(tmp_path)
    carry_out(host, on(host, **OPERATORS))
    (tmp_path / path.lstrip("/")).write_text(edit)
    found = on(host, **OPERATORS)
    drifted = _drifted(found)
    assert len(drifted) == 2
    assert [reason for each, reason in drifted.items() if "/file:" not in each and said in reason]
    carry_out(host, found)
    assert not on(host, **OPERATORS).layer("models")


@NEEDS_ROOT
def test_a_comment_of_somebodys_is_named_by_the_file_alone(tmp_path: Path) -> None:
    """A file that says the same with other bytes is drift of the file and not of what it declares."""
    host = _machine(tmp_path)
    carry_out(host, on(host, **TWO))
    file = tmp_path / "etc/plimsoll/models.d/qwen.toml"
    file.write_text(f"# mine\n{file.read_text()}")
    assert list(_drifted(on(host, **TWO))) == ["models/file:/etc/plimsoll/models.d/qwen.toml"]


@NEEDS_ROOT
def test_a_part_can_be_left_alone(tmp_path: Path) -> None:
    """Null for a record leaves its files out, as for every other setting."""
    host = _machine(tmp_path)
    found = on(host, **OPERATORS, values={"models/operators": None})
    assert models.SUDOERS not in {change.file.path for change in found.layer("models").changes}


def test_a_plan_is_plain_data() -> None:
    """What goes to the host names the check, so that the host asks before it places the file."""
    change = plan.FileChange(files(**OPERATORS)[models.SUDOERS], None)
    (sent,) = plan.LayerPlan("models", (change,), ()).to_json()["files"]
    assert json.loads(json.dumps(sent))["check"] == "sudoers"


@pytest.mark.parametrize("seed", ["1", "2"])
def test_a_file_is_the_same_in_every_run(seed: str) -> None:
    """Sections stand in the order of the table, whatever order this run of Python gives to a set."""
    document = {"stop": {"grace_s": 9}, "ready": {"model_id": "m"}, "run": {"unit": "m.service"}, "need": {"gib": 1}}
    code = f"from plimsoll.controls import models; print(models.toml('m', {document!r}))"
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
    )
    headings = [line.strip("[]") for line in done.stdout.splitlines() if line.startswith("[")]
    assert headings == sorted(document, key=list(dict.fromkeys(key.section for key in keys.KEYS)).index)

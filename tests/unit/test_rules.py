"""Rules as data: every shipped one has a state that it is about and one that it is not, and a wrong file is refused."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.fleet import rulebook
from plimsoll.fleet.rulebook import KNOWN_FIELDS, PLATFORM, Condition, Rule, load_file, load_rules
from plimsoll.inventory import InventoryError

GIB = 1 << 30
RULES = {rule.id: rule for rule in load_rules()}

CONTAINER = {"kind": "container", "name": "c", "running": True, "uses_gpu": True, "mem_total_bytes": 121 * GIB}
CLIENT = {"kind": "docker_client", "uses_gpu": True, "container_seen": False}
SETTING = {"kind": "unit_setting", "unit": "u.service", "scope": "system", "runs": "engine", "engine": "vllm"}
ENGINE = {"kind": "engine", "oom_score_adj": 0, "limit_reported": False}
EARLYOOM = {"kind": "earlyoom", "swap_total_kib": 16 << 20, "driver": "580.95.05", "regime": "A", "dryrun": False}
SSHD = {"kind": "sshd", "file": "/etc/ssh/sshd_config", "line": 3}
HERE = {"kind": PLATFORM, "boot": "running", "architecture": "aarch64", "kernel": "6.17.0-1032-nvidia"}

EXAMPLES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "container-memory-limit": ({**CONTAINER, "memory_bytes": 64 * GIB}, {"memory_bytes": 0}),
    "container-limit-above-memory": ({**CONTAINER, "memory_bytes": 128 * GIB}, {"memory_bytes": 100 * GIB}),
    "container-swap-limit-lost": (
        {**CONTAINER, "memory_bytes": GIB, "swap_forbidden": True, "swap_max_live": "max"},
        {"swap_max_live": "0"},
    ),
    "container-restart-policy": ({**CONTAINER, "restart": "unless-stopped"}, {"restart": "no"}),
    "container-restart-on-failure": ({**CONTAINER, "restart": "on-failure", "restart_max": 0}, {"restart_max": 3}),
    "container-oom-score-negative": ({**CONTAINER, "oom_score_adj": -500}, {"oom_score_adj": 500}),
    "container-ipc-leftovers": ({**CONTAINER, "ipc": "host", "restart": "always"}, {"ipc": "private"}),
    "client-memory-limit": ({**CLIENT, "memory_bytes": 64 * GIB}, {"container_seen": True}),
    "unit-limit-on-docker-client": (
        {**SETTING, "setting": "MemoryMax", "value": "256M", "runs": "docker", "engine": "container"},
        {"runs": "other"},
    ),
    "unit-container-limit": (
        {
            **SETTING,
            "setting": "--memory",
            "value": "64g",
            "number": 64 * GIB,
            "uses_gpu": True,
            "mem_total_bytes": GIB,
        },
        {"uses_gpu": None},
    ),
    "unit-container-limit-above-memory": (
        {**SETTING, "setting": "--memory", "value": "128g", "number": 128 * GIB, "mem_total_bytes": 121 * GIB},
        {"number": 100 * GIB},
    ),
    "unit-limit-on-engine": ({**SETTING, "setting": "MemoryHigh", "value": "9G"}, {"setting": "Restart"}),
    "engine-cgroup-limit": ({**ENGINE, "memory_max_bytes": GIB, "limited_by": "/x"}, {"memory_max_bytes": None}),
    "engine-not-killable": ({**ENGINE, "oom_score_adj": -1000}, {"oom_score_adj": -999}),
    "engine-oom-score-negative": ({**ENGINE, "oom_score_adj": -1}, {"oom_score_adj": 0}),
    "unit-engine-score-negative": (
        {**SETTING, "setting": "OOMScoreAdjust", "value": "-900", "number": -900},
        {"number": 500, "value": "500"},
    ),
    "user-unit-score-negative": (
        {**SETTING, "setting": "OOMScoreAdjust", "value": "-900", "number": -900, "scope": "user", "runs": "other"},
        {"scope": "system"},
    ),
    "engine-skips-memory-check": ({**ENGINE, "skips_memory_check": True}, {"skips_memory_check": None}),
    "unit-skips-memory-check": ({**SETTING, "setting": "VLLM_SKIP_INIT_MEMORY_CHECK"}, {"setting": "Restart"}),
    "container-skips-memory-check": ({**CONTAINER, "skips_memory_check": True}, {"skips_memory_check": False}),
    "unit-restart-at-once": (
        {**SETTING, "setting": "Restart", "value": "always", "restart_s": 3.0, "uses_gpu": True},
        {"restart_s": 90.0},
    ),
    "earlyoom-waits-for-swap": ({**EARLYOOM, "swap_term_percent": 80.0}, {"swap_term_percent": 100.0}),
    "earlyoom-sees-too-much": ({**EARLYOOM, "regime": "C"}, {"regime": "B"}),
    "earlyoom-moving-threshold": (
        {**EARLYOOM, "moving_denominator": True, "fires_below_percent": 0.1, "fires_below_kib": 105_263},
        {"moving_denominator": False},
    ),
    "earlyoom-may-not-kill": ({**EARLYOOM, "may_kill": False}, {"may_kill": None}),
    "other-restart": ({**SETTING, "setting": "FailureAction", "value": "reboot"}, {"setting": "Restart"}),
    "earlyoom-dry-run": ({**EARLYOOM, "dryrun": True}, {"dryrun": False}),
    "systemd-oomd": ({"kind": "killer", "name": "systemd-oomd"}, {"name": "nohang"}),
    "oomd-pressure-kill": (
        {"kind": "oomd_kill", "unit": "user.slice", "value": "kill", "limit": "80%", "oomd_running": True},
        {"oomd_running": False},
    ),
    "other-killer": ({"kind": "killer", "name": "bustd"}, {"name": "systemd-oomd"}),
    "other-guard": ({"kind": "killer", "name": "memwatch"}, {"name": "bustd"}),
    "ray-memory-monitor": ({"kind": "ray", "enabled": True, "threshold": 0.95}, {"enabled": False}),
    "kernel-7.0.0-1019-nvidia": ({**HERE, "kernel": "7.0.0-1019-nvidia"}, {"kernel": "7.0.0-1020-nvidia"}),
    "kernel-7.0.0-31-generic": ({**HERE, "kernel": "7.0.0-31-generic"}, {"architecture": "x86_64"}),
    "kernel-6.17.0-1008-nvidia": ({**HERE, "kernel": "6.17.0-1008-nvidia"}, {"kernel": "6.17.0-1014-nvidia"}),
    "handover-holds-memory": ({**HERE, "cma_total_kib": 0, "cma_free_kib": 940_604}, {"cma_total_kib": 1 << 20}),
    "handover-switched-on": ({**HERE, "cmdline": "quiet kho=on"}, {"cmdline": "quiet kho=off"}),
    "driver-and-firmware-differ": ({**HERE, "driver": "580.173.02", "firmware": "580.159.03"}, {"firmware": None}),
    "driver-firmware-missing": (
        {**HERE, "driver": "580.159.03", "firmware_files": ["580.173.02"]},
        {"firmware_files": ["580.159.03", "580.173.02"]},
    ),
    "next-kernel-without-driver": (
        {**HERE, "boot": "next", "driver": "580.95.05", "nvidia_module": False},
        {"nvidia_module": None},
    ),
    "driver-580.159.03": ({**HERE, "driver": "580.159.03"}, {"driver": "580.178.04"}),
    "driver-keeps-pool": ({**HERE, "driver": "595.99.02", "system_memory_pools": 529}, {"system_memory_pools": 0}),
    "sshd-short-grace": ({**SSHD, "keyword": "LoginGraceTime", "value": "30", "seconds": 30}, {"seconds": 0}),
    "sshd-without-pam": ({**SSHD, "keyword": "UsePAM", "value": "no"}, {"value": "yes"}),
    "driver-module-not-open": ({**HERE, "driver": "580.173.02", "open_module": False}, {"driver": "580.159.03"}),
}
"""A record that the rule is about, and what to change so that it is not."""


def record(given: dict[str, Any]) -> dict[str, Any]:
    """Return a whole record of a kind: what is not given is not known."""
    return {**dict.fromkeys(KNOWN_FIELDS[given["kind"]]), "subject": "s", **given}


def test_every_shipped_rule_has_an_example() -> None:
    """A rule that nothing matches would never be missed."""
    assert set(EXAMPLES) == set(RULES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_shipped_rule(name: str) -> None:
    """It holds over its example and over no other kind of it, not over nothing, and says all that it has seen."""
    rule, (example, change) = RULES[name], EXAMPLES[name]
    assert set(example) | set(change) <= {"kind", *KNOWN_FIELDS[example["kind"]]}
    assert rule.holds(record(example))
    assert not rule.holds(record({**example, **change}))
    assert not any(rule.holds(dict.fromkeys(KNOWN_FIELDS[kind])) for kind in rule.looks_at)
    assert "{" not in rule.describe(record(example))


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_shipped_rule_is_whole(rule: Rule) -> None:
    """Each gives reason, evidence, source and advice as texts of their own, on one line, with a date that has been."""
    texts = [rule.title, rule.why, rule.evidence, rule.source, rule.advice]
    assert len(set(texts)) == len(texts)
    assert not [text for text in (*texts, rule.seen) if "\n" in text or text.strip() != text]
    assert "2026-01-01" <= rule.dated <= "2026-11-30"
    assert (rule.kind == "known_bad") is (rule.looks_at == (PLATFORM,))


@pytest.mark.parametrize(
    ("cmdline", "expected"),
    [
        ("kho=on", True),
        ("quiet kho=1 crashkernel=512M", True),
        ("quiet kho=y", True),
        ("kho=off kho=ON", True),
        ("kho=on kho=off", False),
        ("kho=0", False),
        ("kho_scratch=on xkho=on", False),
    ],
)
def test_spellings_of_a_switch(cmdline: str, expected: bool) -> None:
    """The kernel takes `1` and `y` for `on` as well, and of two the last."""
    assert RULES["handover-switched-on"].holds(record({**HERE, "cmdline": cmdline})) is expected


# --- conditions -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("condition", "value", "expected"),
    [
        ("x", "x", True),
        (True, 1, False),
        (1, True, False),
        (1, 1.0, True),
        (["a", "b"], "b", True),
        ({"none_of": ["a"]}, "b", True),
        ({"none_of": ["a"]}, None, False),
        ({"glob": "7.0.0-1019-*"}, "7.0.0-1019-nvidia", True),
        ({"glob": "7.0.0-1019-*"}, 7, False),
        ({"regex": "^a+$"}, "aaa", True),
        ({"word": "kho=on"}, "quiet kho=on", True),
        ({"word": "kho=on"}, "xkho=on", False),
        ({"number": ">=1,<60"}, 59.9, True),
        ({"number": ">=1,<60"}, 60, False),
        ({"number": ">0"}, "1", False),
        ({"number": ">0"}, True, False),
        ({"known": False}, None, True),
        ({"known": False}, 0, False),
        ({"known": True}, 0, True),
        ({"known": True, "number": ">0"}, 0, False),
        ({"version": ">=590,<596"}, "595.99.02", True),
        ({"version": ">=590,<596"}, "596.0", False),
        ({"version": ">=580.173"}, "580.95.05", False),
        ({"version": "<=590"}, "590.48.01", True),
        ({"version": ">590"}, "590.48.01", False),
        ({"version": "==580.159.03"}, "580.159.03-0ubuntu1", True),
        ({"version": ">=6.17.0-1029"}, "6.17.0-1032-nvidia", True),
        ({"version": ">=7"}, "6.17.0-1032-nvidia", False),
        ({"version": ">=7"}, "", False),
        ({"same_as": "other"}, "o", True),
        ({"differs_from": "other"}, "o", False),
        ({"differs_from": "unknown"}, "o", False),
        ({"more_than": "five"}, 6, True),
        ({"more_than": "other"}, 6, False),
        ({"within": "many"}, "a", True),
        ({"not_within": "many"}, "z", True),
        ({"not_within": "none"}, "z", False),
        ({"not_within": "other"}, "z", False),
    ],
)
def test_condition(condition: Any, value: object, expected: bool) -> None:  # noqa: ANN401  # as it stands in YAML
    """A condition holds over what is known only, compares like with like, and takes True for no number."""
    others = {"other": "o", "five": 5, "many": ["a"], "none": [], "unknown": None}
    assert Condition.model_validate(condition).holds("field", {"field": value, **others}) is expected


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(sorted({f for fields in KNOWN_FIELDS.values() for f in fields})), JSON))
def test_any_record_can_be_judged(hostile: dict[str, Any]) -> None:
    """Whatever a host makes of a record, every rule says yes or no over it, and can describe it."""
    for rule in RULES.values():
        assert rule.holds(hostile) in (True, False)
        assert len(rule.describe(hostile)) < 3000


# --- files ------------------------------------------------------------------------------------------

OWN = """\
rules:
  - id: our-kernel
    kind: known_bad
    looks_at: platform
    when:
      kernel: { glob: "6.14*" }
    applies: [next]
    title: Our 6.14 lacks a patch
    seen: "{kernel} on {board_name}"
    why: It hangs here.
    evidence: Seen twice.
    source: our wiki
    dated: "2026-10-01"
    advice: Boot 6.17.
"""


def written(tmp_path: Path, text: str) -> Path:
    """Return an inventory file with these rules beside it."""
    (tmp_path / "rules.yml").write_text(text)
    return tmp_path / "hosts.yml"


def test_own_rules(tmp_path: Path) -> None:
    """Rules beside the inventory come on top of the shipped ones; without such a file there are only those."""
    assert load_rules(tmp_path / "hosts.yml") == load_rules()
    *shipped, own = load_rules(written(tmp_path, OWN))
    assert tuple(shipped) == load_rules()
    assert (own.id, own.applies) == ("our-kernel", ("next",))
    assert load_rules(written(tmp_path, "# nothing yet\n")) == load_rules()


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("    why:", "    wy:", 10, "unknown key 'wy' in rules.0; did you mean 'why'?"),
        ("    why: It hangs here.\n", "", 2, "rules.0 lacks the key 'why'"),
        ("rules:", "rule:", 1, "unknown key 'rule' in the file; did you mean 'rules'?"),
        ("kind: known_bad", "kind: bad", 3, "must be 'false_protection' or 'known_bad'"),
        (
            "looks_at: platform",
            "looks_at: platfrm",
            4,
            "unknown kind of observation 'platfrm'; did you mean 'platform'?",
        ),
        ("      kernel:", "      kernl:", 6, "platform has no field 'kernl'; did you mean 'kernel'?"),
        ('glob: "6.14*"', 'glbo: "6.14*"', 6, "unknown key 'glbo' in rules.0.when.kernel; did you mean 'glob'?"),
        ('glob: "6.14*"', 'version: "new"', 6, "must be comparisons with commas between them"),
        ('glob: "6.14*"', 'number: ">x"', 6, "must compare with numbers"),
        ('glob: "6.14*"', 'regex: "("', 6, "is no regular expression"),
        ('glob: "6.14*"', "one_of: []", 6, "must name at least one value"),
        ('glob: "6.14*"', "same_as: kernal", 6, "platform has no field 'kernal'; did you mean 'kernel'?"),
        ("applies: [next]", "applies: [now]", 7, "must be 'running' or 'next'"),
        ("{board_name}", "{bord_name}", 9, "platform has no field 'bord_name'"),
        ("{board_name}", "{board_name.x}", 9, "platform has no field 'board_name.x'"),
        ("{board_name}", "{board_name!r}", 9, "after a field may stand :bytes or :kib, nothing else"),
        ("{board_name}", "{", 9, "`seen`"),
        ("2026-10-01", "2026-13-01", 13, "must be a day that exists"),
        ("our-kernel", "Our kernel", 2, "must be a-z, 0-9"),
        ("our-kernel", "systemd-oomd", 2, "the id 'systemd-oomd' is taken by another rule"),
        ("title: Our 6.14 lacks a patch", 'title: " "', 8, "must not be blank"),
        ("    why:", "\twhy:", 10, "a tab where YAML allows none"),
    ],
)
def test_wrong_rules(tmp_path: Path, old: str, new: str, line: int, message: str) -> None:
    """One error names the file, the line and what is meant instead."""
    assert old in OWN
    inventory = written(tmp_path, OWN.replace(old, new, 1))
    with pytest.raises(InventoryError, match=re.escape(message)) as raised:
        load_rules(inventory)
    assert (raised.value.file.name, raised.value.line) == ("rules.yml", line)


def test_a_condition_is_needed(tmp_path: Path) -> None:
    """A rule without conditions would hold everywhere."""
    text = OWN.replace('\n      kernel: { glob: "6.14*" }', "")
    with pytest.raises(InventoryError, match="`when` must have at least one condition"):
        load_rules(written(tmp_path, text))


def test_twice_the_same_id(tmp_path: Path) -> None:
    """An id stands for one rule."""
    twice = OWN + OWN.removeprefix("rules:\n")
    with pytest.raises(InventoryError, match="'our-kernel' is taken"):
        load_file(written(tmp_path, twice).parent / "rules.yml")


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    """What cannot be read is an error, not the absence of rules."""
    (tmp_path / "rules.yml").mkdir()
    with pytest.raises(InventoryError, match="cannot be read"):
        load_rules(tmp_path / "hosts.yml")


def test_sizes_are_shown_for_people() -> None:
    """A size is shown in the unit that fits it, whatever it was counted in."""
    rule = RULES["container-memory-limit"]
    shown = rule.describe({"memory_bytes": 64 * GIB, "mem_total_bytes": 3 << 20, "name": "a" * 300, "running": True})
    assert "--memory 64 GiB of 3 MiB in the box" in shown
    assert len(shown) < 300
    assert rulebook.version_key("590.48") > rulebook.version_key("590")

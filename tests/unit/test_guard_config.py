"""guard.toml: every key does what it says, and every fault of a file is named, with where it is and what would do."""

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.box.errors import USAGE
from plimsoll.box.guard import config
from plimsoll.box.guard.config import KEYS, NUMBER, REFERENCE_KIB, WHOLE, Arming, Config, ConfigError, Key, Selector
from plimsoll.box.guard.model import KIB_PER_GIB, Lines, Rule, Settings

PATH = "/etc/plimsoll/guard.toml"
GIVEN: dict[str, Any] = {
    "lines.slow_leave_gib": 10.5,
    "lines.slow_enter_gib": 9.5,
    "lines.floor_gib": 2,
    "floor.ahead_s": 0.1,
    "rate.horizon_s": 0.25,
    "slow.dwell_s": 3,
    "slow.term_grace_s": 5.5,
    "slow.needs_full_percent": 15,
    "stall.full_percent": 12,
    "stall.for_s": 100,
    "armed.floor": "observe",
    "armed.rate": "armed",
    "armed.slow": "armed",
    "armed.stall": "armed",
    "armed.dry_run": True,
    "sampling.period_ms": 200,
    "sampling.fast_period_ms": 10,
    "sampling.fast_below_s": 4,
    "victims.protect": ["unit:ollama.service", "cgroup:/system.slice/docker-*.scope"],
    "victims.prefer": ["command:llama-*"],
    "victims.gpu_devices": ["/dev/fakegpu*"],
    "victims.attributed_min_mib": 512,
    "victims.fallback_min_gib": 4,
    "victims.next_after_s": 30,
    "victims.settle_s": 2,
    "loop.kills": 3,
    "loop.within_s": 900,
    "hooks.command": ["/usr/bin/logger", "guard acted"],
    "hooks.timeout_s": 3,
    "recording.max_mib": 40,
    "metrics.file": "/var/lib/node_exporter/plimsoll.prom",
    "reserve.groups": ["models"],
}
READ: dict[str, Any] = {
    "lines.slow_leave_gib": round(10.5 * KIB_PER_GIB),
    "lines.slow_enter_gib": round(9.5 * KIB_PER_GIB),
    "lines.floor_gib": 2 * KIB_PER_GIB,
    "armed.floor": Arming.OBSERVE,
    "armed.rate": Arming.ARMED,
    "armed.slow": Arming.ARMED,
    "armed.stall": Arming.ARMED,
    "victims.protect": (Selector("unit", "ollama.service"), Selector("cgroup", "/system.slice/docker-*.scope")),
    "victims.prefer": (Selector("command", "llama-*"),),
    "victims.gpu_devices": ("/dev/fakegpu*",),
    "victims.attributed_min_mib": 512 * 1024,
    "victims.fallback_min_gib": 4 * KIB_PER_GIB,
    "hooks.command": ("/usr/bin/logger", "guard acted"),
    "reserve.groups": ("models",),
}
"""Where it is read as something else than what was written."""
WRONG: dict[str, list[str]] = {
    NUMBER.accepts: ['"5"', "true", "nan", "inf", "-1", "[]", "{}", "1e9"],
    WHOLE.accepts: ['"5"', "true", "2.5", "nan", "-1", "[]", "1_000_000_000"],
    config.FLAG.accepts: ["1", '"true"', "0.0", "[]"],
    config.PATHNAME.accepts: ['"relative"', "5", "true", '["/x"]', '"/nul\\u0000"'],
    config.NAMES.accepts: ['"models"', "[5]", '[""]', "true"],
    config.DEVICES.accepts: ["[]", '"/dev/x"', '["nvidia0"]', '["/etc/passwd"]', "[1]"],
    config.ARGV.accepts: ['"/bin/true"', '["curl", "http://x"]', "[1]", '["/bin/\\u0000"]'],
    config.SELECTORS.accepts: ['"unit:x"', '["sshd"]', '["unit:"]', '["name:x"]', "[1]"],
    config.ARMING.accepts: ['"on"', "true", "1", "nan", '["armed"]'],
}
each_key = pytest.mark.parametrize("key", KEYS, ids=[key.dotted for key in KEYS])


def _load(text: str, mem_total_kib: int = REFERENCE_KIB) -> Config:
    return config.load(text, PATH, mem_total_kib)


def _value(found: Config, key: Key) -> Any:  # noqa: ANN401  # whatever the key's field holds
    if key.section == "lines":
        return getattr(found.settings.lines, key.target)
    if key.dotted.startswith("armed.") and key.target != "dry_run":
        return found.arming[Rule(key.target)]
    return getattr(found if hasattr(found, key.target) else found.settings, key.target)


def _faults(text: str, mem_total_kib: int = REFERENCE_KIB) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        _load(text, mem_total_kib)
    assert caught.value.exit_code == USAGE
    return str(caught.value).splitlines()


@each_key
def test_every_key(key: Key) -> None:
    """Each key sets its own field, in the field's unit, and no other field."""
    value = GIVEN[key.dotted]
    # alone, but for lines, which must stay in their order
    others = [each for each in KEYS if each.section == "lines"] if key.section == "lines" else [key]
    text = f"[{key.section}]\n" + "".join(f"{each.name} = {json.dumps(GIVEN[each.dotted])}\n" for each in others)
    found, plain = _load(text), _load("")
    assert _value(found, key) == READ.get(key.dotted, value)
    assert _value(found, key) != _value(plain, key)
    changed = {each.dotted for each in KEYS if _value(found, each) != _value(plain, each)}
    assert changed == {each.dotted for each in others}


def test_all_keys_at_once() -> None:
    """A file with every key is read as a whole."""
    sections = dict.fromkeys(key.section for key in KEYS)
    text = "".join(
        f"[{section}]\n" + "".join(f"{k.name} = {json.dumps(GIVEN[k.dotted])}\n" for k in KEYS if k.section == section)
        for section in sections
    )
    found = _load(text)
    assert {key.dotted: _value(found, key) for key in KEYS} == {**GIVEN, **READ}


@each_key
def test_what_no_key_accepts(key: Key) -> None:
    """A value of another type or out of range is refused, with the line, the key, and what it would accept."""
    for wrong in WRONG[key.kind.accepts]:
        (fault,) = _faults(f"# a comment\n\n[{key.section}]\n{key.name} = {wrong}\n")
        assert fault.startswith(f"{PATH}:4: {key.dotted}: ")
        assert " is not " in fault


# not those that have to fit others as well
NUMBERS = [key for key in KEYS if key.kind in (NUMBER, WHOLE) and key.section not in {"lines", "sampling"}]


@pytest.mark.parametrize("key", NUMBERS, ids=[key.dotted for key in NUMBERS])
def test_the_ends_of_a_range(key: Key) -> None:
    """Both ends of a number's range are accepted, and nothing beyond them."""
    for end in key.within:
        found = _value(_load(f"[{key.section}]\n{key.name} = {end}\n"), key)
        assert found == pytest.approx(end * key.factor, abs=0.5 if key.factor > 1 else 0)
        beyond = end * 1.01 + 1 if end == key.within[1] else end - 1
        assert _faults(f"[{key.section}]\n{key.name} = {beyond}\n")


def test_the_defaults_are_the_rules_own() -> None:
    """An empty file gives the settings that the rules were measured with, on the box that they were measured on."""
    found = _load("")
    lines = Lines(3 * KIB_PER_GIB, 8 * KIB_PER_GIB, 9 * KIB_PER_GIB)
    assert found.settings == Settings(lines)
    assert (found.protect, found.prefer, found.hook_command, found.dry_run) == ((), (), (), False)
    assert set(found.arming.values()) == {Arming.AUTO}


def test_default_lines_are_scaled() -> None:
    """On a host with another amount of memory the default lines are in proportion; those that were set are not."""
    found = _load("[lines]\nfloor_gib = 0.25\n", REFERENCE_KIB // 8).settings.lines
    assert found == Lines(KIB_PER_GIB // 4, KIB_PER_GIB, round(9 * KIB_PER_GIB / 8))


@pytest.mark.parametrize(
    ("text", "armed"),
    [
        ("", {Rule.FLOOR}),
        ('floor = "observe"', set()),
        ('rate = "armed"\nstall = "armed"', {Rule.FLOOR, Rule.RATE, Rule.STALL}),
        ('slow = "armed"\ndry_run = true', set()),
    ],
)
def test_what_is_armed(text: str, armed: set[Rule]) -> None:
    """Until the past is known, the floor acts and what is armed by word does; with dry_run nothing does."""
    assert _load(f"[armed]\n{text}\n").settings.armed == armed


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[lines]\nflor_gib = 3\n", [f"{PATH}:2: unknown key lines.flor_gib; did you mean 'floor_gib'?"]),
        ("\n[slwo]\ndwell_s = 2\n", [f"{PATH}:2: unknown section [slwo]; did you mean 'slow'?"]),
        ("slow = 5\n", [f"{PATH}:1: slow is a section: write [slow] and its keys below"]),
        ("slow.dwel_s = 5\n", [f"{PATH}:1: unknown key slow.dwel_s; did you mean 'dwell_s'?"]),
        (
            "\nslow = {dwell_s = 2, term_grace = 1}\n",
            [f"{PATH}:2: unknown key slow.term_grace; did you mean 'term_grace_s'?"],
        ),
        ('[rate]\n"horizon_s" = true\n', [f"{PATH}:2: rate.horizon_s: True is not a number from 0 to 10"]),
        ("[loop]\nzzz = 1\n", [f"{PATH}:2: unknown key loop.zzz; known: kills, within_s"]),
        ("[[slow]]\n", [f"{PATH}:1: slow is a section: write [slow] and its keys below"]),
    ],
)
def test_where_and_what(text: str, expected: list[str]) -> None:
    """A fault is named with its line, however the key is written, and a misspelt name with the nearest one."""
    assert _faults(text) == expected


def test_all_faults_at_once() -> None:
    """Every fault of a file is named, from its top to its bottom."""
    text = '[lines]\nfloor_gib = "3"\n[rate]\nhorizon_s = 11\n[what]\n[armed]\nslow = "yes"\n'
    assert [fault.split(": ")[0] for fault in _faults(text)] == [f"{PATH}:{line}" for line in (2, 4, 5, 7)]


@pytest.mark.parametrize(
    ("text", "line"),
    [("[lines\n", 1), ("\n\nfloor_gib 3\n", 3), ("[a]\n[a]\n", 2), ("x = [" * 2000, 1), (f"x = {'9' * 5000}\n", 1)],
)
def test_what_is_not_toml(text: str, line: int) -> None:
    """A file that is no TOML is refused with the line where it stops being that."""
    (fault,) = _faults(text)
    assert fault.startswith(f"{PATH}:{line}: not TOML: ")


@pytest.mark.parametrize(
    ("text", "line", "names"),
    [
        (
            "[lines]\nfloor_gib = 9\n",
            2,
            ("lines.slow_enter_gib (8 GiB, the default here)", "lines.floor_gib (9 GiB, line 2)"),
        ),
        ("[lines]\nslow_enter_gib = 9.5\n", 2, ("slow_leave_gib (9 GiB, the default here)", "(9.5 GiB, line 2)")),
        (
            "[lines]\nslow_leave_gib = 5\n",
            2,
            ("slow_leave_gib (5 GiB, line 2)", "slow_enter_gib (8 GiB, the default here)"),
        ),
        ("[lines]\nfloor_gib = 4\nslow_enter_gib = 4\n", 2, ("(4 GiB, line 3)", "(4 GiB, line 2)")),
        ("[lines]\nslow_leave_gib = 130\n", 2, ("slow_leave_gib (130 GiB, line 2)", "MemTotal (121.60 GiB)")),
        ("[sampling]\nperiod_ms = 20\nfast_period_ms = 30\n", 3, ("fast_period_ms (30)", "period_ms (20)")),
    ],
)
def test_the_ladder(text: str, line: int, names: tuple[str, str]) -> None:
    """Lines that do not lie above each other are refused, and both are named with where they come from."""
    (fault,) = _faults(text)
    assert fault.startswith(f"{PATH}:{line}: ")
    assert all(name in fault for name in names)


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("cgroup:/system.slice/docker-*.scope", True),
        ("cgroup:/system.slice", False),
        ("unit:gemma*", True),
        ("unit:emma", False),
        ("command:vllm", True),
        ("command:/opt/vllm", False),
        ("command:*serve*", False),
    ],
)
def test_selectors(selector: str, expected: bool) -> None:
    """A pattern is over all of a cgroup, a unit's or container's name, or the command's name without its directory."""
    found = _load(f"[victims]\nprotect = [{json.dumps(selector)}]\n").protect[0]
    assert found.fits("/system.slice/docker-abc.scope", "gemma-27b", "/opt/vllm serve gemma") is expected


def test_a_selector_of_something_without_names() -> None:
    """What has no unit and no command line is not meant by a pattern for them, unless it is for everything."""
    assert not Selector("unit", "?*").fits("/", None, "")
    assert not Selector("command", "?*").fits("/", None, " ")
    assert Selector("unit", "*").fits("/", None, "")


def test_the_documentation_has_every_key() -> None:
    """The table names each key once, with what it accepts, its default and its meaning, and the default is accepted."""
    rows = config.describe()
    assert [row.key for row in rows] == [key.dotted for key in KEYS]
    assert all(row.accepts and row.default and row.means for row in rows)
    scaled = [row.key for row in rows if "scaled to MemTotal" in row.default]
    assert scaled == [key.dotted for key in KEYS if key.section == "lines"]
    for row in rows:
        if row.key not in scaled:
            section, name = row.key.split(".")
            assert _load(f"[{section}]\n{name} = {row.default}\n") == _load("")


def test_every_setting_can_be_set() -> None:
    """Each figure that the rules go by has a key."""
    fields = {field.name for field in dataclasses.fields(Settings)} - {"lines", "armed"}
    assert fields <= {key.target for key in KEYS}
    assert {field.name for field in dataclasses.fields(Lines)} <= {key.target for key in KEYS}


@given(st.text(st.sampled_from("[]{}=\"\n.#, a1_5'slowlinesdwellfloor_gib\\"), max_size=80))
def test_any_text_is_read_or_refused(text: str) -> None:
    """No file breaks the reader: it is read, or refused with lines that it has."""
    try:
        _load(text)
    except ConfigError as error:
        count = len(text.splitlines()) or 1
        assert all(
            1 <= int(fault.split(":")[1]) <= count for fault in str(error).splitlines() if fault.startswith(PATH)
        )

"""Which rules may act: at once, after a clean day, by word, or not."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.box.guard import arming
from plimsoll.box.guard.arming import Arming, Replayed, Would, choose, covered_s, reckon
from plimsoll.box.guard.config import Arming as Mode
from plimsoll.box.guard.model import KIB_PER_GIB, Lines, Rule, Settings
from plimsoll.box.host import Host

SETTINGS = Settings(Lines(3 * KIB_PER_GIB, 8 * KIB_PER_GIB, 9 * KIB_PER_GIB))
HIGHER = Settings(Lines(3 * KIB_PER_GIB, 10 * KIB_PER_GIB, 11 * KIB_PER_GIB))
AUTO = dict.fromkeys(Rule, Mode.AUTO)
PLENTY = 50 * KIB_PER_GIB
DAY = Replayed(24 * 3600.0)
NOTHING = Replayed(0.0)


def _reckoned(
    before: Arming = Arming(),  # noqa: B008  # frozen
    *,
    modes: dict[Rule, Mode] | None = None,
    available_kib: int | None = PLENTY,
    replayed: Replayed = NOTHING,
    now_s: float = 1000.0,
    settings: Settings = SETTINGS,
) -> Arming:
    return reckon({**AUTO, **(modes or {})}, before, settings, available_kib, replayed, now_s)


def _why(found: Arming, rule: Rule) -> str:
    standing = found.of(rule)
    assert standing is not None
    return standing.why


def test_a_default_install_arms_the_floor_alone() -> None:
    """At first only the floor acts; the others watch, each with its reason."""
    found = _reckoned()
    assert found.armed == {Rule.FLOOR}
    assert "0.0 h of 24 h are recorded" in _why(found, Rule.RATE)
    assert "never arms itself" in _why(found, Rule.STALL)


def test_what_sits_below_the_floor_already_is_not_shot() -> None:
    """A box that runs below the floor when the guard comes keeps running; the floor is armed once memory is above."""
    low = _reckoned(available_kib=KIB_PER_GIB)
    assert low.armed == frozenset()
    assert "1.00 GiB are available, below the floor of 3.00 GiB already" in _why(low, Rule.FLOOR)
    assert _reckoned(low).armed == {Rule.FLOOR}


def test_a_floor_that_is_armed_stays_so_below_it() -> None:
    """A guard that is started again in the middle of an over-commit acts."""
    armed = _reckoned()
    assert _reckoned(armed, available_kib=KIB_PER_GIB).armed == {Rule.FLOOR}


def test_an_unknown_level_arms_nothing() -> None:
    """Where nobody knows how much is available, no rule that goes by it acts."""
    assert _reckoned(available_kib=None).armed == frozenset()


def test_a_clean_day_arms_rate_and_slow() -> None:
    """After a day in which they would have stopped nobody they act, and say on what ground."""
    found = _reckoned(replayed=DAY)
    assert found.armed == {Rule.FLOOR, Rule.RATE, Rule.SLOW}
    assert "a replay of 24 h has it stop nobody" in _why(found, Rule.SLOW)


def test_a_day_in_which_it_would_have_stopped_something_keeps_it_watching() -> None:
    """The rule that would have acted watches on and says on what; the other one is armed."""
    would = (Would(Rule.SLOW, 500.0, "7.9 GiB available"),)
    found = _reckoned(replayed=Replayed(DAY.covered_s, would))
    assert found.armed == {Rule.FLOOR, Rule.RATE}
    assert _why(found, Rule.SLOW).endswith("would have stopped what went on well, once: 7.9 GiB available")
    many = Replayed(DAY.covered_s, would * 5)
    assert "5 times: 7.9 GiB available; 7.9 GiB available; 7.9 GiB available and 2 more" in _why(
        _reckoned(replayed=many), Rule.SLOW
    )


@pytest.mark.parametrize(("floor_at_s", "armed"), [(510.0, True), (531.0, False), (498.0, True), (469.0, False)])
def test_a_rule_that_acts_together_with_the_floor_was_right(floor_at_s: float, armed: bool) -> None:
    """What the floor stops within moments would have been stopped anyway, and is no false alarm."""
    would = (Would(Rule.RATE, 500.0, "falls"), Would(Rule.FLOOR, floor_at_s, "below"))
    assert (Rule.RATE in _reckoned(replayed=Replayed(DAY.covered_s, would)).armed) is armed


@pytest.mark.parametrize(
    ("replayed", "words"),
    [(Replayed(12 * 3600.0), "12.0 h of 24 h"), (Replayed(0.0, problem="the recording cannot be read"), "cannot be")],
)
def test_less_than_a_day_or_no_recording_is_not_enough(replayed: Replayed, words: str) -> None:
    """Without a whole day nothing arms itself, and the reason says how much is missing."""
    found = _reckoned(replayed=replayed)
    assert found.armed == {Rule.FLOOR}
    assert words in _why(found, Rule.RATE)


def test_what_has_armed_itself_stays_armed() -> None:
    """A later day that is not clean, which is what the rule is for, does not disarm it."""
    found = _reckoned(_reckoned(replayed=DAY), replayed=Replayed(0.0, (Would(Rule.SLOW, 5.0, "x"),)))
    assert found.armed == {Rule.FLOOR, Rule.RATE, Rule.SLOW}


def test_other_lines_begin_anew() -> None:
    """What was clean for one set of lines says nothing about another."""
    assert _reckoned(_reckoned(replayed=DAY), settings=HIGHER).armed == {Rule.FLOOR}


def test_the_configuration_decides_where_it_says_something() -> None:
    """`observe` and `armed` of the configuration hold without a recording, for stall too."""
    found = _reckoned(modes={Rule.FLOOR: Mode.OBSERVE, Rule.STALL: Mode.ARMED})
    assert found.armed == {Rule.STALL}
    assert _why(found, Rule.STALL) == "armed: the configuration says so"


def test_a_word_on_the_box_holds_until_it_is_taken_back() -> None:
    """What an operator says on the box goes before the configuration, and `auto` takes it back."""
    told = choose(_reckoned(), [Rule.SLOW, Rule.STALL], Mode.ARMED)
    found = _reckoned(told, modes={Rule.SLOW: Mode.OBSERVE})
    assert found.armed == {Rule.FLOOR, Rule.SLOW, Rule.STALL}
    assert _why(found, Rule.SLOW) == "armed: set on this box"
    assert _reckoned(choose(found, [Rule.SLOW, Rule.STALL], Mode.AUTO)).armed == {Rule.FLOOR}


def test_what_was_armed_by_word_has_not_armed_itself() -> None:
    """A configuration that said armed and says auto now leaves the rule to prove itself."""
    assert _reckoned(_reckoned(modes={Rule.SLOW: Mode.ARMED})).armed == {Rule.FLOOR}


def test_since_when_is_kept_until_it_changes() -> None:
    """The time in a standing is that of the last change, not of the last look."""
    first = _reckoned(now_s=1.0)
    later = _reckoned(first, now_s=2.0, replayed=DAY)
    times = {each.rule: each.since_s for each in later.standings}
    assert times == {Rule.FLOOR: 1.0, Rule.STALL: 1.0, Rule.RATE: 2.0, Rule.SLOW: 2.0}


@given(st.lists(st.floats(min_value=-50, max_value=50), max_size=30))
def test_time_that_was_not_recorded_does_not_count(steps: list[float]) -> None:
    """Gaps and a clock that was set back add nothing, so no more is covered than has passed forwards."""
    times = [sum(steps[:number]) for number in range(len(steps) + 1)]
    covered = covered_s(times)
    assert 0 <= covered <= sum(step for step in steps if step > 0) + 1e-6
    assert covered_s([0.0, 1.0, 2.0, 3600.0, 3601.0]) == 3.0


def test_it_survives_a_boot(tmp_path: Path) -> None:
    """What was saved is read back as it was, in a file that only root may read."""
    host = Host(str(tmp_path))
    assert arming.load(host) == (Arming(), "")
    kept = choose(_reckoned(replayed=DAY), [Rule.STALL], Mode.ARMED)
    arming.save(host, kept)
    assert arming.load(host) == (kept, "")
    assert (tmp_path / arming.PATH.lstrip("/")).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        '{"schema": "plimsoll.arming/2", "rules": {}, "choices": {}, "lines": ""}',
        '{"schema": "plimsoll.arming/1", "rules": {"flor": {}}, "choices": {}, "lines": ""}',
        '{"schema": "plimsoll.arming/1", "rules": [], "choices": {}, "lines": ""}',
        "[" * 100_000,
    ],
)
def test_a_damaged_file_begins_anew_and_says_so(text: str, tmp_path: Path) -> None:
    """Whatever the file holds, nothing is taken for armed on the strength of it, and the reason is told."""
    path = tmp_path / arming.PATH.lstrip("/")
    path.parent.mkdir(parents=True)
    path.write_text(text)
    found, problem = arming.load(Host(str(tmp_path)))
    assert found == Arming()
    assert "damaged" in problem


def test_only_a_true_is_armed(tmp_path: Path) -> None:
    """A value that only looks true arms nothing."""
    arming.save(Host(str(tmp_path)), _reckoned())
    path = tmp_path / arming.PATH.lstrip("/")
    data = json.loads(path.read_text())
    data["rules"]["floor"]["armed"] = "yes"
    path.write_text(json.dumps(data))
    assert arming.load(Host(str(tmp_path)))[0].armed == frozenset()

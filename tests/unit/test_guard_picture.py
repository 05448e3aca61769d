"""The picture of a replay shows what was recorded and decided, stays small, and nothing lies over anything else."""

from xml.etree import ElementTree as ET

import pytest

from plimsoll.box.guard import picture
from plimsoll.box.guard.model import Sample
from plimsoll.box.guard.replay import replay
from plimsoll.box.guard.when import Clock, duration
from tests.unit.recording_builders import LINES, SETTINGS, START_S, at, ramp


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0.25, "0.2 s"), (59.96, "60.0 s"), (61, "1 min 1 s"), (3661, "1 h 1 min"), (90000, "1 d 1 h")],
)
def test_a_duration(seconds: float, expected: str) -> None:
    """A length of time is told in two units at the most."""
    assert duration(seconds) == expected


def test_times_of_a_recording() -> None:
    """Unix time is told as a date with its zone, any other from the beginning."""
    assert Clock(is_unix_time=True).shown(START_S).startswith("2025-11-30 ")
    assert Clock(is_unix_time=False, start_s=100).shown(100 + 3661.25) == "+1:01:01.2"


def _drawn(samples: list[Sample], title: str = "x") -> ET.Element:
    trace = picture.Trace()
    found = list(replay(SETTINGS, trace.watch(samples)))
    text = picture.draw(title, Clock(is_unix_time=True), trace, LINES, found)
    # what was drawn is our own
    return ET.fromstring(text)  # noqa: S314


def _all(root: ET.Element, name: str, css: str = "") -> list[ET.Element]:
    found = root.iter(f"{{http://www.w3.org/2000/svg}}{name}")
    return [each for each in found if not css or each.get("class") == css]


def _points(area: ET.Element) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in (pair.split(",") for pair in area.get("points", "").split())]


def test_a_picture() -> None:
    """A picture shows the level, the stalls, the three lines with their names, and a mark for what was decided."""
    root = _drawn(at(*[60] * 50, *[7.5] * 50, *[60] * 50), 'a <b> & "c"\x1b')
    texts = [text.text or "" for text in _all(root, "text")]
    assert texts[0] == 'a <b> & "c"\\x1b'
    for expected in ("floor 3.00 GiB", "slow line 8.00 GiB", "slow line, left above 9.00 GiB", "1 slow"):
        assert expected in texts
    (level,), (full,) = _all(root, "polygon", "level"), _all(root, "polygon", "full")
    assert len(_points(level)) == 152
    assert len(_points(full)) == 152
    lines = {name: float(_all(root, "line", name)[0].get("y1", "")) for name in ("leave", "slow", "floor")}
    assert lines["leave"] < lines["slow"] < lines["floor"]
    assert max(y for _, y in _points(level)[1:-1]) > lines["slow"]
    (mark,) = _all(root, "line", "acts")
    assert "SIGTERM" not in (mark[0].text or "")
    assert "7.50 GiB available" in (mark[0].text or "")
    assert not [each for each in root.iter() if "href" in str(each.attrib) or "script" in each.tag]


def test_names_do_not_lie_over_each_other() -> None:
    """The names of lines that are near each other, and of marks that are, are apart."""
    root = _drawn(at(*[110] * 5000, *ramp(110, 7.5, 5), *[7.5] * 150, *[110] * 5000))
    labels = [
        float(text.get("y", ""))
        for text in _all(root, "text")
        if "GiB" in (text.text or "") and "line" in (text.text or "")
    ]
    assert abs(labels[0] - labels[1]) >= 12
    assert "1-2 slow" in [text.text for text in _all(root, "text")]


def test_a_long_recording_is_thinned_out() -> None:
    """However long a recording is, the picture stays small, and a dip of one sample stays in it."""
    levels: list[float] = [60] * 40_000
    levels[23_456] = 9.5
    root = _drawn(at(*levels, period_s=1.0))
    (area,) = _all(root, "polygon", "level")
    assert len(_points(area)) < 5000
    lowest = max(y for _, y in _points(area)[1:-1])
    assert lowest > float(_all(root, "line", "leave")[0].get("y1", "")) - 5


def test_a_gap_is_not_drawn_over() -> None:
    """Where nothing is known there is nothing in the picture, also of a long recording."""
    part = at(*[60] * 4000, period_s=1.0)
    later = at(*[60] * 4000, period_s=1.0, start_s=part[-1].at_s + 5000)
    assert len(_all(_drawn(part + later), "polygon", "level")) == 2


def test_more_gaps_than_can_be_drawn() -> None:
    """Samples that are all far from each other do not make the picture grow."""
    root = _drawn(at(*[60] * 20_000, period_s=100.0))
    assert len(_all(root, "polygon", "level")) < 5000


@pytest.mark.parametrize("samples", [[], at(None, None), at(0), at(5, period_s=1.0)])
def test_a_picture_of_nearly_nothing(samples: list[Sample]) -> None:
    """A recording with no sample, with one, or without a level is a picture all the same."""
    assert _all(_drawn(samples), "line", "floor")


def test_many_decisions() -> None:
    """Of very many decisions the picture shows the first, and says how many there are beside."""
    levels = ([20] * 20 + [7.5] * 25) * 60
    texts = [text.text or "" for text in _all(_drawn(at(*levels)), "text")]
    assert any("more are not drawn" in text for text in texts)

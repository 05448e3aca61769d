"""Kills by systemd-oomd, of which it tells itself, and so does the manager of the unit, in either order."""

import pytest

from plimsoll.box.incident.model import UserspaceKill
from tests.unit.incident_logs import answer, events


def _text(*lines: str) -> str:
    return "".join(f"{line}\n" for line in lines)


def _told(by: str, text: str, second: int) -> str:
    return f"2026-05-01T10:00:{second:02}+00:00 s {by}[1]: {text}"


def _by_manager(unit: str, processes: int, second: int) -> str:
    return _told("systemd", f"{unit}: systemd-oomd killed {processes} process(es) in this unit.", second)


def _by_oomd(cgroup: str, second: int, verb: str = "Killed") -> str:
    why = "due to memory pressure for /system.slice being 51.07% > 50.00% for > 20s with reclaim activity"
    return _told("systemd-oomd", f"{verb} {cgroup} {why}", second)


@pytest.mark.parametrize(
    ("lines", "kills"),
    [
        ([_by_manager("foo.service", 3, 1), _by_manager("bar.service", 4, 31)], [("foo", 3), ("bar", 4)]),
        ([_by_manager("foo.service", 3, 1), _by_manager("foo.service", 4, 31)], [("foo", 3), ("foo", 4)]),
        ([_by_oomd("/a/foo.service", 1), _by_manager("bar.service", 4, 31)], [("/a/foo", None), ("bar", 4)]),
        (
            [
                _by_manager("f.service", 3, 1),
                _by_oomd("/a/f.service", 2),
                _by_manager("f.service", 5, 31),
                _by_oomd("/a/f.service", 32),
            ],
            [("/a/f", 3), ("/a/f", 5)],
        ),
        (
            [
                _by_manager("a.service", 3, 1),
                _by_manager("b.service", 4, 1),
                _by_oomd("/s/a.service", 1),
                _by_oomd("/s/b.service", 1),
            ],
            [("/s/a", 3), ("/s/b", 4)],
        ),
        (
            [
                _by_oomd("/u1/a.service", 1),
                _by_oomd("/u2/a.service", 1),
                _by_manager("a.service", 3, 1),
                _by_manager("a.service", 4, 2),
            ],
            [("/u1/a", 3), ("/u2/a", 4)],
        ),
    ],
)
def test_kills_of_several_units(lines: list[str], kills: list[tuple[str, int | None]]) -> None:
    """Each kill is one, with its own number of processes, whoever told of it first."""
    found = [event for event in events(_text(*lines)) if isinstance(event, UserspaceKill)]
    told = [((kill.victim.unit or "").removesuffix(".service"), kill.victim.processes) for kill in found]
    assert told == kills


def test_kills_of_two_users_in_two_logs() -> None:
    """Two users may each have a unit of one name: the manager's line is of either, and the paths are two."""
    one, two = (f"/user.slice/user-{uid}.slice/user@{uid}.service/init.scope" for uid in (1000, 1001))
    found = answer(_text(_by_oomd(one, 1)), _text(_by_oomd(two, 1)))
    assert [event["victim"]["unit"] for event in found["events"]] == [one, two]
    both = answer(_text(_by_oomd("/a/f.service", 1)), _text(_by_manager("f.service", 3, 1)))
    (kill,) = both["events"]
    assert (kill["victim"]["unit"], kill["victim"]["processes"]) == ("/a/f.service", 3)

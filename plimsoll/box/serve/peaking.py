"""`serve peak`: a model's high-water marks, what each does not see, and whether it warms up or leaks."""

from dataclasses import dataclass

from plimsoll.box.host import Host
from plimsoll.box.serve import peaks, records
from plimsoll.box.serve.launch import launcher
from plimsoll.box.serve.model import Model
from plimsoll.box.serve.records import gib


@dataclass(frozen=True)
class Peaks:
    """What is known, as lines of text."""

    lines: tuple[str, ...]
    nothing: bool
    """Whether there is nothing to be known, because it was not started in this boot."""


def look(host: Host, model: Model) -> Peaks:
    """Return a model's marks of its present or last life in this boot; raises NoAnswerError, RecordError."""
    state, seen = records.read(host, model.name), launcher(host, model).look()
    if state is None:
        why = "it was not started by plimsoll serve in this boot, so that there is nothing to compare with"
        return Peaks((f"{model.name}: {why}",), nothing=True)
    until_unix_s = None if state.ended_s is None else state.began_unix_s + state.ended_s - state.began_s
    points: list[peaks.Point] = []
    if state.baseline.available_kib is not None:
        points = peaks.recorded(host, state.began_unix_s, state.baseline.available_kib, until_unix_s)
    cgroup, since_unix_s = state.cgroup or seen.cgroup, state.began_unix_s
    marks = peaks.peaks(host, cgroup, seen.pids, since_unix_s, state.baseline.available_kib)
    most = max([each.footprint_kib for each in points] + [state.footprint_kib or 0])
    trend = peaks.trend(points)
    return Peaks(
        (
            f"{model.name}: {gib(most or None)} at most, by what available memory fell by since before its start",
            *(f"  {each.name}: {gib(each.kib)}; {each.does_not_see}" for each in marks),
            f"  {trend.verdict}: {trend.said}",
        ),
        nothing=False,
    )

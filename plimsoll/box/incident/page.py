"""The answer as one HTML page that needs nothing else: memory around the incident, events, grounds. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from plimsoll.box.incident import report
from plimsoll.box.incident.classify import Incident, classify, leading
from plimsoll.box.incident.grounds import duration
from plimsoll.box.incident.model import Gap
from plimsoll.box.incident.timeline import Timed, Timeline
from plimsoll.box.incident.wording import describe

WIDTH, HEIGHT = 1000, 260
STRIP = 84
"""The height where no memory was recorded, and only events are drawn."""
LEFT, RIGHT, TOP, BOTTOM = 56, 40, 14, 28
AROUND_S = 900.0
"""A quarter of an hour before the incident, where its causes are, and after it."""
_COLOURS = {
    "driver_alloc_failure": "#b58900", "xid": "#cb4b16", "oom_kill": "#dc322f", "hung_task": "#6c71c4",
    "lockup": "#6c71c4", "panic": "#dc322f", "userspace_kill": "#d33682", "gap": "#93a1a1", "boot": "#2aa198",
}  # fmt: skip
_MEMORY = "#268bd2"
_STYLE = """
body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:1020px;padding:0 1rem;color:#222;background:#fff}
h1{font-size:1.35rem;margin:0 0 .3rem}h2{font-size:1.05rem;margin:1.6rem 0 .4rem}
table{border-collapse:collapse;width:100%}td{padding:.25rem .6rem .25rem 0;vertical-align:top;border-top:1px solid #ddd}
td.t,td.s{white-space:nowrap;color:#555;font-variant-numeric:tabular-nums}td.d{overflow-wrap:anywhere}
pre{white-space:pre-wrap;overflow-wrap:anywhere;background:#f5f5f5;padding:.8rem}svg{width:100%;height:auto}
.k{display:inline-block;width:.7rem;height:.7rem;border-radius:2px;margin:0 .4rem 0 0}
p.l{font-size:.85rem;color:#777;margin:.2rem 0}p.l .k{margin-left:.8rem}
@media(prefers-color-scheme:dark){body{background:#161616;color:#ddd}td{border-color:#333}td.t,td.s{color:#999}pre{background:#222}}
"""


def page(timeline: Timeline, unread: Mapping[str, str]) -> str:
    """Return the page."""
    first = leading(classify(timeline))
    title = f"Class {first.label}: {first.says}" if first and first.label else "No incident of a known kind"
    body = "".join([
        f"<h1>{_safe(title)}</h1>",
        f"<p>Confidence {first.confidence:.0%}</p>" if first and first.label else "",
        _drawing(timeline),
        f"<h2>Time line</h2><table>{''.join(_rows(timeline))}</table>",
        f"<h2>In full</h2><pre>{_safe(chr(10).join(report.lines(timeline, unread, verbose=True)))}</pre>",
    ])  # fmt: skip
    head = f"<meta charset=utf-8><meta name=viewport content='width=device-width'><title>{_safe(title)}</title>"
    return f"<!doctype html><html lang=en><head>{head}<style>{_STYLE}</style></head><body>{body}</body></html>\n"


def _safe(text: str) -> str:
    return escape(report.printable(text), quote=True)


def _rows(timeline: Timeline) -> Iterator[str]:
    for timed in timeline.events:
        place = f"{timed.event.place.file}:{timed.event.place.line}"
        mark = f"<span class=k style='background:{_COLOURS[timed.event.kind]}'></span>"
        yield (
            f"<tr><td class=t>{_safe(timed.moment.text or '')}</td>"
            f"<td class=d>{mark}{_safe(describe(timed.event))}</td>"
            f"<td class=s>{_safe(place)}</td></tr>"
        )


@dataclass(frozen=True)
class _Frame:
    """What the drawing spans: seconds from left to right, GiB from the axis upwards."""

    low_s: float
    high_s: float
    top_gib: float
    height: int

    @property
    def span_s(self) -> float:
        return max(self.high_s - self.low_s, 1.0)

    @property
    def axis_y(self) -> int:
        return self.height - BOTTOM

    def x(self, at_s: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (at_s - self.low_s) / self.span_s

    def y(self, gib: float) -> float:
        return TOP + (self.axis_y - TOP) * (1 - gib / self.top_gib)


def _drawing(timeline: Timeline) -> str:
    """Return memory and events over time as SVG; empty where nothing has a time."""
    first = leading(classify(timeline))
    axis = first.start.axis if first and first.start else "wall"
    marks = [(t.moment.at_s, t) for t in timeline.events if t.moment.axis == axis and t.moment.at_s is not None]
    points = [
        (moment.at_s, point.available_gib)
        for moment, point in timeline.series
        if moment.axis == axis and moment.at_s is not None and point.available_gib is not None
    ]
    times = [at_s for at_s, _ in (*marks, *points)]
    if not times:
        return ""
    low_s, high_s = _span(times, first)
    marks = [(at_s, timed) for at_s, timed in marks if low_s <= at_s <= high_s]
    points = sorted((at_s, gib) for at_s, gib in points if low_s <= at_s <= high_s)
    top_gib = max((gib for _, gib in points), default=0.0) or 1.0
    frame = _Frame(low_s, high_s, top_gib, HEIGHT if points else STRIP)
    parts = [*(_mark(at_s, timed, frame) for at_s, timed in marks), *_memory(points, frame), *_axis(marks, frame)]
    drawn = f"<svg viewBox='0 0 {WIDTH} {frame.height}' role=img aria-label='time line'>{''.join(parts)}</svg>"
    return drawn + _legend(marks, frame, with_memory=bool(points))


def _span(times: Sequence[float], first: Incident | None) -> tuple[float, float]:
    """Return from when to when is drawn: everything, or what is around the incident."""
    low_s, high_s = min(times), max(times)
    if first and first.start and first.start.at_s is not None:
        low_s = max(low_s, first.start.at_s - AROUND_S)
        high_s = min(high_s, (first.end_s if first.end_s is not None else first.start.at_s) + AROUND_S)
    return low_s, high_s


def _mark(at_s: float, timed: Timed, frame: _Frame) -> str:
    colour, hint = _COLOURS[timed.event.kind], _safe(f"{timed.moment.text}: {describe(timed.event)}")
    length_s = timed.event.seconds if isinstance(timed.event, Gap) else (timed.until_s or at_s) - at_s
    width = max(3.0, min(frame.x(at_s + length_s), float(WIDTH - RIGHT)) - frame.x(at_s))
    return (
        f"<rect x={frame.x(at_s):.1f} y={TOP} width={width:.1f} height={frame.axis_y - TOP} fill='{colour}'"
        f" fill-opacity=.55><title>{hint}</title></rect>"
    )


def _memory(points: Sequence[tuple[float, float]], frame: _Frame) -> Iterator[str]:
    if points:
        line = " ".join(f"{frame.x(at_s):.1f},{frame.y(gib):.1f}" for at_s, gib in points)
        yield f"<polyline points='{line}' fill=none stroke='{_MEMORY}' stroke-width=1.5 />"
        yield from (_label(4, frame.y(gib) + 4, f"{gib:.0f} GiB") for gib in (0.0, frame.top_gib))


def _axis(marks: Sequence[tuple[float, Timed]], frame: _Frame) -> Iterator[str]:
    """Draw the axis, with the times of the first and the last event."""
    yield f"<line x1={LEFT} x2={WIDTH - RIGHT} y1={frame.axis_y} y2={frame.axis_y} stroke='#888' />"
    ends = sorted(marks, key=lambda mark: mark[0])
    for (at_s, timed), anchor in zip([*ends[:1], *ends[1:][-1:]], ("start", "end"), strict=False):
        yield _label(frame.x(at_s), frame.height - 8, timed.moment.text or "", anchor)


def _legend(marks: Sequence[tuple[float, Timed]], frame: _Frame, *, with_memory: bool) -> str:
    kinds = dict.fromkeys(timed.event.kind for _, timed in marks)
    named = [(_COLOURS[kind], kind.replace("_", " ")) for kind in kinds]
    memory = [(_MEMORY, "available memory")] if with_memory else []
    shown = " ".join(
        f"<span class=k style='background:{colour}'></span>{_safe(name)}" for colour, name in memory + named
    )
    return f"<p class=l>{duration(frame.span_s)} in all: {shown}</p>"


def _label(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f"<text x={x:.0f} y={y:.0f} font-size=12 fill='#888' text-anchor={anchor}>{_safe(text)}</text>"

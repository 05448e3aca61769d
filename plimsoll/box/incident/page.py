"""The answer as one HTML page that needs nothing else: memory around the incident, events, grounds. Pure."""

from collections.abc import Callable, Iterator, Mapping
from html import escape

from plimsoll.box.incident import report
from plimsoll.box.incident.classify import classify, leading
from plimsoll.box.incident.grounds import duration
from plimsoll.box.incident.model import Gap
from plimsoll.box.incident.timeline import Timed, Timeline
from plimsoll.box.incident.wording import describe

WIDTH, HEIGHT = 1000, 260
LEFT, RIGHT, TOP, BOTTOM = 56, 40, 14, 28
AROUND_S = 900.0
"""A quarter of an hour before the incident, where its causes are, and after it."""
_COLOURS = {
    "driver_alloc_failure": "#b58900", "xid": "#cb4b16", "oom_kill": "#dc322f", "hung_task": "#6c71c4",
    "lockup": "#6c71c4", "panic": "#dc322f", "userspace_kill": "#d33682", "gap": "#93a1a1", "boot": "#2aa198",
}  # fmt: skip
_STYLE = """
body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:1020px;padding:0 1rem;color:#222;background:#fff}
h1{font-size:1.35rem;margin:0 0 .3rem}h2{font-size:1.05rem;margin:1.6rem 0 .4rem}
table{border-collapse:collapse;width:100%}td{padding:.25rem .6rem .25rem 0;vertical-align:top;border-top:1px solid #ddd}
td.t,td.s{white-space:nowrap;color:#555;font-variant-numeric:tabular-nums}td.d{overflow-wrap:anywhere}
pre{white-space:pre-wrap;overflow-wrap:anywhere;background:#f5f5f5;padding:.8rem}svg{width:100%;height:auto}
.k{display:inline-block;width:.7rem;height:.7rem;border-radius:2px;margin-right:.4rem}
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


def _drawing(timeline: Timeline) -> str:
    """Return memory and events over time as SVG; empty where nothing has a time."""
    first = leading(classify(timeline))
    axis = first.start.axis if first and first.start else "wall"
    marks = [t for t in timeline.events if t.moment.axis == axis and t.moment.at_s is not None]
    points = [(m.at_s, p) for m, p in timeline.series if m.axis == axis and m.at_s is not None]
    times = [t.moment.at_s for t in marks if t.moment.at_s is not None] + [at for at, _point in points]
    if not times:
        return ""
    low, high = min(times), max(times)
    if first and first.start and first.start.at_s is not None:
        low = max(low, first.start.at_s - AROUND_S)
        high = min(high, (first.end_s if first.end_s is not None else first.start.at_s) + AROUND_S)
    span = max(high - low, 1.0)
    inside = [(at, p.available_gib) for at, p in points if low <= at <= high and p.available_gib is not None]
    top = max((gib for _at, gib in inside), default=0.0) or 1.0

    def x(at_s: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (at_s - low) / span

    def y(gib: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - gib / top)

    parts = [_mark(timed, x) for timed in marks if timed.moment.at_s is not None and low <= timed.moment.at_s <= high]
    if inside:
        line = " ".join(f"{x(at):.1f},{y(gib):.1f}" for at, gib in sorted(inside))
        parts.append(f"<polyline points='{line}' fill=none stroke='#268bd2' stroke-width=1.5 />")
        parts += [_label(4, y(gib) + 4, f"{gib:.0f} GiB") for gib in (0.0, top)]
    parts.append(f"<line x1={LEFT} x2={WIDTH - RIGHT} y1={HEIGHT - BOTTOM} y2={HEIGHT - BOTTOM} stroke='#888' />")
    parts.append(
        _label(
            LEFT,
            HEIGHT - 8,
            f"{duration(span)} in all; blue: available memory" if inside else f"{duration(span)} in all",
        )
    )
    return f"<svg viewBox='0 0 {WIDTH} {HEIGHT}' role=img aria-label='time line'>{''.join(parts)}</svg>"


def _mark(timed: Timed, x: Callable[[float], float]) -> str:
    at_s = timed.moment.at_s or 0.0
    colour, hint = _COLOURS[timed.event.kind], _safe(f"{timed.moment.text}: {describe(timed.event)}")
    length = timed.event.seconds if isinstance(timed.event, Gap) else (timed.until_s or at_s) - at_s
    width = max(1.5, min(x(at_s + length), float(WIDTH - RIGHT)) - x(at_s))
    return (
        f"<rect x={x(at_s):.1f} y={TOP} width={width:.1f} height={HEIGHT - TOP - BOTTOM} fill='{colour}'"
        " fill-opacity=.45>"
        f"<title>{hint}</title></rect>"
    )


def _label(x: float, y: float, text: str) -> str:
    return f"<text x={x:.0f} y={y:.0f} font-size=12 fill='#888'>{_safe(text)}</text>"

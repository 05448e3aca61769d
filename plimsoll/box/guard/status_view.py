"""A status for a person: lines of text, in which no name of anybody's can move the cursor. Pure."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from plimsoll.box import texts
from plimsoll.box.guard.places import printable

_GIB = 1 << 30
_MIB = 1 << 20
MAX_SHOWN = 6
MAX_ACTIONS = 3


def lines(status: Mapping[str, Any]) -> list[str]:
    """Return the view, a line each."""
    parts = (_memory, _margins, _guard, _rules, _candidates, _kernel, _reservations, _actions, _not_seen)
    rows = [row for part in parts for row in part(status)]
    return [f"{head:<13}{text}".rstrip() for head, text in rows]


Rows = Iterator[tuple[str, str]]


def size(bytes_: int | None) -> str:
    """Return a size for a person, in GiB, small ones in MiB; `unknown` for None."""
    if bytes_ is None:
        return "unknown"
    return f"{bytes_ / _GIB:.2f} GiB" if abs(bytes_) >= _GIB else f"{bytes_ / _MIB:.0f} MiB"


def _memory(status: Mapping[str, Any]) -> Rows:
    kernel = f"; MemAvailable says {size(status['mem_available_bytes'])}"
    yield "available", f"{size(status['available_bytes'])} of {size(status['mem_total_bytes'])}{kernel}"
    yield "", f"regime {printable(status['regime'])}: {_text(status['basis'])}"
    percent, falls = status["full_percent"], status["falls_bytes_per_s"] or 0
    if percent is not None:
        yield "stalled", f"{percent:.1f} % of the last interval (PSI full)"
    if falls >= _MIB:
        yield "falling", f"{size(falls)}/s"


def _margins(status: Mapping[str, Any]) -> Rows:
    lines_ = status["lines"]
    named = {"floor": lines_["floor_bytes"], "rate": lines_["floor_bytes"], "slow": lines_["slow_enter_bytes"]}
    for name, margin in status["margins"].items():
        # a line that a newer guard knows and this program does not has a margin all the same
        at = f" (line at {size(named[name])})" if name in named else ""
        below = "  BELOW" if margin is not None and margin < 0 else ""
        yield "margin" if name == "floor" else "", f"{printable(name)} {size(margin)}{at}{below}"


def _guard(status: Mapping[str, Any]) -> Rows:
    guard = status["guard"]
    if status.get("problem"):
        yield "guard", f"UNKNOWN: {_text(status['problem'])}"
        return
    if guard is None:
        yield "guard", "does not run: nobody would act"
        return
    gap = guard["longest_gap_ms"]
    longest = "" if gap is None else f", longest gap {gap:.0f} ms"
    age = status.get("sample_age_s") or 0.0
    yield "guard", f"pid {guard['pid']}, last sample {age:.1f} s ago, {size(guard['locked_bytes'])} locked{longest}"
    yield from (("", f"cannot: {_text(problem)}") for problem in guard["problems"])


def _rules(status: Mapping[str, Any]) -> Rows:
    if status["guard"] is None:
        return
    for number, rule in enumerate(status["rules"]):
        why = _text(rule["why"]) or ("armed" if rule["armed"] else "observes")
        stopped = f"; has stopped {rule['stopped']}" if rule["stopped"] else ""
        yield "" if number else "rules", f"{printable(rule['rule']):<6}{why}{stopped}"


_VERDICTS = {"next": "first", "possible": "later", "fallback": "if nobody else", "spared": "never now"}


def _candidates(status: Mapping[str, Any]) -> Rows:
    found = status["candidates"]
    if not found:
        yield "would stop", "nobody: no workload that holds the GPU was found"
    for number, each in enumerate(found[:MAX_SHOWN]):
        what = f"{printable(each['name'])} ({printable(each['kind'])})"
        verdict = _VERDICTS.get(each["verdict"], printable(each["verdict"]))
        yield "" if number else "would stop", f"{verdict}: {what}: {_text(each['reason'])}"
    yield from _more(found)


def _more(found: Sequence[object]) -> Rows:
    if len(found) > MAX_SHOWN:
        yield "", f"and {len(found) - MAX_SHOWN} more: --json has them all"


def _kernel(status: Mapping[str, Any]) -> Rows:
    for number, each in enumerate(status.get("kernel_candidates", ())):
        text = f"{printable(each['name'])} (pid {each['pid']}): score {each['oom_score']}, adj {each['oom_score_adj']}"
        yield "" if number else "kernel would", text


def _reservations(status: Mapping[str, Any]) -> Rows:
    for number, each in enumerate(status["reservations"][:MAX_SHOWN]):
        left = f"{size(each['remaining_bytes'])} of {size(each['allocate_bytes'])} still to come"
        text = f"{printable(each['workload'])}: {left}, for {each['ends_in_s']:.0f} s more"
        yield "" if number else "reserved", text
    yield from _more(status["reservations"])


def _actions(status: Mapping[str, Any]) -> Rows:
    stopping = status["stopping"]
    if stopping is not None:
        how = "gone, its memory is coming back" if stopping["released"] else "being stopped"
        yield "now", f"{printable(stopping['name'])}: {how}, for {stopping['for_s']:.1f} s"
    for number, each in enumerate(status["actions"][-MAX_ACTIONS:][::-1]):
        when = printable(str(each.get("at", "")))
        yield "" if number else "last", f"{when} {_text(str(each.get('text', '')))}"


def _not_seen(status: Mapping[str, Any]) -> Rows:
    for number, each in enumerate(status.get("not_seen", ())):
        yield "" if number else "not seen", _text(each)


_LONGEST = 300


def _text(text: str) -> str:
    """Return a sentence with others' names in it on one line, its invisible characters spelled out."""
    return texts.printable(text, _LONGEST)


# --- a live view ------------------------------------------------------------------------------------

BEGIN = "\x1b[?1049h\x1b[?25l"
"""The terminal's second screen, without a cursor."""
END = "\x1b[?25h\x1b[?1049l"
_HOME, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"


def frame(status: Mapping[str, Any], columns: int, rows: int, name: str) -> str:
    """Return one picture for a terminal of that size: nothing wraps, and nothing scrolls."""
    head = f"{printable(name)}  {time.strftime('%H:%M:%S', time.localtime(status['unix_s']))}  q ends"
    shown = [head, "", *lines(status)][: max(rows - 1, 1)]
    cut = (line if len(line) <= columns else f"{line[: columns - 1]}…" for line in shown)
    return _HOME + "".join(f"{line}{_CLEAR_LINE}\r\n" for line in cut) + _CLEAR_BELOW

"""Puts messages together again that were wrapped when they were pasted. Pure.

Only what begins as a known message, is not complete, and is followed by lines without any prefix that can be its rest,
is joined: prose around an excerpt stays prose. A terminal cuts at its width, also within a word; a mail program at
blanks: the length of the line tells which.
"""

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from plimsoll.box.incident.model import NO_STAMP, Line

MAX_PIECES = 16
MIN_WIDTH, MAX_WIDTH = 40, 200
"""Nobody wraps at less or more; a text with longer lines was not wrapped."""
MAX_WORD = 160
"""What may not have fit; names of containers are longer, and then stand alone on their line."""
_WIDTHS = frozenset({60, 64, 70, 72, 76, 78, 79, 80, 100, 119, 120, 132, 160})


class _Form(NamedTuple):
    begins: re.Pattern[str]
    complete: re.Pattern[str]
    rest: re.Pattern[str]


_FORMS = (
    _Form(
        re.compile(r"oom-kill: ?\w+="), re.compile(r",\s*uid=\d+$"),
        re.compile(r"[\w=,./:()@\\+-]+$|.*\b(?:task|pid|uid|cpuset|\w+_memcg|mems_allowed)="),
    ),
    _Form(
        re.compile(r"(?:(?:Memory cgroup o|O)ut of memory|Killed process|Kill process)\b"),
        re.compile(r"oom_score_adj:-?\d+\W*$|sacrifice child\W*$"),
        re.compile(r".*(?:\d ?kB|-rss:|UID:\d|pgtables:|total-vm:|_adj:|\bscore \d+ or\b|sacrifice child|^\(?\S+\)$)"),
    ),
    _Form(
        re.compile(r"NVRM: "),
        re.compile(r"@ \S+:\d+$|metadata\.?$"),
        re.compile(r".*(?:\bbytes\b|returned|from|@|0x[0-9a-f]+|NV_ERR|\w+\.c:\d|memory|^\w{1,12}\]|pMemDesc)"),
    ),
    _Form(
        re.compile(r".{1,40} invoked oom-killer:"), re.compile(r"oom_score_adj=-?\d+$"),
        re.compile(r".*(?:gfp_mask|order=|_adj=|GFP_|nodemask)"),
    ),
    _Form(
        re.compile(r"INFO: task .*"), re.compile(r"seconds\.?$|\)$|>$"),
        re.compile(r".*(?:blocked|more than|seconds|likely|owned)"),
    ),
    _Form(
        re.compile(r"(?:low memory! )?mem avail:"), re.compile(r"swap free:.*\)$"),
        re.compile(r".*(?:swap free|MiB|%\))"),
    ),
    _Form(
        re.compile(r"[Ss]ending SIG[A-Z]+ to process"), re.compile(r"VmRSS \d+ MiB.*$"),
        re.compile(r".*(?:VmRSS|MiB|badness|oom_score)"),
    ),
    _Form(
        re.compile(r"Killed /\S* ?(?:due)?"), re.compile(r"reclaim activity$|being more than [\d.]+%$"),
        re.compile(r".*(?:due to|memory pressure|being|reclaim|swap used|total|\.slice|\.scope|\.service|%)"),
    ),
)  # fmt: skip


_ANY_BEGINS = re.compile("|".join(["oom_reaper: ", *(f"(?:{form.begins.pattern})" for form in _FORMS)]))


_WHOLE = re.compile(r"\s*(?:\[<[0-9a-f]+>\] )?(?:\? )?[\w.$]+\+0x[0-9a-f]+/0x[0-9a-f]+(?: |$)|-- (?:Boot|Reboot)\b")
"""A line of a stack, and journalctl's mark of a boot: no line goes on with one of them."""


class Shape(NamedTuple):
    """How a text was wrapped: at which width (0: not told), within words too, and whether its messages have stamps."""

    width: int = 0
    is_hard: bool = False
    is_stamped: bool = False


UNKNOWN = Shape()


def shape(lines: Sequence[Line]) -> Shape:
    """Return how a pasted text was wrapped, from all of its lines; UNKNOWN for one that was not."""
    # a word that is longer than the width stands alone on its line, and says nothing of it
    width = max((line.width for line in lines if " " in line.text.strip() or line.prefixed), default=0)
    if not MIN_WIDTH <= width <= MAX_WIDTH:
        return UNKNOWN
    stamped = sum(line.stamp != NO_STAMP for line in lines)
    is_stamped = stamped > 1 or (stamped == 1 and lines[0].stamp != NO_STAMP)
    pairs = [one.width for one, other in itertools.pairwise(lines) if _may_follow(one, other, width)]
    full = pairs.count(width)
    is_hard = full * 2 > len(pairs) if len(pairs) > 1 else full == 1 and width in _WIDTHS
    return Shape(width, is_hard, is_stamped) if pairs else UNKNOWN


def _may_follow(line: Line, after: Line, width: int) -> bool:
    """Say whether the second line can be what did not fit on the first."""
    if after.prefixed or not after.text.strip() or _ANY_BEGINS.match(after.text.lstrip()) or _WHOLE.match(after.text):
        return False
    return line.width == width or line.width + 1 + len(after.text.split()[0]) > width


def _form_of(text: str) -> _Form | None:
    if not _ANY_BEGINS.match(text):
        return None
    return next((form for form in _FORMS if form.begins.match(text)), None)


class Joiner:
    """Takes lines one by one and yields messages."""

    def __init__(self, of: Shape = UNKNOWN) -> None:
        self._shape = of
        self._pending: Line | None = None
        self._form: _Form | None = None
        self._last: Line | None = None
        self._pieces = 0

    @property
    def wants_more(self) -> bool:
        """Whether a message waits for its rest."""
        return self._pending is not None

    def feed(self, line: Line) -> Iterator[Line]:
        """Yield what is complete now."""
        if self._pending is not None and self._last is not None:
            if self._pieces < MAX_PIECES and self._continues(self._last, line):
                yield from self._extend(self._pending, line)
                return
            yield from self.flush()
        form = _form_of(line.text.lstrip()) if line.may_be_joined else None
        is_open = form is not None and not form.complete.search(line.text)
        if is_open or self._is_cut(line):
            self._pending, self._form, self._last, self._pieces = line, form, line, 1
        else:
            yield line

    def flush(self) -> Iterator[Line]:
        """Yield what is left, complete or not."""
        pending, self._pending = self._pending, None
        if pending is not None:
            yield pending

    def _is_cut(self, line: Line) -> bool:
        """Say whether a message with a stamp may go on in the next line, whatever it is."""
        room = self._shape.width - line.width
        return (
            self._shape.is_stamped and line.stamp != NO_STAMP and 0 <= room <= (0 if self._shape.is_hard else MAX_WORD)
        )

    def _continues(self, last: Line, line: Line) -> bool:
        if self._shape.width and not last.text.strip() and last.stamp != NO_STAMP and not line.prefixed:
            return True  # the stamp stands alone, because the first word after it did not fit
        if self._shape.width and _may_follow(last, line, self._shape.width):
            # what the kernel itself prints in several lines is indented under the first
            return not line.text.startswith("  ") or not self._shape.is_stamped
        text = line.text.strip()
        if line.prefixed or not text or self._form is None or _ANY_BEGINS.match(text):
            return False
        return bool(self._form.rest.match(text))

    def _extend(self, pending: Line, line: Line) -> Iterator[Line]:
        if self._shape.is_hard and self._last is not None and self._last.width == self._shape.width:
            joined = f"{pending.text}{line.text}"
        else:
            joined = f"{pending.text.rstrip()} {line.text.strip()}"
        self._pending, self._last = pending._replace(text=joined), line
        self._pieces += 1
        if self._form is not None and self._form.complete.search(joined):
            yield from self.flush()

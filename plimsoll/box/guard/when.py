"""Times of a recording for a person: of the day where they are Unix time, else from where the recording began."""

import datetime
from typing import NamedTuple

_HOUR_S, _MINUTE_S, _DAY_S = 3600, 60, 86400


class Clock(NamedTuple):
    """How the times of a recording are to be shown."""

    is_unix_time: bool
    start_s: float = 0.0

    def shown(self, at_s: float) -> str:
        """Return a moment; from the beginning of the recording as `+H:MM:SS.s`."""
        if self.is_unix_time:
            moment = datetime.datetime.fromtimestamp(at_s, datetime.UTC).astimezone()
            return moment.isoformat(sep=" ", timespec="seconds")
        hours, rest = divmod(max(0.0, at_s - self.start_s), _HOUR_S)
        return f"+{hours:.0f}:{int(rest // _MINUTE_S):02}:{rest % _MINUTE_S:04.1f}"


def duration(seconds: float) -> str:
    """Return a length of time in the two largest units that it has."""
    whole = int(seconds)
    days, rest = divmod(whole, _DAY_S)
    hours, rest = divmod(rest, _HOUR_S)
    minutes, rest = divmod(rest, _MINUTE_S)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    if minutes:
        return f"{minutes} min {rest} s"
    return f"{seconds:.1f} s"

"""What the guard is told of a model: what it will take while it loads, and the line that holds for it afterwards."""

import time
from collections.abc import Callable, Sequence

from plimsoll.box.errors import BoxError
from plimsoll.box.guard import configured, reserve
from plimsoll.box.guard.model import Reservation
from plimsoll.box.serve.acting import Act
from plimsoll.box.serve.checking import Granted
from plimsoll.box.serve.launch import LaunchError
from plimsoll.box.serve.model import Model
from plimsoll.box.serve.records import Phase, State

LOAD_SLACK_S = 60.0
"""A load that is late is ended by whoever waits for it, and not by the guard."""


_TAKEN_S = 1.0
"""A load that is over takes no more: its announcement ends at once, and its line stays."""


def announce(act: Act, model: Model, selector: str, granted: Granted, state: State) -> State:
    """Announce what a model is going to take, and note the number; raises LaunchError, ReservationError, OSError."""
    needed, admitted = granted.needed, granted.admitted
    within_s = min(model.readiness.deadline_s + LOAD_SLACK_S, reserve.MAX_WITHIN_S)
    available_kib = state.baseline.available_kib or 0
    wanted = reserve.new(
        selector, needed.peak_kib, within_s, time.monotonic(), available_kib, admitted.start_line_kib
    )  # fmt: skip
    store = _store(act)
    store.create()
    _remove(store, selector)
    # written down first: what is announced can then be taken back, whatever happens in between
    state = act.move(
        state, Phase.STARTING, reservation=wanted.id, steady_line_kib=admitted.steady_line_kib,
        container="" if model.unit else selector,
    )  # fmt: skip
    _add(store, wanted, lambda others: granted.why_not(model, selector, others))
    return state


def settle(act: Act, state: State) -> str:
    """Replace the announcement of a load that is over by the line that holds from now on; return its number."""
    if not state.reservation or state.steady_line_kib is None:
        return state.reservation
    available_kib = state.baseline.available_kib or 0
    lasting = reserve.new(
        state.selector, max(1, state.footprint_kib or 0), _TAKEN_S, time.monotonic(), available_kib,
        state.steady_line_kib,
    )  # fmt: skip
    try:
        store = _store(act)
        # the new one first: it is never without one
        _add(store, lasting, lambda _others: None)
        _remove(store, state.selector, but=lasting.id)
    except (BoxError, OSError) as error:
        act.say(f"{state.name}: the guard goes on by what was announced for its load: {error}")
        return state.reservation
    return lasting.id


def release(act: Act, state: State) -> None:
    """Take back what was announced; what is gone already was taken back by the guard."""
    try:
        _remove(_store(act), state.selector)
    except (BoxError, OSError) as error:
        # a guard.toml that has become faulty is no reason to leave a stop in the middle
        act.say(f"{state.name}: what it announced stays: {error}")


def _store(act: Act) -> reserve.Store:
    return reserve.Store(act.host, configured.load(act.host).config.reserve_groups)


def _remove(store: reserve.Store, selector: str, but: str = "") -> None:
    """Remove what was announced for a workload, all but one: whoever was killed in between has left two."""
    for each in store.read()[0]:
        if each.workload == selector and each.id != but:
            store.remove(each.id)


def _add(store: reserve.Store, wanted: Reservation, may: Callable[[Sequence[Reservation]], str | None]) -> None:
    reason = store.add(wanted, may)
    if reason is not None:
        raise LaunchError(f"its need cannot be announced to the guard: {reason}")

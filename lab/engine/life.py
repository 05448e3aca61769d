"""Carries out a plan: reads, grows, holds and gives back, and tells what it does."""

import time
from collections.abc import Callable
from typing import BinaryIO

from lab.engine.kinds import State
from lab.engine.memory import Memory
from lab.engine.plan import Phase, Plan

ASK_AGAIN_S = 0.13
"""Frameworks free their cache and ask the driver anew; a GB10 box was seen frozen for an hour by one that did. Of the
driver's lines, of which each refusal makes two, it had about 920 in a minute."""
SLICE_BYTES = 16 << 20
"""Reading and growing take turns in slices of this size, as a checkpoint's shards do."""


class RefusedError(Exception):
    """The driver has no more memory, and the plan says that this is the end."""


class Life:
    """One stand-in that lives by its plan.

    `weights` is the file that loading reads, `tell` gets every state that it comes to.
    """

    def __init__(
        self, plan: Plan, memory: Memory, weights: BinaryIO | None, total_bytes: int, tell: Callable[[State], None]
    ) -> None:
        self._plan = plan
        self._memory = memory
        self._weights = weights
        self._total_bytes = total_bytes
        self._tell = tell
        self._buffer = bytearray(SLICE_BYTES)

    def run(self) -> None:
        """Live through all phases; what is held stays. Raises RefusedError where the plan wants that."""
        last_loading = max((i for i, phase in enumerate(self._plan.phases) if phase.loading), default=-1)
        if last_loading < 0:
            self._ready()
        for number, phase in enumerate(self._plan.phases):
            for _ in range(phase.times):
                self._phase(phase)
            if number == last_loading:
                self._ready()

    def _ready(self) -> None:
        states: dict[str, State] = {"healthy after a failed start": "failed", "healthy while stuck": "stuck"}
        self._tell(states.get(self._plan.lie, "ready"))

    def _phase(self, phase: Phase) -> None:
        print(f"{phase.name}: {phase.grow_percent:g} % of memory at {phase.rate:g} %/s", flush=True)
        taken = self._read_and_grow(phase) if phase.read_percent else self._grow(phase, self._bytes(phase.grow_percent))
        time.sleep(phase.hold_s)
        if phase.gives_back and taken:
            self._memory.free(taken)

    def _bytes(self, percent: float) -> int:
        return int(self._total_bytes * percent / 100)

    def _read_and_grow(self, phase: Phase) -> int:
        """Read the weights from their beginning, and take memory for each slice of them."""
        to_read, to_grow = self._bytes(phase.read_percent), self._bytes(phase.grow_percent)
        slices = max(1, -(-to_read // SLICE_BYTES))
        taken = 0
        if self._weights:
            self._weights.seek(0)
        for number in range(slices):
            if self._weights:
                self._weights.readinto(self._buffer)  # type: ignore[attr-defined]  # BinaryIO of typeshed lacks it
            taken += self._grow(phase, to_grow * (number + 1) // slices - to_grow * number // slices)
        return taken

    def _grow(self, phase: Phase, wanted: int) -> int:
        """Take memory; what is done when it is refused is the plan's choice. Returns the bytes got."""
        rate, got = self._bytes(phase.rate), 0
        while got < wanted:
            got += self._memory.alloc(wanted - got, rate)
            if got < wanted:
                self._refused(wanted - got)
            if got < wanted and self._plan.when_refused == "pretend":
                break
        return got

    def _refused(self, missing: int) -> None:
        print(f"CUDA error: out of memory ({missing >> 20} MiB)", flush=True)
        if self._plan.when_refused == "exit":
            raise RefusedError
        if self._plan.when_refused == "pretend":
            self._tell("failed")
        else:
            time.sleep(ASK_AGAIN_S)

"""Reads that may never return, in threads that nobody waits for.

The arguments and the maps of a process lie behind its mmap_lock. One that is stuck in the kernel holds it for as long
as it is stuck (blocked tasks of minutes were seen), and whoever asks waits with it, in a state that no signal ends.
"""

import threading
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

Item = TypeVar("Item")
Found = TypeVar("Found")
MAX_STUCK = 4
"""Threads given up at a time: each locks its stack in memory."""
PATIENCE_S = 0.5


class _Batch(Generic[Item, Found]):
    """One thread's work: items, taken from the front, and what was found of them."""

    def __init__(self, read: Callable[[Item], Found | None], items: list[Item], found: dict[Item, Found]) -> None:
        self._read = read
        self.items = items
        self.found = found
        self.at: Item | None = None
        self.abandoned = False
        self.moved = threading.Event()
        self.thread = threading.Thread(target=self._work, daemon=True, name="patient")

    def _work(self) -> None:
        while self.items and not self.abandoned:
            self.at = self.items.pop()
            result = self._read(self.at)
            if result is not None and not self.abandoned:
                self.found[self.at] = result
            self.at = None
            self.moved.set()
        self.moved.set()


class Patient(Generic[Item, Found]):
    """Reads one thing after the other, and gives up on a single one that takes longer than `patience_s`.

    `read` returns None for what is gone; it must not raise. One caller at a time.
    """

    def __init__(self, read: Callable[[Item], Found | None], patience_s: float = PATIENCE_S) -> None:
        self._read = read
        self._patience_s = patience_s
        self._stuck: list[_Batch[Item, Found]] = []

    @property
    def stuck(self) -> tuple[Item, ...]:
        """What is still being waited for by a thread that was given up."""
        return tuple(batch.at for batch in self._stuck if batch.at is not None)

    def read(self, items: Iterable[Item]) -> dict[Item, Found]:
        """Return what was found of each; what is missing is gone, is stuck, or was not tried beside the stuck ones."""
        self._stuck = [batch for batch in self._stuck if batch.thread.is_alive()]
        waiting = set(self.stuck)
        left = [item for item in items if item not in waiting]
        found: dict[Item, Found] = {}
        while left and len(self._stuck) < MAX_STUCK:
            batch = _Batch(self._read, left, found)
            batch.thread.start()
            if self._has_ended(batch):
                break
            batch.abandoned = True
            self._stuck.append(batch)
            # The thread that was given up must not take from it when it comes back.
            left = list(left)
            batch.items = []
        return dict(found)

    def _has_ended(self, batch: _Batch[Item, Found]) -> bool:
        while batch.thread.is_alive():
            if not batch.moved.wait(self._patience_s):
                return False
            batch.moved.clear()
            if not batch.items and batch.at is None:
                batch.thread.join()
        return True

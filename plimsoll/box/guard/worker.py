"""A thread that does what may block, and a queue in front of it that never does."""

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")


class Worker(Generic[T]):
    """Handles what it is given, one after another, in a thread of its own.

    A thread that hangs in the kernel keeps nobody: what comes meanwhile waits, and is dropped and counted once
    `limit` things wait. An error of `handle` is kept in `trouble` and ends nothing.
    """

    def __init__(self, name: str, handle: Callable[[T], None], limit: int) -> None:
        self._handle = handle
        self._limit = limit
        self._waiting: SimpleQueue[T | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._dropped = 0
        self.trouble = ""
        """What the last thing that was handled failed with."""
        self._at_work = False

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def put(self, item: T) -> bool:
        """Give it something to do, without waiting; False where too much waits already."""
        # The size may be out of date by what other threads put at this moment: the limit is against growing for ever.
        if self._waiting.qsize() >= self._limit:
            self._dropped += 1
            return False
        self._waiting.put(item)
        return True

    def take_dropped(self) -> int:
        """Return how many things were dropped since this was last asked."""
        dropped, self._dropped = self._dropped, 0
        return dropped

    @property
    def backlog(self) -> int:
        """How many things wait."""
        return self._waiting.qsize()

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits and nothing is being handled."""
        return self._waiting.empty() and not self._at_work

    def stop(self, timeout_s: float) -> bool:
        """Let it finish what waits, for so long; False where it is still at it. Nothing is taken afterwards."""
        if not self._thread.is_alive():
            return self._waiting.empty()
        self._waiting.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def work_off(self) -> None:
        """Handle here and now what waits, where no thread was started."""
        while True:
            try:
                item = self._waiting.get_nowait()
            except Empty:
                return
            if item is not None:
                self._try(item)

    def _work(self) -> None:
        while (item := self._waiting.get()) is not None:
            self._try(item)

    def _try(self, item: T) -> None:
        self._at_work = True
        try:
            self._handle(item)
        except Exception as error:  # noqa: BLE001  # a thread that ends would take every later record with it
            self.trouble = f"{type(error).__name__}: {error}"
        else:
            self.trouble = ""
        finally:
            self._at_work = False

"""Threads of which one works at a time: another one goes on where the present one waits for something outside."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


class LaneStopped(BaseException):
    """Raised once in a thread that waits, when all of them are to end. Not an error of what the thread does."""


class Turn:
    """A lock that a thread holds while it works, and gives away while it waits (`released`).

    So what these threads share (store, progress, schedulers) needs no locks of its own. `with turn:` takes it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner: int | None = None
        self.stopping = False
        self._told: set[int] = set()  # threads that have got `LaneStopped`

    def __enter__(self) -> Turn:
        self._lock.acquire()
        self._owner = threading.get_ident()
        return self

    def __exit__(self, *exc: object) -> None:
        self._owner = None
        self._lock.release()

    @contextlib.contextmanager
    def released(self) -> Iterator[None]:
        """Within this, other threads work. In a thread that has not the turn, nothing happens.

        Raises:
            LaneStopped: at the end, once per thread, after `stop`.
        """
        me = threading.get_ident()
        if self._owner != me:
            yield
            return
        self.__exit__()
        try:
            yield
        finally:
            self.__enter__()
        if self.stopping and me not in self._told:
            self._told.add(me)
            raise LaneStopped

    def stop(self) -> None:
        """Every other thread that waits, or comes to wait, gets `LaneStopped`; it may still wait while it cleans up."""
        self._told.add(threading.get_ident())
        self.stopping = True

"""Several models at once on a cluster: each is run in a thread of its own, one of which works at a time.

A thread works until it waits for its engines or its samples (`harness.cluster.turn`); then another one does. So store,
progress and counts have one writer at a time, and the code that runs one model is the same with and without a cluster.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from harness.cluster.connection import Cluster
from harness.cluster.shares import AT_ONCE, usable
from harness.cluster.turn import LaneStopped
from harness.run.engines import Engines, Staying
from harness.run.prefetching import Prefetcher
from harness.run.session import Session, Tally
from harness.types import Cell


class Cells(Protocol):
    """The cells that are left (`harness.run.runner`)."""

    def of_engine(self, engine: str) -> list[Cell]:
        """The cells that are left of an engine by its name in the plan."""

    def decide(self, engines: Staying) -> bool:
        """Plan the next round of every open decision; whether there is one."""

    @property
    def deciding(self) -> bool:
        """Whether a decision between two models is open."""


RunModel = Callable[[Session, Engines, str], None]
"""Runs all cells of one model that are left, with its part of the session and its engines."""


@dataclass
class _Lane:
    """One model. `session`: its part, with its own counts and samples; `resources`: its engines and its samples."""

    label: str
    session: Session
    engines: Engines
    resources: contextlib.ExitStack


class AtOnce:
    """Runs models at once, as many as the cluster has engines, `AT_ONCE` at most; the others follow as these end.

    `found`: cell -> samples that earlier sessions have left. `prefetcher`: makes what makes one model's samples.
    """

    def __init__(
        self,
        session: Session,
        cluster: Cluster,
        found: Mapping[Cell, int],
        prefetcher: Callable[[], Prefetcher],
    ) -> None:
        self.session, self.cluster, self.found = session, cluster, found
        self._prefetcher = prefetcher
        self._lanes: dict[str, _Lane] = {}  # of models whose engines run, or will
        self._threads: list[threading.Thread] = []
        self._active: set[str] = set()
        self._waiting: deque[str] = deque()
        self._ended = threading.Event()
        self._errors: list[BaseException] = []
        cluster.on_room = self._admit

    def __enter__(self) -> AtOnce:
        return self

    def __exit__(self, *exc: object) -> None:
        self.cluster.on_room = lambda: None
        with self.cluster.turn:
            for label in list(self._lanes):
                self._close(label)

    def stays(self, label: str) -> bool:
        """Whether the model's engines are kept for the next round of a decision."""
        return label in self._lanes

    def run(self, cells: Cells, run_model: RunModel) -> None:
        """Run all models, and the rounds of their decisions.

        Raises:
            GatedevalError: the user has to change something; the other models are stopped.
        """
        self._cells, self._run_model = cells, run_model
        self._run([label for label in self.session.plan.engines if cells.of_engine(label)])
        while cells.decide(self):
            self._run([label for label in self.session.plan.engines if cells.of_engine(label)])

    def _run(self, labels: Sequence[str]) -> None:
        self._waiting = deque(labels)
        self._ended.clear()
        try:
            if any(self._missing(label) for label in labels):
                self.cluster.engines()  # connects, in this thread: signals are handled here
            with self.cluster.turn:
                self._admit()
            while not self._ended.wait(1.0):
                pass
        except BaseException:
            self.cluster.turn.stop()
            self._join()
            raise
        self._join()
        if self._errors:
            raise self._errors[0]

    def _join(self) -> None:
        threads, self._threads = self._threads, []
        for thread in threads:
            if thread.ident is not None:  # else the signal came before it was started
                thread.join()

    def _missing(self, label: str) -> int:
        """Samples of a model without a stored answer."""
        store = self.session.store
        return sum(max(0, (store.planned(c) or 0) - self.found.get(c, 0)) for c in self._cells.of_engine(label))

    def _places(self) -> int:
        """Models that may be answered at once. A run that needs no engine asks no cluster."""
        return min(AT_ONCE, self.cluster.engines()) if self.cluster.backend is not None else 1

    def _admit(self) -> None:
        """Start the next models, where there is room; under the turn. None of them works before all have their share.

        `_ended` is set where none is left.
        """
        while self._waiting and not self._errors and len(self._active) < self._places():
            lane = self._lane(self._waiting.popleft())
            self._active.add(lane.label)
            left = functools.partial(self.session.progress.left, lane.label, self.found)
            self.cluster.admit(lane.label, left, self._usable(lane.label, left()))
            self._threads.append(threading.Thread(target=self._work, args=(lane,), name=lane.label, daemon=True))
            self._threads[-1].start()
        self.cluster.waiting = len(self._waiting)
        if not self._active:
            self._ended.set()

    def _lane(self, label: str) -> _Lane:
        if label not in self._lanes:
            resources = contextlib.ExitStack()
            prefetcher = resources.enter_context(self._prefetcher())
            session = dataclasses.replace(self.session, prefetcher=prefetcher, tally=Tally(), engine=label)
            engines = Engines(session)
            resources.enter_context(engines)
            self._lanes[label] = _Lane(label, session, engines, resources)
        return self._lanes[label]

    def _usable(self, label: str, left: float) -> int:
        """Engines that the model can use for the work that is `left`."""
        weights = self.session.progress.planned
        longest = max((weights.get(cell, 0.0) for cell in self._cells.of_engine(label)), default=0.0)
        return usable(left, longest, self._missing(label))

    def _work(self, lane: _Lane) -> None:
        """A lane's thread."""
        with self.cluster.turn:
            try:
                self._run_model(lane.session, lane.engines, lane.label)
                if self._waiting or not self._cells.deciding:
                    self._close(lane.label)
            except BaseException as error:
                self.cluster.turn.stop()
                if not isinstance(error, LaneStopped):
                    self._errors.append(error)
                with contextlib.suppress(LaneStopped):
                    self._close(lane.label)
            finally:
                self.session.tally.add(lane.session.tally)
                lane.session.tally = Tally()
                self._active.discard(lane.label)
                if self._errors or self.cluster.turn.stopping:
                    self._waiting.clear()
                self._admit()

    def _close(self, label: str) -> None:
        """Stop a model's engines, and give its processes to others."""
        if (lane := self._lanes.pop(label, None)) is not None:
            try:
                lane.resources.close()
            finally:
                self.cluster.leave(label)

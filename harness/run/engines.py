"""The engines that run at one time: the last model's, and both of a decision where the devices have room for both."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Protocol

from harness.config import ContextSetting, EngineOptions
from harness.cost.beside import options_beside
from harness.engine.requests import EngineError
from harness.run.plan import Plan
from harness.run.session import LiveEngine, RunEngine, Session


def beside(plan: Plan) -> EngineOptions | None:
    """The options with which both engines of the plan's decision run at once; None: one at a time, or no decision.

    None on a cluster, too: its engines are divided among the models (`harness.run.at_once`).
    """
    decide = plan.config.decide
    if decide is None or plan.config.cluster is not None:
        return None
    baseline, candidate = map(plan.longest_memory, (decide.baseline, decide.candidate))
    if baseline is None or candidate is None:
        return None
    return options_beside([baseline, candidate], plan.config.engine)


class Staying(Protocol):
    """Knows which models' engines stay."""

    def stays(self, label: str) -> bool:
        """Whether the model's engine is still there when the other model of a decision has answered."""


class Engines:
    """The engine that ran last stays for its model's next round; the next model's engine takes its place.

    Where `beside` says so, the two models of a decision keep theirs side by side until the run ends.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._options, decide = beside(session.plan), session.plan.config.decide
        self._pair = {decide.baseline, decide.candidate} if decide is not None and self._options is not None else set()
        self._live: dict[str, LiveEngine] = {}

    def __enter__(self) -> Engines:
        return self

    def __exit__(self, *exc: object) -> None:
        for label in list(self._live):
            self.close(label)

    def runs(self, label: str) -> bool:
        """Whether the model's engine runs."""
        return label in self._live and self._live[label].engine is not None

    def stays(self, label: str) -> bool:
        """Whether the model's engine is still there when the other model of a decision has answered."""
        return label in self._pair

    def of(self, label: str, settings: Sequence[ContextSetting]) -> LiveEngine:
        """The model's engine, which starts with its first sample, for `settings`.

        One that has died while the other model answered is replaced: it was working on nothing, so no cell fails.
        """
        if self.runs(label) and getattr(self._live[label].engine, "dead", False):
            self._session.progress.say(f"{label}: its engine has ended while it waited; starting another one")
            self.close(label)
        for other in list(self._live):
            if other != label and not {label, other} <= self._pair:
                self.close(other)
        if label not in self._live:
            self._live[label] = LiveEngine(label, settings, functools.partial(self._start, label))
        self._live[label].settings = settings
        return self._live[label]

    def close(self, label: str) -> None:
        """Stop the model's engine, if it runs."""
        if (live := self._live.pop(label, None)) is not None:
            live.close()

    def _start(self, label: str, settings: Sequence[ContextSetting]) -> RunEngine:
        if label not in self._pair:
            return self._session.start_engine(label, settings)
        try:
            return self._session.start_engine(label, settings, self._options)
        except EngineError as error:
            # What an engine takes is known only when it has started: alone and with the config's options it may.
            others = [name for name in self._live if name != label and self.runs(name)]
            if not others and self._options == self._session.plan.config.engine:
                raise
            self._session.progress.say(f"{label}: {error}; from now on only one engine runs at a time")
            self._pair = set()
            for name in others:
                self.close(name)
            return self._session.start_engine(label, settings)

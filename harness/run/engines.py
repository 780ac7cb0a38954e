"""The engines that run at one time: the last one, and those of a decision where the devices have room for all."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Protocol

from harness.benchmarks.protocol import benchmarks_of
from harness.config import ContextSetting, EngineOptions
from harness.cost.beside import options_beside
from harness.engine.requests import EngineError
from harness.run.plan import Plan
from harness.run.session import LiveEngine, RunEngine, Session


def deciding(plan: Plan) -> list[str]:
    """Names of the engines that answer what the plan's decision is about: two, or more where its benchmarks ask for
    several dtypes. Empty without a decision, and where one of its models is refused."""
    decide = plan.config.decide
    if decide is None or not {decide.baseline, decide.candidate} <= plan.models.keys():
        return []
    rules = [benchmark for benchmark in benchmarks_of(plan.config) if benchmark.sampling is not None]
    pairs = [(plan.engine_name(decide.baseline, b), plan.engine_name(decide.candidate, b)) for b in rules]
    return list(dict.fromkeys(name for pair in pairs for name in pair))


def beside(plan: Plan) -> EngineOptions | None:
    """The options with which all engines of the plan's decision run at once; None: one at a time, or no decision.

    None on a cluster, too: its engines are divided among the models (`harness.run.at_once`).
    """
    names = deciding(plan) if plan.config.cluster is None else []
    memories = [memory for memory in map(plan.longest_memory, names) if memory is not None]
    if not names or len(memories) < len(names):
        return None
    return options_beside(memories, plan.config.engine)


class Staying(Protocol):
    """Knows which engines stay."""

    def stays(self, label: str) -> bool:
        """Whether the engine is still there when the others of a decision have answered."""


class Engines:
    """The engine that ran last stays for its next round; the next one takes its place. Labels are the plan's names.

    Where `beside` says so, the engines of a decision stay side by side until the run ends.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._options = beside(session.plan)
        self._pair = set(deciding(session.plan)) if self._options is not None else set()
        self._live: dict[str, LiveEngine] = {}

    def __enter__(self) -> Engines:
        return self

    def __exit__(self, *exc: object) -> None:
        for label in list(self._live):
            self.close(label)

    def runs(self, label: str) -> bool:
        """Whether the engine runs."""
        return label in self._live and self._live[label].engine is not None

    def stays(self, label: str) -> bool:
        """Whether the engine is still there when the others of a decision have answered."""
        return label in self._pair

    def of(self, label: str, settings: Sequence[ContextSetting]) -> LiveEngine:
        """The engine, which starts with its first sample, for `settings`.

        One that has died while another one answered is replaced: it was working on nothing, so no cell fails.
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
        """Stop the engine, if it runs."""
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

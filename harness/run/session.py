"""What all parts of one session of a run share: plan, store, progress, samples, counts, and a live engine."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

from harness.config import ContextSetting, EngineOptions, Model
from harness.engine.requests import Answer, Failure, Prompt, Question
from harness.run.cost_log import CostLog
from harness.run.plan import Plan
from harness.run.prefetching import Prefetcher
from harness.run.progress import Progress
from harness.store import Store
from harness.store.arithmetic import other_arithmetic
from harness.types import Cell


class RunEngine(Protocol):
    """The part of `harness.engine.engine.Engine` that a run uses. Tests can run a plan with another class.

    `facts`: what the manifest records about the engine; `engines` among them: the entries of several engines
    (`harness.cluster.pool.Pool`). `setting`: the present context setting. One that has a method `self_check` is asked
    to check itself before the first sample of every setting.
    """

    setting: ContextSetting

    @property
    def facts(self) -> dict[str, Any]:
        """What the manifest records."""

    def can_switch_to(self, setting: ContextSetting) -> bool:
        """Whether `set_context(setting)` is possible; if not, the setting needs an engine of its own."""

    def set_context(self, setting: ContextSetting) -> None:
        """Change to another context setting."""

    def answer(self, requests: Iterable[Prompt | Question | None]) -> Iterator[Answer | Failure]:
        """Answer requests in the order in which they finish. None: the next request is not ready yet.

        A `Failure` stands for a request that no engine can answer.
        """

    def close(self) -> None:
        """Stop the engine."""


EngineFactory = Callable[[Model, Sequence[ContextSetting], EngineOptions], RunEngine]
"""Starts an engine for a model and its context settings. Raises EngineError when it cannot start."""


@dataclass
class Tally:
    """What a session did.

    `asked`: samples sent to an engine; `answered`: those whose answer was stored; `redone`: those of `answered` that
    had an answer to an older prompt; `reused`: samples whose answer was stored already; `rescored`: those of `reused`
    whose references or scores were others; `relabelled`: those that another label had answered; `failed`: keys of the
    cells that failed. `sent_tokens`: prompt tokens of the answers; `cached_tokens` of them were in the prefix cache.
    `seconds`: from the first request to the last answer, summed over the settings of all models. `probes`: those made
    in this session; `stored_probes`: those that were found finished.
    """

    asked: int = 0
    answered: int = 0
    redone: int = 0
    reused: int = 0
    rescored: int = 0
    relabelled: int = 0
    failed: list[str] = field(default_factory=list)
    sent_tokens: int = 0
    cached_tokens: int = 0
    seconds: float = 0.0
    probes: int = 0
    stored_probes: int = 0

    def add(self, other: Tally) -> None:
        """Count what another part of the session did, too."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


@dataclass
class Session:
    """One session of a run: from the moment the run directory is opened until it is closed."""

    plan: Plan
    store: Store
    progress: Progress
    prefetcher: Prefetcher
    engine_factory: EngineFactory
    costs: CostLog
    tally: Tally = field(default_factory=Tally)
    arithmetic: dict[str, str] = field(default_factory=dict)  # engine's name -> key of what it computes with
    engine_arithmetic: dict[tuple[str, str], str] = field(default_factory=dict)  # the same: (name, one of a pool's)
    engine: str | None = None  # the one that this part of the session is about; None: all of them, in turn

    def fail(self, cell: Cell, error: str) -> None:
        """Record that `cell` failed, and why, in the run, in the tally and on the screen."""
        self.store.fail(cell, error)
        self.tally.failed.append(cell.key)
        self.progress.say(f"{cell.model}, {cell.context}, {cell.task} {cell.length or ''}: failed: {error}")

    def start_engine(
        self, label: str, settings: Sequence[ContextSetting], options: EngineOptions | None = None
    ) -> RunEngine:
        """A new engine, by its name in the plan; the manifest records its facts. `options`: None: the config's."""
        since = time.monotonic()
        with self.progress.starting(label):
            engine = self.engine_factory(self.plan.engines[label].model, settings, options or self.plan.config.engine)
        self.costs.started(label, time.monotonic() - since)
        self.record_engine(label, engine.facts)
        return engine

    def record_engine(self, label: str, facts: dict[str, Any]) -> None:
        """Write facts about an engine, or a pool of them, into the manifest's entry of its model."""
        planned = self.plan.engines[label]
        if engines := facts.get("engines"):
            facts = {**facts, "engines": [self._record_one(label, entry) for entry in engines]}
            sessions = self.store.manifest["sessions"]
            sessions[-1].setdefault("engines", {})[label] = facts["engines"]
        models = dict(self.store.manifest["models"])
        entry = models[planned.label]
        if planned.owner is None:
            models[label] = {**entry, "engine": facts}
        else:
            others = {**entry.get("other_engines", {}), planned.dtype: facts}
            models[planned.label] = {**entry, "other_engines": others}
        self.store.update_manifest(models=models)
        if arithmetic := facts.get("arithmetic"):
            known, found = self.store.manifest.get("arithmetic") or {}, self._answers_of(label)
            if label not in self.arithmetic and (warning := other_arithmetic(known, found, arithmetic)):
                self.progress.say(f"{label}: {warning}")
            self.arithmetic[label] = self.store.record_arithmetic(arithmetic)

    def _answers_of(self, label: str) -> Counter[str]:
        """How many stored answers of an engine's cells each arithmetic computed."""
        return self.store.arithmetic([cell for cell in self.store.cells if self.plan.engine(cell) == label])

    def _record_one(self, label: str, entry: dict[str, Any]) -> dict[str, Any]:
        """The entry of one of several engines, with the key of its arithmetic in place of the arithmetic."""
        key = self.store.record_arithmetic(entry["arithmetic"]) if entry["arithmetic"] else ""
        self.engine_arithmetic[label, entry["name"]] = key
        return {**entry, "arithmetic": key}

    def record_pool(self, live: LiveEngine) -> None:
        """Write what each of several engines did into the manifest, also where the run is interrupted."""
        if live.engine is not None and live.engine.facts.get("engines"):
            self.record_engine(live.label, live.engine.facts)

    def arithmetic_of(self, label: str, answer: Answer, engine: RunEngine) -> str:
        """The key of what computed `answer`; of an engine that has joined `engine` since, the manifest records it."""
        if not answer.engine:
            return self.arithmetic.get(label, "")
        if (label, answer.engine) not in self.engine_arithmetic:
            self.record_engine(label, engine.facts)
        return self.engine_arithmetic[label, answer.engine]


class LiveEngine:
    """One engine of the plan. It starts when the first sample needs it, so a finished run starts none.

    `label`: its name. `settings`: all context settings that the engine will be used under. `start`: starts an engine
    for some of them.
    """

    def __init__(
        self, label: str, settings: Sequence[ContextSetting], start: Callable[[Sequence[ContextSetting]], RunEngine]
    ) -> None:
        self.label, self.settings, self._start = label, settings, start
        self.engine: RunEngine | None = None

    def __enter__(self) -> LiveEngine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the engine, if it runs."""
        if self.engine is not None:
            self.engine.close()

    def under(self, setting: ContextSetting) -> RunEngine:
        """The running engine under `setting`; another one is started if the present one cannot be switched to it.

        Raises:
            EngineError: no engine could start; `engine` is then None. Or the setting could not be applied, or the
                engine's logits under it cannot be right (`SelfCheckError`).
        """
        if self.engine is None:
            self.engine = self._start(self.settings)
        if not self.engine.can_switch_to(setting):
            engine, self.engine = self.engine, None
            engine.close()
            self.engine = self._start([setting])
        if self.engine.setting != setting:
            self.engine.set_context(setting)
        if check := getattr(self.engine, "self_check", None):  # a stand-in of a test has no logits to look at
            check()
        return self.engine

"""Run a config's probes: each model, context setting and length on one text, stored in the run directory.

A probe whose content hash is stored already is not made again. The engine is the one that answers the model's samples,
where that one is eager; else one of the probe's own, because compiled code does not call the hooks that measure.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from harness.cluster.pool import Pool
from harness.config import ContextSetting
from harness.config.probing import ProbeOptions
from harness.engine.engine import Engine
from harness.engine.probing import probe
from harness.engine.requests import EngineError
from harness.probe.plan import ProbePlan
from harness.probe.results import ProbeResult
from harness.run.ahead import Ahead, fit_side_by_side
from harness.run.plan import Plan
from harness.run.probe_plan import PlannedProbe
from harness.run.progress import own_stderr
from harness.run.session import EngineFactory, LiveEngine, RunEngine
from harness.store.probes import Probes
from harness.text import counted


class Probing:
    """The probes of a run, made model by model: in the run's live engine where that can measure, else in one of their
    own.

    `path`: the run directory, whose lock the caller holds. `say`: prints a line of progress. `warn`: prints a failure.
    `engine_factory`: starts an engine of a probe's own; None: `Engine`, in this process.
    After a probe that fails, the other models' go on.
    """

    def __init__(
        self,
        plan: Plan,
        options: ProbeOptions,
        probes: Sequence[PlannedProbe],
        path: Path,
        *,
        say: Callable[[str], None] = lambda line: None,
        warn: Callable[[str], None] | None = None,
        engine_factory: EngineFactory | None = None,
    ) -> None:
        self.plan, self.options, self.probes = plan, options, tuple(probes)
        self.say, self.warn = say, warn or _to_stderr
        self.failed: set[str] = set()  # labels of models
        self.made = 0
        self._alone_here = engine_factory is None  # engines of a cluster start elsewhere
        self._factory: EngineFactory = engine_factory or functools.partial(
            Engine, log=path / "engine.log", core_here=True
        )
        self._store = Probes(path)
        stored = self._store.hashes()
        self._pending = [p for p in self.probes if p.hash not in stored]
        self.found = len(self.probes) - len(self._pending)

    def pending(self, label: str) -> list[PlannedProbe]:
        """The model's probes that are not stored and have not failed."""
        return [] if label in self.failed else [p for p in self._pending if p.model == label]

    def in_live_engine(self, live: LiveEngine) -> None:
        """Make the model's probes in the engine that has answered its samples.

        Nothing happens where that engine is gone, is compiled, or was started for shorter contexts than the probes
        have: `rest` makes these probes in another engine.
        """
        mine, engine = self.pending(live.label), live.engine
        if not mine or engine is None or not _is_eager(engine):
            return
        if all(p.setting in live.settings and engine.can_switch_to(p.setting) for p in mine):
            self._make(live, mine)

    def rest(self) -> bool:
        """Make the probes that are left, with an engine for each model; whether all of the run's are stored now.

        Raises:
            GatedevalError: the run directory cannot be written.
        """
        with Ahead(self._start) as ahead:
            for label in dict.fromkeys(p.model for p in self._pending):
                if mine := self.pending(label):
                    with LiveEngine(label, _settings(mine), functools.partial(self._next, ahead, label)) as live:
                        self._make(live, mine)
        return not self.failed

    def _next(self, ahead: Ahead, label: str, settings: Sequence[ContextSetting]) -> RunEngine:
        """The model's engine; where there is room for two, the start of the following model's engine begins."""
        engine = ahead.take(label, settings)
        labels = list(dict.fromkeys(p.model for p in self._pending))
        after = labels[labels.index(label) + 1 :]
        if after and self._alone_here and fit_side_by_side(self.plan, label, after[0]):
            ahead.begin(after[0], _settings(self.pending(after[0])))
        return engine

    def _start(self, label: str, settings: Sequence[ContextSetting]) -> RunEngine:
        self.say(f"{label}: starting vLLM for the probe")
        options = self.plan.config.engine.model_copy(update={"enforce_eager": True})
        return self._factory(self.plan.models[label].model, settings, options)

    def _make(self, live: LiveEngine, probes: Sequence[PlannedProbe]) -> None:
        """Make `probes`, all of one model, setting by setting. An engine's error ends them, and is told."""
        try:
            for setting in _settings(probes):
                engine = live.under(setting)
                for planned in (p for p in probes if p.setting == setting):
                    maps = _probe(engine, planned.maps) if planned.maps else None
                    result = _probe(engine, planned.plan)
                    self._store.add(*_stored(self.plan, self.options, planned, result, maps))
                    self._pending.remove(planned)
                    self.made += 1
                    self.say(_line(planned, result))
        except EngineError as error:
            self.failed.add(live.label)
            self.warn(f"probe of {live.label} failed: {error}")


def _settings(probes: Sequence[PlannedProbe]) -> list[ContextSetting]:
    """The probes' context settings, in order."""
    return list(dict.fromkeys(p.setting for p in probes))


def _is_eager(engine: RunEngine) -> bool:
    """Whether `engine` can be probed; a stand-in of a test cannot."""
    if isinstance(engine, Pool):
        return engine.eager
    return isinstance(engine, Engine) and bool(engine.arguments["enforce_eager"])


def _probe(engine: RunEngine, plan: ProbePlan) -> ProbeResult:
    """Measure one text: in this process's engine, or in one of a cluster's."""
    if isinstance(engine, Pool):
        return engine.probe(plan)
    assert isinstance(engine, Engine)
    return probe(engine, plan)


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@contextlib.contextmanager
def _terminal() -> Iterator[Callable[[str], None]]:
    """Prints lines on this process's standard error, also while an engine that starts has it lead to its log."""
    stream = own_stderr()
    try:
        yield lambda line: print(line, file=stream, flush=True)
    finally:
        if stream is not sys.stderr:
            stream.close()


def run_probes(
    plan: Plan, options: ProbeOptions, probes: Sequence[PlannedProbe], path: Path, *, quiet: bool = False
) -> bool:
    """Make those of `probes` that are not stored yet, and say on stderr how it goes; whether all are stored now.

    The caller holds the run's lock. `quiet`: print failures only.

    Raises:
        GatedevalError: the run directory cannot be written.
    """
    with _terminal() as tell:
        probing = Probing(plan, options, probes, path, say=(lambda line: None) if quiet else tell, warn=tell)
        whole = probing.rest()
        probing.say(f"{path}: {counted(probing.made, 'probe')} made, {probing.found} found finished")
    return whole


def _line(planned: PlannedProbe, result: ProbeResult) -> str:
    gate = f", gate {result.gate_mean.mean():.3f}" if len(result.gate_mean) else ""
    return (
        f"{planned.model}, {planned.setting.label}, {result.length} tokens: F-Attn {result.first.mean:.3f},"
        f" M-Act {result.activations.mean():,.0f}{gate}"
    )


def _stored(
    plan: Plan, options: ProbeOptions, planned: PlannedProbe, result: ProbeResult, maps: ProbeResult | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The record and the arrays of one probe."""
    gated = len(result.gate_mean) > 0
    record = {
        "model": planned.model,
        "context": planned.setting.label,
        "length": planned.length,
        "tokens": result.length,
        "hash": planned.hash,
        "text": options.text,
        "first_query": options.first_query,
        "rows": result.rows,
        "exact": result.exact,
        "gate": str(plan.models[planned.model].checkpoint.gate),
        "first_token_attention": result.first.mean,
        "first_token_attention_error": result.first.error,
        "sink_rate": result.sink_rate,
        "largest_activation": float(result.activations.mean()),
        "largest_activation_of_all": float(result.activations.max()),
        "gate_mean": float(result.gate_mean.mean()) if gated else None,
        "gate_low": float(result.gate_low.mean()) if gated else None,
        "small_before": [float(x) for x in result.small_before.mean(axis=0)],
        "small_after": [float(x) for x in result.small_after.mean(axis=0)] if gated else None,
        "small_scaled": [float(x) for x in result.small_scaled.mean(axis=0)] if gated else None,
        "entropy": result.entropy.mean,
        "entropy_error": result.entropy.error,
        "distance": result.distance.mean,
        "distance_error": result.distance.error,
        "perplexity": result.perplexity if len(result.losses) else None,
        "perplexity_by_position": [list(b) for b in result.perplexity_by_position()] if len(result.losses) else [],
    }
    arrays = {
        "first": result.first.head,
        "first_error": result.first.head_error,
        "first_layer": result.first.layer,
        "first_layer_error": result.first.layer_error,
        "entropy": result.entropy.head,
        "distance": result.distance.head,
        "hidden": result.hidden,
        "final": result.final,
        "gate_mean": result.gate_mean,
        "gate_low": result.gate_low,
        "gate_histogram": result.gate_histogram,
        "small_before": result.small_before,
        "small_after": result.small_after,
        "small_scaled": result.small_scaled,
        "losses": result.losses.astype(np.float32),
    }
    for (layer, head), weights in (maps.maps if maps else {}).items():
        arrays[f"map_{layer}_{head}"] = weights.astype(np.float32)
    return record, arrays

"""Runs a plan: each model's engine is started once, each context setting is run in it, each answer is stored.

A process of its own produces the samples (`prefetching`). An answer is stored as soon as it is finished. A sample whose
content hash has an answer in the run is not sent again. A cell that fails is recorded with its error; the others go on.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path

from harness.config import ContextSetting
from harness.engine.engine import Engine
from harness.run.manifest import manifest
from harness.run.plan import Plan, recorded_date
from harness.run.prefetching import Prefetcher
from harness.run.producing import Assignment
from harness.run.progress import Progress
from harness.run.session import EngineFactory, LiveEngine, Session, Tally
from harness.run.setting import Ending, SettingEnd, SettingRun
from harness.store import Store
from harness.types import Cell

_DEATHS = 2


def run(
    plan: Plan, path: Path, *, progress: Progress | None = None, engine_factory: EngineFactory | None = None
) -> tuple[str, Tally]:
    """Run `plan` into the run directory `path`, or resume the run that is there. Returns its state and a tally.

    `engine_factory`: what starts an engine; a test can pass a class that answers without vLLM (see `RunEngine`). None:
    `Engine`, whose processes write to `engine.log` in the run directory.

    Raises:
        GatedevalError: the plan is refused, or the run directory cannot be used.
    """
    plan.check()
    plan.date = recorded_date(path) or plan.date
    progress = progress or Progress(plan)
    engine_factory = engine_factory or functools.partial(Engine, log=path / "engine.log")
    with Store.open(path, manifest(plan), cells=dict(plan.cells)) as store, progress, Prefetcher(plan) as prefetcher:
        session = Session(plan, store, progress, prefetcher, engine_factory)
        progress.found(store.finished()[0])
        cells = _CellsLeft(session)
        for label in plan.models:
            _run_model(session, cells, label)
        state = store.finish()
    return state, session.tally


class _CellsLeft:
    """The cells that the session still has to run, by model and context setting, in the order of the plan."""

    def __init__(self, session: Session) -> None:
        self._session, plan = session, session.plan
        self._cells = {(m, s.label): tuple(plan.of(m, s.label)) for m in plan.models for s in plan.config.contexts}
        self._assignments: dict[tuple[str, str], Assignment] = {}

    def settings(self, model: str) -> list[ContextSetting]:
        """The context settings under which the model has cells left."""
        return [s for s in self._session.plan.config.contexts if self._cells[model, s.label]]

    def of_model(self, model: str) -> list[Cell]:
        """The model's cells that are left."""
        return [cell for setting in self.settings(model) for cell in self._cells[model, setting.label]]

    def assignment(self, model: str, setting: str) -> Assignment:
        """The cells of one model and setting, longest prompts first, with the files that may hold their answers."""
        if (model, setting) not in self._assignments:
            cells = tuple(sorted(self._cells[model, setting], key=lambda cell: -cell.length))
            store = self._session.store
            fingerprint = store.manifest["models"][model]["fingerprint"]
            decoding = store.manifest["decoding"][fingerprint]
            files = {cell: (store.samples_path(cell), *store.earlier_files_like(cell)) for cell in cells}
            self._assignments[model, setting] = Assignment(model, setting, cells, fingerprint, files, decoding)
        return self._assignments[model, setting]

    def replace(self, model: str, setting: str, cells: Sequence[Cell]) -> None:
        """Only `cells` are left of this model and setting."""
        self._cells[model, setting] = tuple(cells)
        self._assignments.pop((model, setting), None)

    def prefetch_after(self, model: str, setting: str) -> None:
        """Start to produce the samples of the next model and setting that has cells left."""
        keys = list(self._cells)
        following = keys[keys.index((model, setting)) + 1 :]
        if key := next((k for k in following if self._cells[k]), None):
            self._session.prefetcher.prefetch(self.assignment(*key))


def _run_model(session: Session, cells: _CellsLeft, label: str) -> None:
    """Run all cells of one model. After an engine's death, a new engine runs the cells that are left.

    After `_DEATHS` engines in a row that died without an answer, the cells that are left fail: others would die too.
    """
    before = dataclasses.replace(session.tally)
    deaths, answered = 0, session.tally.sent_tokens
    while settings := cells.settings(label):
        with LiveEngine(label, settings, functools.partial(session.start_engine, label)) as engine:
            try:
                end = _run_settings(session, cells, engine)
            finally:
                session.record_pool(engine)
            if end.ending is Ending.DONE:
                _record_work(session, engine, before)
        if end.ending is Ending.ENGINE_LOST:
            deaths = deaths + 1 if session.tally.sent_tokens == answered else 0
            answered = session.tally.sent_tokens
            if deaths < _DEATHS and cells.of_model(label):
                session.progress.say(f"{label}: {end.error}; going on with the other cells")
        if end.ending is Ending.ENGINE_CANNOT_START or deaths == _DEATHS:
            for cell in cells.of_model(label):
                session.fail(cell, end.error)
            return


def _run_settings(session: Session, cells: _CellsLeft, engine: LiveEngine) -> SettingEnd:
    """Run the engine's settings one after the other, until the engine is lost; how the last one ended."""
    end = SettingEnd(ending=Ending.DONE)
    for setting in engine.settings:
        key = (engine.label, setting.label)
        prefetch_next = functools.partial(cells.prefetch_after, *key)
        end = SettingRun(session, engine, setting, cells.assignment(*key), prefetch_next).run()
        cells.replace(*key, end.left)
        if end.ending is not Ending.DONE:
            break
    return end


def _record_work(session: Session, live: LiveEngine, before: Tally) -> None:
    """Record what the model's engine did in this session: prompt tokens, cached ones, seconds of answering."""
    tally = session.tally
    sent, cached = tally.sent_tokens - before.sent_tokens, tally.cached_tokens - before.cached_tokens
    if not sent or live.engine is None:
        return
    facts = {"prompt_tokens": sent, "cached_tokens": cached, "answer_seconds": round(tally.seconds - before.seconds, 3)}
    session.record_engine(live.label, {**live.engine.facts, **facts})

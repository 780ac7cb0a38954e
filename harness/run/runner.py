"""Runs a plan: each of its engines is started once, each context setting is run in it, each answer is stored.

A process of its own produces the samples (`prefetching`). An answer is stored as soon as it is finished. A sample whose
content hash has an answer in the run is not sent again. A cell that fails is recorded with its error; the others go on.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from harness.cluster.connection import Cluster
from harness.config import ContextSetting
from harness.engine.engine import Engine
from harness.run.at_once import AtOnce
from harness.run.cost_log import CostLog
from harness.run.costs import Costs, results_of
from harness.run.engines import Engines, Staying
from harness.run.manifest import manifest
from harness.run.pacing import Pace
from harness.run.plan import Plan, recorded_date
from harness.run.prefetching import Prefetcher
from harness.run.probe_plan import PlannedProbe, recorded
from harness.run.probing import Probing
from harness.run.producing import Assignment
from harness.run.progress import Progress
from harness.run.rounds import RoundsPlan
from harness.run.session import EngineFactory, LiveEngine, Session, Tally
from harness.run.setting import Ending, SettingEnd, SettingRun
from harness.store import Store
from harness.store.rounds import recorded_rounds
from harness.types import Cell

_DEATHS = 2


def run(
    plan: Plan,
    path: Path,
    *,
    progress: Progress | None = None,
    engine_factory: EngineFactory | None = None,
    probes: Sequence[PlannedProbe] | None = None,
    costs: Costs | None = None,
    cluster: Cluster | None = None,
) -> tuple[str, Tally]:
    """Run `plan` into the run directory `path`, or resume the run that is there. Returns its state and a tally.

    `probes`: those that `plan_probes` planned; None: the plan has no section `probe`. A model's probes follow its
    samples. A probe that fails makes the run incomplete.

    `costs`: what the plan is predicted to take; None: from what the results folder tells.

    `cluster`: whose engines answer, for several models at once (`harness.run.at_once`); it starts the engines.

    `engine_factory`: what starts an engine; a test can pass a class that answers without vLLM (see `RunEngine`). None:
    `Engine`, whose processes write to `engine.log` in the run directory.

    Raises:
        GatedevalError: the plan is refused, or the run directory cannot be used.
    """
    plan.check()
    plan.date = recorded_date(path) or plan.date
    costs = costs or Costs(plan, results_of(path, plan))
    progress = progress or Progress(plan, costs=costs)
    start = cluster.start if cluster is not None else functools.partial(Engine, log=path / "engine.log")
    engine_factory = engine_factory or start
    rounds = RoundsPlan(plan, recorded_rounds(path))
    facts = manifest(plan)
    if probes is not None:
        facts["probes"] = recorded(probes)
    if rounds.entries:
        facts["rounds"] = [entry.to_dict() for entry in rounds.entries]
    counts = {**plan.cells, **rounds.counts}
    with Store.open(path, facts, cells=counts) as store, progress, Prefetcher(plan) as prefetcher:
        session = Session(plan, store, progress, prefetcher, engine_factory, CostLog(costs))
        progress.replan(rounds.counts)
        finished = {cell: min(n, len(store.done(cell))) for cell, n in counts.items()}
        progress.found(sum(finished.values()))
        progress.predicted(session.costs.begin({cell: n - finished[cell] for cell, n in counts.items()}))
        earlier = store.manifest.get("cost")
        cells = _CellsLeft(session, rounds)
        probing = None
        if probes is not None and plan.config.probe is not None:
            one = cluster.start_one if cluster is not None else None
            probing = Probing(
                plan, plan.config.probe, probes, path, say=progress.say, warn=progress.warn, engine_factory=one
            )
        if cluster is not None:
            waiting = functools.partial(Prefetcher, plan, waiting=cluster.turn.released)
            with AtOnce(session, cluster, finished, waiting) as at_once:
                at_once.run(cells, lambda part, engines, label: _run_model(part, cells, engines, label, probing))
            store.update_manifest(cost=session.costs.record(earlier))
        else:
            with Engines(session) as engines:
                # Engines of a decision that stay side by side start last: another model's would take their place.
                for label in sorted(plan.engines, key=engines.stays):
                    _run_model(session, cells, engines, label, probing)
                    store.update_manifest(cost=session.costs.record(earlier))
                while cells.decide(engines):
                    # An engine that runs goes first.
                    for label in sorted(plan.engines, key=lambda name: not engines.runs(name)):
                        _run_model(session, cells, engines, label, probing)
                        store.update_manifest(cost=session.costs.record(earlier))
        if probing is not None:
            probing.rest()
            session.tally.probes, session.tally.stored_probes = probing.made, probing.found
        state = store.finish()
    return state, session.tally


class _CellsLeft:
    """The cells that the session still has to run, by engine and context setting, in the order of the plan."""

    def __init__(self, session: Session, rounds: RoundsPlan) -> None:
        self._session, plan = session, session.plan
        self._rounds = rounds
        self._plan = plan
        self._cells = {(e, s.label): tuple(plan.of(e, s.label)) for e in plan.engines for s in plan.config.contexts}
        self._assignments: dict[tuple[str, str], Assignment] = {}

    def settings(self, engine: str) -> list[ContextSetting]:
        """The context settings under which the engine has cells left."""
        return [s for s in self._plan.config.contexts if self._cells[engine, s.label]]

    def of_engine(self, engine: str) -> list[Cell]:
        """The engine's cells that are left."""
        return [cell for setting in self.settings(engine) for cell in self._cells[engine, setting.label]]

    def assignment(self, engine: str, setting: str) -> Assignment:
        """The cells of one engine and setting, longest prompts first, with the files that may hold their answers."""
        if (engine, setting) not in self._assignments:
            cells = tuple(sorted(self._cells[engine, setting], key=lambda cell: -cell.length))
            store = self._session.store
            fingerprint = store.manifest["models"][self._plan.engines[engine].label]["fingerprint"]
            decoding = store.manifest["decoding"][fingerprint]
            files = {cell: (store.samples_path(cell), *store.earlier_files_like(cell)) for cell in cells}
            self._assignments[engine, setting] = Assignment(
                engine, setting, cells, fingerprint, files, decoding, self._rounds.parts(cells)
            )
        return self._assignments[engine, setting]

    def replace(self, engine: str, setting: str, cells: Sequence[Cell]) -> None:
        """Only `cells` are left of this engine and setting."""
        self._cells[engine, setting] = tuple(cells)
        self._assignments.pop((engine, setting), None)

    def next_round(self, engine: str, setting: str) -> bool:
        """Plan the next round of the setting's precisions; whether there is one. Its cells are then left."""
        growing, lines = self._rounds.advance(self._session.store, "precision", engine, setting)
        self._planned(growing, lines)
        return bool(growing)

    def decide(self, engines: Staying) -> bool:
        """Plan the next round of every open decision; whether there is one.

        Where its models' engines take turns, it is long beside the time that engines take to start.
        """
        pace = Pace(self._session.store.manifest.get("cost"), self._plan.engine)

        def long_enough(more: Mapping[Cell, int]) -> bool:
            return pace.is_long(more, self._starts(more, engines))

        growing, lines = self._rounds.advance(self._session.store, "decide", long_enough=long_enough)
        self._planned(growing, lines)
        return bool(growing)

    @property
    def deciding(self) -> bool:
        """Whether a decision between two models is open, so that both may have further rounds."""
        return self._rounds.deciding

    def _starts(self, cells: Iterable[Cell], engines: Staying) -> dict[str, int]:
        """Starts of each engine that a round of these cells needs, in a run that is not interrupted.

        Of engines that take turns, the one that answered last needs one start less.
        """
        settings: dict[str, set[str]] = {}
        for cell in cells:
            settings.setdefault(self._plan.engine(cell), set()).add(cell.context)
        costs, last = self._session.costs.costs, next(reversed(settings), None)
        return {
            label: costs.engines(label, len(under)) - (engines.stays(label) or label == last)
            for label, under in settings.items()
        }

    def waiting(self, cells: Sequence[Cell], left: Sequence[Cell]) -> list[Cell]:
        """Of a setting whose engine was lost: the cells beside `left` whose rounds may go on."""
        failures = self._session.store.failures
        return [c for c in cells if c not in left and c.key not in failures and self._rounds.goes_on(c)]

    def _planned(self, growing: Sequence[Cell], lines: Sequence[str]) -> None:
        for line in lines:
            self._session.progress.say(line)
        if lines:
            self._session.progress.replan(self._rounds.counts)
        of_key: dict[tuple[str, str], list[Cell]] = {}
        for cell in growing:
            of_key.setdefault((self._plan.engine(cell), cell.context), []).append(cell)
        for (engine, setting), cells in of_key.items():
            self.replace(engine, setting, cells)

    def prefetch_after(self, session: Session, engine: str, setting: str) -> None:
        """Start to produce the samples of the next engine and setting of `session` that has cells left.

        Not while rounds of this one may follow: their samples go on where the present ones end.
        """
        if any(map(self._rounds.goes_on, self._cells[engine, setting])):
            return
        keys = list(self._cells)
        following = keys[keys.index((engine, setting)) + 1 :]
        mine = (k for k in following if self._cells[k] and session.engine in (None, k[0]))
        if key := next(mine, None):
            session.prefetcher.prefetch(self.assignment(*key))


def _run_model(session: Session, cells: _CellsLeft, engines: Engines, label: str, probing: Probing | None) -> None:
    """Run all cells of one engine, then its probes. After an engine's death, a new engine runs the cells that are left.

    After `_DEATHS` engines in a row that died without an answer, the cells that are left fail: others would die too.
    """
    before = dataclasses.replace(session.tally)
    deaths, answered = 0, session.tally.sent_tokens
    while settings := cells.settings(label):
        engine = engines.of(label, settings)
        try:
            end = _run_settings(session, cells, engine)
        finally:
            session.record_pool(engine)
        if end.ending is Ending.DONE:
            _record_work(session, engine, before)
            if probing is not None:
                probing.in_live_engine(engine)
            continue
        engines.close(label)
        if end.ending is Ending.ENGINE_LOST:
            deaths = deaths + 1 if session.tally.sent_tokens == answered else 0
            answered = session.tally.sent_tokens
            if deaths < _DEATHS and cells.of_engine(label):
                session.progress.say(f"{label}: {end.error}; going on with the other cells")
        if end.ending is Ending.ENGINE_CANNOT_START or deaths == _DEATHS:
            for cell in cells.of_engine(label):
                session.fail(cell, end.error)
                cells.replace(label, cell.context, ())
            return


def _run_settings(session: Session, cells: _CellsLeft, engine: LiveEngine) -> SettingEnd:
    """Run the engine's settings one after the other, until the engine is lost; how the last one ended.

    A setting's precisions are reached round by round before the next setting begins.
    """
    end = SettingEnd(ending=Ending.DONE)
    for setting in engine.settings:
        key = (engine.label, setting.label)
        going = True
        while going:
            prefetch_next = functools.partial(cells.prefetch_after, session, *key)
            assignment = cells.assignment(*key)
            end = SettingRun(session, engine, setting, assignment, prefetch_next).run()
            if end.ending is not Ending.DONE:
                cells.replace(*key, [*end.left, *cells.waiting(assignment.cells, end.left)])
                return end
            cells.replace(*key, ())
            going = cells.next_round(*key)
    return end


def _record_work(session: Session, live: LiveEngine, before: Tally) -> None:
    """Record what the engine did in this session: prompt tokens, cached ones, seconds of answering."""
    tally = session.tally
    sent, cached = tally.sent_tokens - before.sent_tokens, tally.cached_tokens - before.cached_tokens
    if not sent or live.engine is None:
        return
    facts = {"prompt_tokens": sent, "cached_tokens": cached, "answer_seconds": round(tally.seconds - before.seconds, 3)}
    session.record_engine(live.label, {**live.engine.facts, **facts})

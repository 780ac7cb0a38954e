"""A config -> the cells of its run in order, and every error that can be found before a model is loaded.

What a plan refuses would otherwise fail after hours, or give a wrong number: a checkpoint whose flags contradict its
weights, missing data, a length too small for a task, a prompt that does not fit.
"""

from __future__ import annotations

import datetime
import functools
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from harness.benchmarks.protocol import Benchmark, Measured, Setup, benchmarks_of
from harness.config import Config, ContextSetting, Model
from harness.cost.devices import Devices, here
from harness.cost.memory import Memory, memory_of, refusals
from harness.data import network
from harness.data.folder import DataFolder
from harness.engine.load import Load
from harness.engine.precision import gpu_is_used, unavailable
from harness.models.admission import admit
from harness.models.checkpoint import Checkpoint
from harness.models.hub import tokenizer_sha256
from harness.models.thinking import Thinking
from harness.models.tokenizer import Tokenizer
from harness.store.manifest import MANIFEST, read_manifest
from harness.types import Cell, GatedevalError


@dataclass(frozen=True)
class PlannedModel:
    """A model that passed inspection, with the longest prompt plus answer that each context setting gives it."""

    model: Model
    checkpoint: Checkpoint
    tokenizer_dir: Path
    max_lengths: dict[str, int]  # context label -> tokens


@dataclass
class Plan:
    """The cells of a run in the config's order, their sizes, and why parts of the config cannot be run."""

    config: Config
    data: DataFolder
    models: dict[str, PlannedModel] = field(default_factory=dict)
    cells: dict[Cell, int] = field(default_factory=dict)  # -> samples
    tokens: dict[Cell, int] = field(
        default_factory=dict
    )  # -> prompt tokens: counted; of cells with a length, an upper bound
    loads: dict[Cell, Load] = field(default_factory=dict)  # -> what its samples ask of an engine
    memory: dict[tuple[str, str], Memory] = field(default_factory=dict)  # (model, setting) -> what it takes
    devices: Devices | None = None  # where it will run; None: not known
    budget: dict[str, Any] | None = None  # what run.json records about `--budget`
    refusals: list[str] = field(default_factory=list)
    date: datetime.date = field(default_factory=datetime.date.today)  # for chat templates that print today's date

    def longest_memory(self, model: str) -> Memory | None:
        """What a model's engine takes under its longest setting, with which it starts; None where it is not known."""
        of_model = (memory for (label, _), memory in self.memory.items() if label == model)
        return max(of_model, key=lambda memory: memory.max_length, default=None)

    def benchmark(self, cell: Cell) -> Benchmark:
        """The benchmark that a cell belongs to."""
        for benchmark in benchmarks_of(self.config):
            if benchmark.owns(cell):
                return benchmark
        raise KeyError(cell)

    def of(self, model: str, setting: str) -> list[Cell]:
        """The cells of one model under one context setting, in order."""
        return [c for c in self.cells if c.model == model and c.context == setting]

    def setup(self, model: str) -> Setup:
        """What the samples of a model are made from, besides their cell."""
        config, directory = self.config, self.models[model].tokenizer_dir
        tokenizer = _tokenizer(directory, tokenizer_sha256(directory))
        opening, closing = config.thinking_tags
        thinking = Thinking(config.thinking, config.thinking_tokens, (opening, closing))
        return Setup(tokenizer, self.data, config.seed, config.chat_template, thinking, self.date)

    def check(self) -> None:
        """Raise one GatedevalError that lists every refusal: a single one in the same line, more below each other."""
        if len(self.refusals) == 1:
            raise GatedevalError(f"the plan cannot be run: {self.refusals[0]}")
        if self.refusals:
            raise GatedevalError("\n".join(["the plan cannot be run:", *(f"  - {r}" for r in self.refusals)]))


@functools.lru_cache(maxsize=4)
def _tokenizer(directory: Path, sha256: str) -> Tokenizer:
    """The tokenizer of a directory, loaded once as long as its files are the same."""
    return Tokenizer(directory)


def recorded_date(path: Path) -> datetime.date | None:
    """The date that the prompts of the run at `path` were made with; None where there is no such run.

    A run of an older version has recorded its start, and made its prompts on that day.
    """
    if not (path / MANIFEST).is_file():
        return None
    manifest = read_manifest(path)
    try:
        return datetime.date.fromisoformat(str(manifest.get("date") or manifest["start"])[:10])
    except (KeyError, ValueError):
        return None


def build(config: Config, date: datetime.date | None = None, devices: Devices | None = None) -> Plan:
    """Inspect models and data, list the cells, measure their prompts. Errors are collected in `Plan.refusals`.

    `date`: what a chat template that prints today's date is given (see `recorded_date`); None: today. `devices`: where
    the run will be made; None: here.
    """
    plan = Plan(config, DataFolder(config.data), date=date or datetime.date.today())
    plan.refusals += unavailable(config.engine, on_gpu=gpu_is_used())
    plan.devices = devices or here(gpu=gpu_is_used())
    for model in config.models:
        try:
            plan.models[model.label] = _model(model, config.contexts_of(model))
        except GatedevalError as error:
            plan.refusals.append(str(error))
    for planned in plan.models.values():
        _check_memory(plan, planned)
    benchmarks = benchmarks_of(config)
    plan.refusals += plan.data.missing([name for b in benchmarks for name in b.data_names()])
    usable = [b for b in benchmarks if all(plan.data.locate(name) for name in b.data_names())]
    measured: dict[tuple[str, int, str, str, int], Measured] = {}
    for planned in plan.models.values():
        for setting in config.contexts_of(planned.model):
            for benchmark in usable:
                try:
                    _lay_out(plan, planned, setting, benchmark, measured)
                except GatedevalError as error:
                    plan.refusals.append(str(error))
    if not plan.refusals:
        plan.refusals += _undecidable(plan)
    if any(network.OUT_OF_REACH in refusal for refusal in plan.refusals):
        plan.refusals += network.errors()
    plan.refusals = list(dict.fromkeys(plan.refusals))
    return plan


def _model(model: Model, contexts: tuple[ContextSetting, ...]) -> PlannedModel:
    admitted = admit(model)
    checkpoint = admitted.checkpoint
    lengths = {}
    for setting in contexts:
        try:
            lengths[setting.label] = checkpoint.overrides_under(setting).max_model_len
        except GatedevalError as error:
            raise GatedevalError(f"model {model.label!r}: {error}") from error
    return PlannedModel(model, checkpoint, admitted.tokenizer_dir, lengths)


def _check_memory(plan: Plan, planned: PlannedModel) -> None:
    """Note what a model takes under each of its settings, and refuse what cannot fit."""
    if plan.devices is None:
        return
    options, label = plan.config.engine, planned.model.label
    heads = planned.checkpoint.config.get("num_attention_heads")
    for setting, length in planned.max_lengths.items():
        memory = memory_of(planned.model, planned.checkpoint, options, plan.devices, length)
        plan.memory[label, setting] = memory
        plan.refusals += refusals(memory, options, label, setting, heads if isinstance(heads, int) else None)


def _lay_out(
    plan: Plan,
    planned: PlannedModel,
    setting: ContextSetting,
    benchmark: Benchmark,
    measured: dict[tuple[str, int, str, str, int], Measured],
) -> None:
    """Add the cells of one model, setting and benchmark; refuse those whose prompts do not fit or cannot be made.

    `measured`: the sizes of prompts by what they depend on, so that models that share a tokenizer share the work.
    """
    if benchmark.contexts is not None and setting.label not in benchmark.contexts:
        return
    label, limit = planned.model.label, planned.max_lengths[setting.label]
    tokenizer = tokenizer_sha256(planned.tokenizer_dir)
    for cell in benchmark.cells(label, setting.label, limit):
        samples = benchmark.count(cell.task, plan.data)
        # Most prompts are the same under every context setting.
        depends = benchmark.depends_on_limit(cell, plan.data)
        key = (tokenizer, limit if depends else 0, benchmark.name, cell.task, cell.length)
        if key not in measured:
            measured[key] = benchmark.measure(cell, plan.setup(label), limit)
            if refusal := measured[key].refusal:
                plan.refusals.append(refusal)
        plan.cells[cell] = samples
        plan.tokens[cell], longest = measured[key].prompt_tokens, measured[key].longest
        plan.loads[cell] = _load(plan, cell, measured[key])
        if longest > limit:
            plan.refusals.append(
                f"{cell.benchmark} {cell.task}: its longest prompt and answer are {longest} tokens,"
                f" {longest - limit} over the {limit} of context {setting.label!r} with model {label!r}; raise"
                " max_length, use fewer shots, or leave it out of this context (`contexts:` in its entry)"
            )


def _undecidable(plan: Plan) -> list[str]:
    """Why `decide` can decide nothing, or leaves samples without an end: numbers that only one of its models has."""
    decide = plan.config.decide
    if decide is None:
        return []
    two = (decide.baseline, decide.candidate)
    cells = {c: plan.benchmark(c).sampling for c in plan.cells if c.model in two}
    ruled = {c: rule for c, rule in cells.items() if rule is not None}
    both = "give both the same contexts, within the reach of both"
    alone = [c for c in ruled if replace(c, model=two[c.model == two[0]]) not in ruled]
    if len(alone) == len(ruled):
        return [f"decide: {two[0]!r} and {two[1]!r} have no samples in common whose number may grow; {both}"]
    endless = [c for c in alone if ruled[c].precision is None]
    places = dict.fromkeys((c.model, c.context, c.benchmark, c.length) for c in endless)
    return [
        f"decide: of the two models only {model!r} has {benchmark}{f' at {length}' if length else ''} under"
        f" {context!r}, so nothing says when to stop there; add precision to its samples, or {both}"
        for model, context, benchmark, length in places
    ]


def _load(plan: Plan, cell: Cell, measured: Measured) -> Load:
    """What a cell's samples ask of an engine. What they share is taken from a shorter length of the task if need be."""
    load = measured.load or Load(tokens=float(cell.length or 1))
    if load.shared is not None:
        return load
    known = [
        (c.length, found) for c, found in plan.loads.items() if (c.benchmark, c.task) == (cell.benchmark, cell.task)
    ]
    like = max(
        (found for length, found in known if length <= cell.length), key=lambda found: found.tokens, default=None
    )
    return load.sharing((like.shared or 0.0) / max(like.tokens, 1.0) if like is not None else 0.0)

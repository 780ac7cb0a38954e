"""A config -> the cells of its run in order, and every error that can be found before a model is loaded.

What a plan refuses would otherwise fail after hours, or give a wrong number: a checkpoint whose flags contradict its
weights, missing data, a length too small for a task, a prompt that does not fit.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.benchmarks.protocol import Benchmark, Measured, Setup, benchmarks_of
from harness.config import Config, ContextSetting, Model
from harness.cost.devices import Devices, here
from harness.cost.memory import Memory, memory_of, refusals
from harness.data import network
from harness.data.folder import DataFolder
from harness.engine.load import Load
from harness.engine.precision import gpu_is_used, running_dtype, unavailable
from harness.models.admission import admit
from harness.models.checkpoint import Checkpoint
from harness.models.hub import tokenizer_sha256
from harness.models.thinking import Thinking
from harness.models.tokenizer import Tokenizer
from harness.run.plan_rules import undecidable, without_points
from harness.store.manifest import MANIFEST, read_manifest
from harness.types import Cell, GatedevalError


@dataclass(frozen=True)
class PlannedModel:
    """A model that passed inspection, with the longest prompt plus answer that each context setting gives it.

    `owner`: of a model in the dtype of some of its benchmarks, the label of the config's model. The label of `model`
    is then the engine's name (see `Plan.engine_name`); None: `model` is the config's.
    """

    model: Model
    checkpoint: Checkpoint
    tokenizer_dir: Path
    max_lengths: dict[str, int]  # context label -> tokens
    owner: str | None = None

    @property
    def label(self) -> str:
        """The label of the config's model, which cells and tables have."""
        return self.owner or self.model.label

    @property
    def dtype(self) -> str:
        """The dtype to run in; `auto` where vLLM chooses it."""
        return running_dtype(self.model.dtype, self.checkpoint.dtype)


@dataclass
class Plan:
    """The cells of a run in the config's order, their sizes, and why parts of the config cannot be run.

    A model has one engine, by its label's name, and another one for each other dtype that its benchmarks ask for.
    """

    config: Config
    data: DataFolder
    models: dict[str, PlannedModel] = field(default_factory=dict)
    in_dtype: dict[str, PlannedModel] = field(default_factory=dict)  # engine's name -> a model in a benchmark's dtype
    engine_of: dict[Cell, str] = field(default_factory=dict)  # cells of `in_dtype` -> the engine's name
    cells: dict[Cell, int] = field(default_factory=dict)  # -> samples
    tokens: dict[Cell, int] = field(
        default_factory=dict
    )  # -> prompt tokens: counted; of cells with a length, an upper bound
    loads: dict[Cell, Load] = field(default_factory=dict)  # -> what its samples ask of an engine
    memory: dict[tuple[str, str], Memory] = field(default_factory=dict)  # (engine, setting) -> what it takes
    devices: Devices | None = None  # where it will run; None: not known
    budget: dict[str, Any] | None = None  # what run.json records about `--budget`
    refusals: list[str] = field(default_factory=list)
    date: datetime.date = field(default_factory=datetime.date.today)  # for chat templates that print today's date

    @property
    def engines(self) -> dict[str, PlannedModel]:
        """Name of an engine -> what it runs: each model, then the same in the dtypes of its benchmarks."""
        found: dict[str, PlannedModel] = {}
        for label, planned in self.models.items():
            found[label] = planned
            found |= {name: other for name, other in self.in_dtype.items() if other.owner == label}
        return found

    def engine_name(self, model: str, benchmark: Benchmark) -> str:
        """The engine that answers a benchmark of a model: the model's own, or `MODEL in DTYPE`.

        The model's own one also where the benchmark names the dtype that the model runs in anyway.
        """
        planned = self.models[model]
        if benchmark.dtype is None:
            return model
        dtype = running_dtype(benchmark.dtype, planned.checkpoint.dtype)
        return model if dtype == planned.dtype else f"{model} in {dtype}"

    def answered_by(self, engine: str) -> list[Benchmark]:
        """The benchmarks that an engine answers."""
        owner = self.engines[engine].label
        return [b for b in benchmarks_of(self.config) if self.engine_name(owner, b) == engine]

    def engine(self, cell: Cell) -> str:
        """The name of the engine that answers a cell."""
        return self.engine_of.get(cell, cell.model) if self.engine_of else cell.model

    def dtype(self, cell: Cell) -> str:
        """The dtype of a cell's answers as the config has it, which their hashes name."""
        if cell in self.engine_of:
            return self.benchmark(cell).dtype or "auto"
        return self.models[cell.model].model.dtype

    def longest_memory(self, engine: str) -> Memory | None:
        """What an engine takes under its longest setting, with which it starts; None where it is not known."""
        of_engine = (memory for (name, _), memory in self.memory.items() if name == engine)
        return max(of_engine, key=lambda memory: memory.max_length, default=None)

    def benchmark(self, cell: Cell) -> Benchmark:
        """The benchmark that a cell belongs to."""
        for benchmark in benchmarks_of(self.config):
            if benchmark.owns(cell):
                return benchmark
        raise KeyError(cell)

    def of(self, engine: str, setting: str) -> list[Cell]:
        """The cells that one engine answers under one context setting, in order."""
        return [c for c in self.cells if c.context == setting and self.engine(c) == engine]

    def setup(self, engine: str) -> Setup:
        """What the samples of an engine's model are made from, besides their cell."""
        config, directory = self.config, self.engines[engine].tokenizer_dir
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
    benchmarks = benchmarks_of(config)
    for label in plan.models:
        _add_engines(plan, label, benchmarks)
    for planned in plan.engines.values():
        _check_memory(plan, planned)
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
        rules = {cell: plan.benchmark(cell).sampling for cell in plan.cells}
        plan.refusals += undecidable(config.decide, rules)
        ruled = (cell for cell, rule in rules.items() if rule is not None)
        plan.refusals += without_points(ruled, lambda c: plan.benchmark(c).in_points(c.task, plan.data))
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


def _add_engines(plan: Plan, label: str, benchmarks: Sequence[Benchmark]) -> None:
    """Plan the engines of a model for benchmarks in another dtype than its own, under the settings that they have."""
    planned = plan.models[label]
    for benchmark in benchmarks:
        name = plan.engine_name(label, benchmark)
        if name == label:
            continue
        if any(model.label == name for model in plan.config.models):
            plan.refusals.append(
                f"model {name!r} has the name of the engine that answers {benchmark.name} of model {label!r}; give it"
                " another label"
            )
        model = planned.model.model_copy(update={"label": name, "dtype": benchmark.dtype})
        lengths = {
            setting: length
            for setting, length in planned.max_lengths.items()
            if benchmark.contexts is None or setting in benchmark.contexts
        }
        known = plan.in_dtype.setdefault(name, dataclasses.replace(planned, model=model, max_lengths={}, owner=label))
        known.max_lengths.update(lengths)


def _check_memory(plan: Plan, planned: PlannedModel) -> None:
    """Note what a model takes under each of its settings, and refuse what cannot fit.

    Not of a model whose benchmarks are all in other dtypes, and that no probe needs.
    """
    if plan.devices is None:
        return
    options, label = plan.config.engine, planned.model.label
    if benchmarks_of(plan.config) and not plan.answered_by(label) and plan.config.probe is None:
        return
    heads = planned.checkpoint.config.get("num_attention_heads")
    for setting, length in planned.max_lengths.items():
        memory = memory_of(planned.model, planned.checkpoint, options, plan.devices, length)
        plan.memory[label, setting] = memory
        key = "engine.dtype" if planned.model.dtype == options.dtype else "the model's dtype"
        key = key if planned.owner is None else "the benchmark's dtype"
        plan.refusals += refusals(memory, options, label, setting, heads if isinstance(heads, int) else None, key)


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
    tokenizer, engine = tokenizer_sha256(planned.tokenizer_dir), plan.engine_name(label, benchmark)
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
        if engine != label:
            plan.engine_of[cell] = engine
        plan.tokens[cell], longest = measured[key].prompt_tokens, measured[key].longest
        plan.loads[cell] = _load(plan, cell, measured[key])
        if longest > limit:
            plan.refusals.append(
                f"{cell.benchmark} {cell.task}: its longest prompt and answer are {longest} tokens,"
                f" {longest - limit} over the {limit} of context {setting.label!r} with model {label!r}; raise"
                " max_length, use fewer shots, or leave it out of this context (`contexts:` in its entry)"
            )


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

"""Config -> ordered cells, and everything that cannot be right, found before a model is loaded.

What a plan refuses would otherwise fail after hours, or worse, give a number: a checkpoint whose flags lie, data that
is not there, a length too small for a task, a prompt that does not fit.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from harness.benchmarks import base as benchmarks
from harness.benchmarks.base import Setup
from harness.config import Benchmark, Config, ContextSetting, Model
from harness.data.folder import DataFolder
from harness.engine.requests import SampleRequest
from harness.models.checkpoint import Checkpoint, inspect
from harness.models.hub import resolve, tokenizer_path, tokenizer_sha256
from harness.models.tokenizer import Tokenizer
from harness.rope import context
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
    """The cells of a run in the order in which they are worked off, and what was refused."""

    config: Config
    data: DataFolder
    models: dict[str, PlannedModel] = field(default_factory=dict)
    cells: dict[Cell, int] = field(default_factory=dict)  # -> samples
    tokens: dict[Cell, int] = field(default_factory=dict)  # -> prompt tokens: RULER's upper bound, else counted
    refusals: list[str] = field(default_factory=list)

    def benchmark(self, cell: Cell) -> Benchmark:
        """The benchmark that a cell belongs to."""
        for b in self.config.benchmarks:
            same = b.name == cell.benchmark and (b.kind != "ruler" or cell.length in b.lengths)
            if same and (b.kind == "lm_eval" or cell.task in benchmarks.task_names(b)):
                return b
        raise KeyError(cell)

    def of(self, model: str, setting: str) -> list[Cell]:
        """The cells of one model under one context setting, in order."""
        return [c for c in self.cells if c.model == model and c.context == setting]

    def setup(self, model: str) -> Setup:
        """What the samples of a model are made from."""
        config, directory = self.config, self.models[model].tokenizer_dir
        tokenizer = _tokenizer(directory, tokenizer_sha256(directory))
        return Setup(tokenizer, self.data, config.seed, config.chat_template, config.thinking)

    def check(self) -> None:
        """Raise one GatedevalError that lists every refusal."""
        if self.refusals:
            raise GatedevalError("\n".join(["the plan cannot be run:", *(f"  - {r}" for r in self.refusals)]))


@functools.lru_cache(maxsize=4)
def _tokenizer(directory: Path, sha256: str) -> Tokenizer:
    """The tokenizer of a directory, loaded once as long as its files are the same."""
    return Tokenizer(directory)


def build(config: Config) -> Plan:
    """Inspect models and data and lay out the cells. Nothing is raised: see `Plan.refusals` and `Plan.check`."""
    plan = Plan(config, benchmarks.data_folder(config))
    for model in config.models:
        try:
            plan.models[model.label] = _model(model, config.contexts_of(model))
        except GatedevalError as error:
            plan.refusals.append(str(error))
    needed = [name for b in config.benchmarks for name in benchmarks.needed_data(b)]
    plan.refusals += plan.data.missing(needed)
    usable = [b for b in config.benchmarks if not plan.data.missing(benchmarks.needed_data(b))]
    counted: dict[tuple[str, str, str, int], tuple[int, int]] = {}
    for planned in plan.models.values():
        for setting in config.contexts_of(planned.model):
            for benchmark in usable:
                try:
                    _lay_out(plan, planned, setting, benchmark, counted)
                except GatedevalError as error:
                    plan.refusals.append(str(error))
    plan.refusals = list(dict.fromkeys(plan.refusals))
    return plan


def _model(model: Model, contexts: tuple[ContextSetting, ...]) -> PlannedModel:
    directory = resolve(model)
    checkpoint = inspect(directory)
    lengths = {}
    for setting in contexts:
        try:
            lengths[setting.label] = context.overrides(setting, checkpoint.config).max_model_len
        except GatedevalError as error:
            raise GatedevalError(f"model {model.label!r}: {error}") from error
    return PlannedModel(model, checkpoint, tokenizer_path(model, directory), lengths)


def _lay_out(
    plan: Plan,
    planned: PlannedModel,
    setting: ContextSetting,
    benchmark: Benchmark,
    counted: dict[tuple[str, str, str, int], tuple[int, int]],
) -> None:
    """Add the cells of one model, setting and benchmark; refuse what does not fit."""
    label, limit = planned.model.label, planned.max_lengths[setting.label]
    tokenizer = tokenizer_sha256(planned.tokenizer_dir)
    for cell in benchmarks.cells_of(benchmark, label, setting.label, limit):
        samples = benchmarks.count(benchmark, cell.task, plan.data)
        plan.cells[cell] = samples
        if benchmark.kind == "ruler":
            plan.tokens[cell] = samples * cell.length
            first = (f"{tokenizer} {limit}", benchmark.name, cell.task, cell.length)
            if first not in counted:
                counted[first] = (0, 0)
                _check_ruler(plan, planned, benchmark, cell, limit)
            continue
        key = (tokenizer, benchmark.name, cell.task, 0)
        if key not in counted:
            counted[key] = _count(plan, label, benchmark, cell)
        plan.tokens[cell], longest = counted[key]
        if longest > limit:
            plan.refusals.append(
                f"{cell.benchmark} {cell.task}: its longest prompt and answer are {longest} tokens,"
                f" {longest - limit} over the {limit} of context {setting.label!r} with model {label!r}; raise"
                " max_length, use fewer shots, or leave it out of this context"
            )


def _check_ruler(plan: Plan, planned: PlannedModel, benchmark: Benchmark, cell: Cell, limit: int) -> None:
    """Make the cell's first sample: it settles the size that fits, and a length too small for the task ends here."""
    from tasks import ruler

    try:
        samples = ruler.generate(
            cell.task,
            tokenizer=plan.setup(planned.model.label).tokenizer,
            length=cell.length,
            samples=benchmark.samples or 0,
            seed=plan.config.seed,
            data=plan.data,
            max_model_len=limit,
            **dict(benchmark.options),
        )
        next(samples, None)
    except GatedevalError as error:
        plan.refusals.append(f"{error} (model {planned.model.label!r})")


def _count(plan: Plan, label: str, benchmark: Benchmark, cell: Cell) -> tuple[int, int]:
    """(prompt tokens of all samples, longest prompt plus answer) of a benchmark without lengths, by its prompts."""
    setup = plan.setup(label)
    total = longest = 0
    for sample in benchmarks.jobs(benchmark, cell, setup, 0):
        sizes = list(_sizes(setup.tokenizer, sample))
        total += sizes[0][0]
        longest = max(longest, *(prompt + answer for prompt, answer in sizes))
    return total, longest


def _sizes(tokenizer: Tokenizer, sample: SampleRequest) -> Iterator[tuple[int, int]]:
    """(prompt tokens, answer tokens) of the prompt, or of each option."""
    if sample.prompt is not None:
        yield len(tokenizer.encode(sample.prompt)), sample.max_tokens
    alone: dict[str, int] = {}  # options mostly share one context
    for ctx, continuation in sample.options:
        if ctx not in alone:
            alone[ctx] = len(tokenizer.encode(ctx))
        yield alone[ctx], max(1, len(tokenizer.encode(ctx + continuation)) - alone[ctx])

"""A benchmark's name -> its samples: prompt, answer cap, references and scoring, one at a time.

The runner sees only `SampleRequest`s; what is RULER, MMLU, GSM8k or another lm-eval task is decided here.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from harness.config import Benchmark, Config
from harness.data.folder import DataFolder
from harness.engine.requests import Answer, Completion, SampleRequest
from harness.models.tokenizer import Tokenizer
from harness.types import Cell, GatedevalError

if TYPE_CHECKING:
    from harness.benchmarks.lm_tasks import LmEvalTask

_log = logging.getLogger("gatedeval")
RULER_OWN = {"profile": "nvidia", "answer_prefix": "append", "answer_tokens": None}
"""RULER's options and what upstream does; None: a budget of its own for each task."""


@dataclass(frozen=True)
class RulerScore:
    """RULER's score of one sample, as plain data: jobs are made in one process and scored in another."""

    task: str
    references: list[str]

    def __call__(self, answer: Answer, text: str) -> dict[str, float]:
        """The one metric, 0..1."""
        from tasks import ruler

        return {"score": ruler.score(self.task, self.references, text)}


@dataclass(frozen=True)
class LmScore:
    """An lm-eval task's metrics of one document, as plain data; the task itself is loaded where it scores."""

    benchmark: Benchmark
    task: str
    data: DataFolder
    doc: Any
    instances: list[Any]

    def __call__(self, answer: Answer, text: str) -> dict[str, float]:
        """lm-eval's metrics, 0..1."""
        return _lm_task(self.benchmark, self.task, self.data).score(self.doc, self.instances, answer, text)


@dataclass(frozen=True)
class Setup:
    """What samples depend on besides their cell: the tokenizer, the data, the seed, chat rendering."""

    tokenizer: Tokenizer
    data: DataFolder
    seed: int
    chat: bool = False
    thinking: bool = False

    def render(self, messages: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Chat messages as text; a begun assistant turn is continued (lm-eval's chat_template signature)."""
        return self.tokenizer.render(messages, add_generation_prompt, thinking=self.thinking)


def data_folder(config: Config) -> DataFolder:
    """The folder that the config names, else GATEDEVAL_DATA, else downloads."""
    return DataFolder(config.data)


def divergences(benchmarks: Sequence[Benchmark]) -> dict[str, Any]:
    """Every option that departs from an upstream benchmark's own procedure, for the manifest and below tables.

    One value where all of RULER shares it; else each value with its tasks and lengths, in one text.
    """
    ruler = [b for b in benchmarks if b.kind == "ruler"]
    found: dict[str, Any] = {}
    for name, own in RULER_OWN.items():
        values = [b.option(name, own) for b in ruler]
        if len(set(values)) == 1 and values[0] != own:
            found[f"ruler {name}"] = values[0]
        elif len(set(values)) > 1:
            where: dict[tuple[Any, tuple[str, ...]], list[int]] = {}
            for b, value in zip(ruler, values, strict=True):
                where.setdefault((value, b.tasks), []).extend(b.lengths)
            found[f"ruler {name}"] = "; ".join(
                f"{'as in RULER' if value is None else value} for {', '.join(tasks)} at {', '.join(map(str, lengths))}"
                for (value, tasks), lengths in where.items()
            )
    return found


def cells_of(benchmark: Benchmark, model: str, context: str, max_length: int) -> Iterator[Cell]:
    """The cells of a benchmark under one model and context setting: every length that the context reaches."""
    for task in task_names(benchmark):
        if benchmark.kind != "ruler":
            yield Cell(model, context, benchmark.name, task)
            continue
        for length in benchmark.lengths:
            if length <= max_length:
                yield Cell(model, context, benchmark.name, task, length)


def task_names(benchmark: Benchmark) -> tuple[str, ...]:
    """RULER's tasks, MMLU's subjects, or the tasks of an lm-eval name (one, or a group's)."""
    if benchmark.kind == "lm_eval":
        from harness.benchmarks.lm_tasks import load_tasks

        return tuple(load_tasks(benchmark.tasks[0], benchmark.shots))
    return benchmark.tasks or (benchmark.name,)


def needed_data(benchmark: Benchmark) -> list[str]:
    """Names of the data sets (see `harness.data.catalog`) that the benchmark reads."""
    if benchmark.kind == "ruler":
        from tasks.ruler import NEEDS

        return list(dict.fromkeys(name for task in benchmark.tasks for name in NEEDS[task]))
    return [] if benchmark.kind == "lm_eval" else list(import_module(f"tasks.{benchmark.kind}").DATA)


def count(benchmark: Benchmark, task: str, data: DataFolder) -> int:
    """Samples that a cell of `task` has."""
    if benchmark.kind == "ruler":
        return benchmark.samples or 0
    there = len(_lm_task(benchmark, task, data))
    return there if benchmark.samples is None else min(there, benchmark.samples)


def jobs(benchmark: Benchmark, cell: Cell, setup: Setup, max_length: int) -> Iterator[SampleRequest]:
    """The cell's samples in order, made as they are asked for. `max_length`: tokens that the context setting takes."""
    if benchmark.kind == "ruler":
        yield from _ruler_jobs(benchmark, cell, setup, max_length)
    else:
        yield from _lm_jobs(benchmark, cell, setup)


def _ruler_jobs(benchmark: Benchmark, cell: Cell, setup: Setup, max_length: int) -> Iterator[SampleRequest]:
    from tasks import ruler

    # A chat template's own tokens are part of what is sent: they come off the length that the generator fills.
    frame = len(setup.tokenizer.encode(setup.render([{"role": "user", "content": ""}]))) if setup.chat else 0
    samples = ruler.generate(
        cell.task,
        tokenizer=setup.tokenizer,
        length=cell.length - frame,
        samples=benchmark.samples or 0,
        seed=setup.seed,
        data=setup.data,
        max_model_len=max_length - frame,
        **dict(benchmark.options),
    )
    for number, sample in enumerate(samples):
        prompt = sample.prompt
        if setup.chat:
            prefix = "" if benchmark.option("answer_prefix") == "drop" else sample.answer_prefix
            prompt = setup.tokenizer.chat(
                [{"role": "user", "content": sample.input}], answer_prefix=prefix.lstrip(), thinking=setup.thinking
            )
        references = list(sample.outputs)
        yield SampleRequest(
            id=str(number),
            label=f"ruler {cell.task} at {cell.length}, sample {number}",
            prompt=prompt,
            max_tokens=sample.validity.answer_tokens,
            references=references,
            score=RulerScore(cell.task, references),
            extra={"ruler": asdict(sample.validity)},
        )
    while setup.tokenizer.notes:  # e.g. a tokenizer whose pieces do not add up: whole encodes, same samples, slower
        _log.warning("RULER %s at %d: %s", cell.task, cell.length, setup.tokenizer.notes.pop())


def _lm_task(benchmark: Benchmark, task: str, data: DataFolder) -> LmEvalTask:
    from harness.benchmarks import lm_tasks as lmtasks

    if benchmark.kind != "lm_eval":
        shots = 5 if benchmark.shots is None else benchmark.shots
        return lmtasks.local_task(benchmark.kind, task if benchmark.kind == "mmlu" else None, shots, data)
    return lmtasks.load_tasks(benchmark.tasks[0], benchmark.shots)[task]


def _lm_jobs(benchmark: Benchmark, cell: Cell, setup: Setup) -> Iterator[SampleRequest]:
    task = _lm_task(benchmark, cell.task, setup.data)
    chat = setup.render if setup.chat else None
    for number, doc in task.documents(benchmark.samples):
        request, instances = task.ask(number, doc, chat)
        yield replace(
            request,
            references=task.reference(doc),
            score=LmScore(benchmark, cell.task, setup.data, doc, instances),
            extra={"options": [c for _, c in request.options]} if request.options else {},
        )


def answer_text(answer: Completion, thinking: bool, what: object) -> str:
    """The part of a response that is scored.

    Thinking on: what follows `</think>`, nothing where the thought was cut off.

    Raises:
        GatedevalError: a thought in a run that has thinking off: its scores would not be the model's answers.
    """
    text = answer.text
    if thinking:
        return text.rpartition("</think>")[2].lstrip() if "</think>" in text else ""
    if "<think>" in text:
        raise GatedevalError(f"{what}: the response holds <think> although thinking is off; check the chat template")
    return text

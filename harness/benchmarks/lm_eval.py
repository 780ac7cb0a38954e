"""MMLU, GSM8k and any other lm-eval task as benchmarks: lm-eval's prompts and scores, one sample at a time.

MMLU and GSM8k are lm-eval's own tasks with their data from local files; any other name takes its data from the hub.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import field_validator

from harness.benchmarks import lm_names
from harness.benchmarks.presentation import Beside, Planned, Presentation, register
from harness.benchmarks.protocol import Benchmark, Setup
from harness.config.fields import Natural, Text, names_of
from harness.config.sampling import Samples, Sampling, most
from harness.data.folder import DataFolder
from harness.engine.requests import Answer, SampleRequest
from harness.text import counted
from harness.types import Cell
from tasks import gsm8k, mmlu
from tasks.gsm8k.reading import METRIC as NORMALISED
from tasks.gsm8k.reading import normalised_match

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.benchmarks.lm_tasks import LmEvalTask


class LmEvalBenchmark(Benchmark):
    """What the benchmarks have in common whose tasks lm-eval defines."""

    if TYPE_CHECKING:

        @property
        def samples(self) -> int | Sampling | None:
            """Per task; None: all there are. Every subclass declares it, at its own place among its keys."""

    @abstractmethod
    def lm_task(self, task: str, data: DataFolder) -> LmEvalTask:
        """lm-eval's task behind a cell's `task`."""

    def beside(self, doc: Any, text: str) -> dict[str, float]:
        """Metrics of ours, 0..1, of the answer `text` to one document; they stand beside lm-eval's. Here: none."""
        return {}

    def count(self, task: str, data: DataFolder) -> int:
        """The task's documents, or `samples` where that is less."""
        there = len(self.lm_task(task, data))
        limit = most(self.samples, None)
        return there if limit is None else min(there, limit)

    def population(self, task: str, data: DataFolder) -> int:
        """The task's documents."""
        return len(self.lm_task(task, data))

    def requests(self, cell: Cell, setup: Setup, max_length: int) -> Iterator[SampleRequest]:
        """The task's documents in its own order; with a rule for `samples`, in a random order that never changes.

        `max_length` changes nothing: prompts are as long as they are.
        """
        task = self.lm_task(cell.task, setup.data)
        if isinstance(self.samples, Sampling):
            # lm-eval draws a document's examples after those of the documents before it: every prompt is made, in the
            # task's own order, so that it is the prompt that a plain count would ask.
            made = list(self._in_order(cell, task, setup, None))
            yield from (made[i] for i in random_order(cell.task, len(made))[: self.count(cell.task, setup.data)])
        else:
            yield from self._in_order(cell, task, setup, self.samples)

    def _in_order(self, cell: Cell, task: LmEvalTask, setup: Setup, limit: int | None) -> Iterator[SampleRequest]:
        chat = setup.render if setup.chat else None
        for number, doc in task.documents(limit):
            request, instances = task.request(number, doc, chat)
            yield replace(
                request,
                references=[] if task.rolling else task.reference(doc),  # a rolling task's reference is its whole text
                score=LmScore(self, cell.task, setup.data, doc, instances),
                extra=task.extra(doc, request),
            )

    def in_points(self, task: str, data: DataFolder) -> bool:
        return not self.lm_task(task, data).rolling

    def depends_on_limit(self, cell: Cell, data: DataFolder) -> bool:
        """Windows of a text fill the context setting; other prompts are as long as they are."""
        return self.lm_task(cell.task, data).rolling


def random_order(task: str, documents: int) -> list[int]:
    """Numbers of a task's documents in a random order: the first n of them are a random sample without replacement.

    It depends on the task's name and size alone, not on the config's seed, so runs of other precisions nest.
    """
    return sorted(range(documents), key=lambda i: hashlib.sha256(f"{task} {documents} {i}".encode()).digest())


class Mmlu(LmEvalBenchmark):
    """`{mmlu: {shots: 5}}`: multiple choice in 57 subjects, each a task of its own."""

    KEY: ClassVar[str] = "mmlu"
    LIST_MEANS: ClassVar[str] = "subjects"

    shots: Natural = 5
    subjects: Annotated[tuple[str, ...], names_of(mmlu.SUBJECTS, "MMLU subject")] = mmlu.SUBJECTS
    samples: Samples | None = None  # per subject; None: all

    @field_validator("shots")
    @classmethod
    def _dev_has_five(cls, value: int) -> int:
        if value > 5:
            raise ValueError(f"should be 0 to 5, is {value}: MMLU's dev split has five questions a subject")
        return value

    @property
    def tasks(self) -> tuple[str, ...]:
        """MMLU's names of the subjects."""
        return self.subjects

    def data_names(self) -> tuple[str, ...]:
        """MMLU's question files."""
        return mmlu.DATA

    def lm_task(self, task: str, data: DataFolder) -> LmEvalTask:
        """lm-eval's task of one subject."""
        from harness.benchmarks.lm_tasks import local_task

        return local_task("mmlu", task, self.shots, data)


class Gsm8k(LmEvalBenchmark):
    """`{gsm8k: {shots: 5}}`: grade-school word problems with a written-out answer."""

    KEY: ClassVar[str] = "gsm8k"

    shots: Natural = 5
    samples: Samples | None = None  # None: all 1,319

    def data_names(self) -> tuple[str, ...]:
        """GSM8k's train and test files."""
        return gsm8k.DATA

    def lm_task(self, task: str, data: DataFolder) -> LmEvalTask:
        """lm-eval's gsm8k."""
        from harness.benchmarks.lm_tasks import local_task

        return local_task("gsm8k", None, self.shots, data)

    def beside(self, doc: Any, text: str) -> dict[str, float]:
        """The number as a person would read it, compared as a number."""
        return {NORMALISED: normalised_match(doc["answer"], text)}


class LmEval(LmEvalBenchmark):
    """`{lm_eval: hellaswag, shots: 0}`: a task of lm-eval's, or every task of a group, by its name."""

    KEY: ClassVar[str] = "lm_eval"
    uses_torch: ClassVar[bool] = True  # what a task of lm-eval's imports is its own affair

    lm_eval: Text
    shots: Natural | None = None  # None: the task's own number
    samples: Samples | None = None  # per task; None: all

    @field_validator("lm_eval")
    @classmethod
    def _exists(cls, value: str) -> str:
        lm_names.check(value)
        return value

    @classmethod
    def entry_name(cls, entry: Mapping[str, Any]) -> str:
        """The lm-eval name."""
        return str(entry[cls.KEY])

    @property
    def name(self) -> str:
        """The lm-eval name."""
        return self.lm_eval

    def cells(self, model: str, context: str, max_length: int) -> Iterator[Cell]:
        """One cell for the task; for a group's name, one for each of its tasks."""
        for task in self._loaded():
            yield Cell(model, context, self.name, task)

    def owns(self, cell: Cell) -> bool:
        """By the lm-eval name alone: which tasks a group has is lm-eval's to say."""
        return cell.benchmark == self.name

    def lm_task(self, task: str, data: DataFolder) -> LmEvalTask:
        """The task itself, or that one of the group."""
        return self._loaded()[task]

    def _loaded(self) -> dict[str, LmEvalTask]:
        from harness.benchmarks.lm_tasks import load_tasks

        return load_tasks(self.lm_eval, self.shots)


@dataclass(frozen=True)
class LmScore:
    """An lm-eval task's metrics of one document, as plain data; the task itself is loaded where it scores."""

    benchmark: LmEvalBenchmark
    task: str
    data: DataFolder
    doc: Any
    instances: list[Any]

    def __call__(self, answer: Answer, text: str) -> dict[str, float]:
        """lm-eval's metrics, 0..1, and the benchmark's own beside them."""
        task = self.benchmark.lm_task(self.task, self.data)
        return task.score(self.doc, self.instances, answer, text) | self.benchmark.beside(self.doc, text)


def _mmlu_caption(planned: Planned) -> str:
    if planned.entry is None:
        return ""
    return (
        f"MMLU: {planned.shots_text}accuracy over questions, {planned.samples_text} per subject; by subject: mean over "
        "subjects."
    )


register(
    "mmlu",
    Presentation(
        title="MMLU",
        pooling="questions",
        all_tasks=mmlu.SUBJECTS,
        unit="subjects",
        rank=1,
        caption=_mmlu_caption,
        lm_eval_task=lambda task: f"mmlu_{task.removeprefix('mmlu_')}",
        lm_eval_group="mmlu",
    ),
)


def _gsm8k_caption(planned: Planned) -> str:
    if planned.entry is None:
        return ""
    return (
        f"GSM8k: {planned.shots_text}{counted(planned.samples_text, 'question')}; strict: the answer after ####; "
        "flexible: the last number in the answer."
    )


register(
    "gsm8k",
    Presentation(
        title="GSM8k",
        rank=2,
        every_metric=True,
        beside={
            NORMALISED: Beside(
                "normalised",
                "ours, beside lm-eval's two readings: the number that the answer states, compared as a number (18..., "
                "$18.00 and 1{,}800 are read right)",
            )
        },
        caption=_gsm8k_caption,
    ),
)

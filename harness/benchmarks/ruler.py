"""RULER as a benchmark: 13 tasks at any length, generated for the evaluated model's own tokenizer (`tasks.ruler`)."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator

from harness.benchmarks.presentation import Beside, Planned, Presentation, register, span_text
from harness.benchmarks.protocol import Benchmark, Measured, Setup
from harness.benchmarks.ruler_prompts import Prompts
from harness.config import BenchmarkEntry
from harness.config.fields import AsTuple, Length, Positive, names_of
from harness.config.sampling import Samples, Sampling, most
from harness.data.folder import DataFolder
from harness.engine.encoding import check_counted, encode_sample
from harness.engine.requests import Answer, SampleRequest
from harness.text import counted
from harness.types import Cell, GatedevalError
from tasks.ruler import NEEDS, TASKS, WORD_BOUNDED, Request, generate, scores
from tasks.ruler.lengths import check

_log = logging.getLogger("gatedeval")
SAMPLES = 500
"""Per task and length, as in the paper and in NVIDIA/RULER."""
_UPSTREAM = {"profile": "nvidia", "answer_prefix": "append", "answer_tokens": None}
"""The options and what NVIDIA/RULER does. answer_tokens None: each task's own budget."""


class Ruler(Benchmark):
    """`{ruler: all, lengths: [4096, ...], samples: 500}`: RULER tasks, each at every length that a context reaches."""

    KEY: ClassVar[str] = "ruler"
    shared_beginnings: ClassVar[bool] = True

    ruler: Annotated[tuple[str, ...], names_of(TASKS, "RULER task")]
    lengths: Annotated[tuple[Length, ...], AsTuple, Field(min_length=1)]  # tokens of a prompt with its answer budget
    samples: Samples = SAMPLES  # per task and length
    profile: Literal["nvidia", "fair"] = "nvidia"
    answer_prefix: Literal["append", "drop"] = "append"
    answer_tokens: Positive | None = None  # the answer's budget; None: the task's own

    @field_validator("lengths")
    @classmethod
    def _distinct(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(value)) < len(value):
            raise ValueError(f"has {next(n for n in value if value.count(n) > 1)} twice")
        return tuple(sorted(value))

    @field_validator("samples")
    @classmethod
    def _at_most(cls, value: int | Sampling) -> int | Sampling:
        if isinstance(value, Sampling) and value.at_most is None and value.at_least > SAMPLES:
            raise ValueError(
                f"at_least {value.at_least} is above {SAMPLES}, the most where at_most is not given; add it"
            )
        return value

    @property
    def tasks(self) -> tuple[str, ...]:
        """RULER's names of the tasks."""
        return self.ruler

    def task_lengths(self) -> Iterator[tuple[str, int]]:
        """Every task at every length."""
        for task in self.tasks:
            for length in self.lengths:
                yield task, length

    def conflict(self, other: BenchmarkEntry) -> str | None:
        """All of RULER in one table is of one kind. (Answer budgets may differ: the caption names them.)"""
        if not isinstance(other, Ruler):
            return None
        if (self.profile, self.answer_prefix) == (other.profile, other.answer_prefix):
            return None
        return "two RULER entries with different profile or answer_prefix; make two configs"

    def to_dict(self) -> dict[str, Any]:
        """The entry; `answer_tokens` only where it is set, so that older configs stay the same."""
        return {k: v for k, v in super().to_dict().items() if k != "answer_tokens" or v is not None}

    def data_names(self) -> tuple[str, ...]:
        """What the tasks are made from: essays, SQuAD, HotpotQA."""
        return tuple(dict.fromkeys(name for task in self.tasks for name in NEEDS[task]))

    def count(self, task: str, data: DataFolder) -> int:
        """As many as the config says, or at most allows: samples are generated."""
        return most(self.samples, SAMPLES) or SAMPLES

    def requests(self, cell: Cell, setup: Setup, max_length: int) -> Iterator[SampleRequest]:
        """RULER's samples, whose prompts together with the answer budget fill the cell's length.

        Special tokens, a chat template's own tokens and a thought come off the length that the generator fills.
        """
        prompts = Prompts(self._request(cell, setup), setup)
        request = replace(prompts.request, reserved=prompts.reserved, max_model_len=None if setup.chat else max_length)
        for number, sample in enumerate(generate(request)):
            prompt = prompts.prompt(sample)
            tokens = prompts.tokens(sample, prompt)
            references = list(sample.outputs)
            if (total := tokens + sample.validity.answer_tokens) > cell.length:
                raise GatedevalError(
                    f"ruler {cell.task} at {cell.length}, sample {number}: prompt and answer take {total} tokens with"
                    " their special tokens; report this tokenizer"
                )
            yield SampleRequest(
                id=str(number),
                label=f"ruler {cell.task} at {cell.length}, sample {number}",
                prompt=prompt,
                max_tokens=sample.validity.answer_tokens,
                references=references,
                score=RulerScore(cell.task, references),
                extra={"ruler": prompts.record(sample, tokens)},
                counted_tokens=tokens,
            )
        while setup.tokenizer.notes:  # e.g. a tokenizer whose pieces do not add up: whole encodes, same samples, slower
            _log.warning("RULER %s at %d: %s", cell.task, cell.length, setup.tokenizer.notes.pop())

    def _request(self, cell: Cell, setup: Setup) -> Request:
        """What the generator is asked for, nothing reserved."""
        return Request(
            task=cell.task,
            tokenizer=setup.tokenizer,
            length=cell.length,
            samples=self.count(cell.task, setup.data),
            seed=setup.seed,
            data=setup.data,
            profile=self.profile,
            answer_prefix=self.answer_prefix,
            answer_tokens=self.answer_tokens,
        )

    def measure(self, cell: Cell, setup: Setup, max_length: int) -> Measured:
        """At most the length, each. What no row can have a place for is found here, for all rows.

        The first sample is made and encoded as it would be sent.
        """
        refusal = None
        try:
            prompts = Prompts(self._request(cell, setup), setup)
            check(replace(prompts.request, reserved=prompts.reserved))
            for sample in islice(self.requests(cell, setup, max_length), 1):
                request = encode_sample(sample, setup.tokenizer, setup.thinking)
                check_counted(sample, request)
        except GatedevalError as error:
            refusal = f"{error} (model {cell.model!r})"
        return Measured(self.count(cell.task, setup.data) * cell.length, cell.length, refusal)

    @classmethod
    def divergences(cls, entries: Sequence[Self]) -> dict[str, Any]:
        """Options that are not upstream's: one value where all entries share it, else each with tasks and lengths."""
        found: dict[str, Any] = {}
        for name, upstream in _UPSTREAM.items():
            values = [getattr(b, name) for b in entries]
            if len(set(values)) == 1 and values[0] != upstream:
                found[f"ruler {name}"] = values[0]
            elif len(set(values)) > 1:
                where: dict[tuple[Any, tuple[str, ...]], list[int]] = {}
                for b, value in zip(entries, values, strict=True):
                    where.setdefault((value, b.tasks), []).extend(b.lengths)
                found[f"ruler {name}"] = "; ".join(
                    f"{'as in RULER' if value is None else value} for {', '.join(tasks)}"
                    f" at {', '.join(map(str, lengths))}"
                    for (value, tasks), lengths in where.items()
                )
        return found


@dataclass(frozen=True)
class RulerScore:
    """RULER's score of one sample, as plain data: samples are made in one process and scored in another."""

    task: str
    references: list[str]

    def __call__(self, answer: Answer, text: str) -> dict[str, float]:
        """RULER's own score, 0..1, and the word-bounded one beside it."""
        return scores(self.task, self.references, text)


_RULER_LM_EVAL = {
    "vt": "ruler_vt",
    "cwe": "ruler_cwe",
    "fwe": "ruler_fwe",
    "qa_1": "ruler_qa_squad",
    "qa_2": "ruler_qa_hotpot",
}


def _ruler_caption(planned: Planned) -> str:
    if not planned.tasks:
        return ""
    whole = set(planned.tasks) == set(TASKS)
    over = f"{len(TASKS)} tasks" if whole else f"{counted(len(planned.tasks), 'task')} ({', '.join(planned.tasks)})"
    options = "".join(
        f"; {key.replace('_', ' ')} {value}"
        for key, value in (planned.entry or {}).items()
        if key not in ("ruler", "lengths", "samples", "answer_tokens")  # the last is among the divergences
    )
    weights = " with equal weight" if len(planned.tasks) > 1 else ""
    return f"RULER: mean of {over}{weights}, {_ruler_samples(planned)}, official string-match scoring{options}."


def _ruler_samples(planned: Planned) -> str:
    """ "500 samples per task and length"; where lengths differ, the samples per task of each."""
    groups: dict[str, list[str]] = {}
    for length in sorted(planned.counts):
        groups.setdefault(span_text(planned.counts[length]), []).append(str(length))
    if len(groups) < 2:
        return f"{counted(next(iter(groups), 'no'), 'sample')} per task and length"
    return "samples per task: " + "; ".join(f"{n} at {_and(lengths)}" for n, lengths in groups.items())


def _and(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


register(
    "ruler",
    Presentation(
        title="RULER",
        pooling="tasks",
        all_tasks=TASKS,
        rank=0,
        unknown_length="0",
        beside={
            WORD_BOUNDED: Beside(
                "word-bounded",
                "ours, beside RULER's own score: a reference inside a longer word (bag in airbag) does not count",
            )
        },
        caption=_ruler_caption,
        lm_eval_task=lambda task: _RULER_LM_EVAL.get(task, task),
        lm_eval_group="ruler",
        lm_eval_metric=lambda metric, length: f"{length},{'none' if metric == 'score' else metric}",
        lm_eval_shots=0,
    ),
)

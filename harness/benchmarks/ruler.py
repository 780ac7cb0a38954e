"""RULER as a benchmark: 13 tasks at any length, generated for the evaluated model's own tokenizer (`tasks.ruler`)."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from harness.benchmarks.presentation import Beside, Planned, Presentation, register, span_text
from harness.benchmarks.protocol import Benchmark, Measured, Setup
from harness.benchmarks.ruler_prompts import Prompts
from harness.config import BenchmarkEntry
from harness.config.fields import AsTuple, Length, Positive, Text, names_of
from harness.config.sampling import Samples, Sampling, most
from harness.data.files import sha256_of
from harness.data.folder import DataFolder
from harness.engine.encoding import check_counted, encode_sample
from harness.engine.load import load_of
from harness.engine.requests import Answer, SampleRequest
from harness.text import counted
from harness.types import Cell, GatedevalError
from tasks.ruler import NEEDS, TASKS, WORD_BOUNDED, Request, generate, scores
from tasks.ruler.lengths import check
from tasks.ruler.request import COMBINED

_log = logging.getLogger("gatedeval")
SAMPLES = 500
"""Per task and length, as in the paper and in NVIDIA/RULER."""
_UPSTREAM = {"profile": "nvidia", "answer_prefix": "append", "answer_tokens": None, "word_list": None}
"""The options and what NVIDIA/RULER does. answer_tokens None: each task's own budget; word_list None: its own."""
_ADDED = ("answer_tokens", "word_list")
_COMPARED, _COMPARED_AT_MOST = 5, 16384
"""Samples of a task's smallest length that a plan compares to see what they share, and the longest such length."""


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
    word_list: Text | None = None  # cwe's words beyond 8,166: a file, or combined; None: upstream's english_words.json

    FILES: ClassVar[tuple[str, ...]] = ("word_list",)

    @field_validator("lengths")
    @classmethod
    def _distinct(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(value)) < len(value):
            raise ValueError(f"has {next(n for n in value if value.count(n) > 1)} twice")
        return tuple(sorted(value))

    @model_validator(mode="after")
    def _combined_is_fair(self) -> Ruler:
        if self.word_list is not None and self.word_list != COMBINED and not set("/.") & set(self.word_list):
            raise ValueError(
                f"word_list {self.word_list!r}: should be a file (with a dot or a slash in its name), or combined"
            )
        if self.word_list == COMBINED and self.profile != "fair":
            raise ValueError("word_list: combined is not upstream's list; use it with profile: fair, or name a file")
        return self

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
        """The entry; `answer_tokens` and `word_list` only where they are set, so that older configs stay the same."""
        return {k: v for k, v in super().to_dict().items() if k not in _ADDED or v is not None}

    def word_list_named(self) -> str | None:
        """What tables call the word list: its file's name and the beginning of its hash; None: upstream's."""
        if self.word_list is None or self.word_list == COMBINED:
            return self.word_list
        file = Path(self.word_list)
        return f"{file.name} (sha256 {sha256_of(file)[:12]})" if file.is_file() else file.name

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
            words=self.word_list,
        )

    def measure(self, cell: Cell, setup: Setup, max_length: int) -> Measured:
        """At most the length, each. What no row can have a place for is found here, for all rows.

        The first sample is made and encoded as it would be sent; of the smallest length a few, to see what they share.
        """
        refusal, encoded = None, []
        compare = cell.length == min(self.lengths) and cell.length <= _COMPARED_AT_MOST
        try:
            prompts = Prompts(self._request(cell, setup), setup)
            check(replace(prompts.request, reserved=prompts.reserved))
            for sample in islice(self.requests(cell, setup, max_length), _COMPARED if compare else 1):
                request = encode_sample(sample, setup.tokenizer, setup.thinking)
                check_counted(sample, request)
                encoded.append(request)
        except GatedevalError as error:
            refusal = f"{error} (model {cell.model!r})"
        load = load_of(encoded)
        return Measured(
            self.count(cell.task, setup.data) * cell.length,
            cell.length,
            refusal,
            load if compare else replace(load, shared=None),
        )

    @classmethod
    def divergences(cls, entries: Sequence[Self]) -> dict[str, Any]:
        """Options that are not upstream's: one value where all entries share it, else each with tasks and lengths."""
        found: dict[str, Any] = {}
        for name, upstream in _UPSTREAM.items():
            values = [b.word_list_named() if name == "word_list" else getattr(b, name) for b in entries]
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
        if key not in ("ruler", "lengths", "samples", *_ADDED)  # the last are among the divergences
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

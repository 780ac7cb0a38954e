"""What a benchmark is: its cells, its data, its samples, and how they are scored.

A class of this protocol is both the entry of a config (its fields are the entry's keys) and what plan and run ask for
samples. One new module in this package with one such class is a new benchmark: the config finds it
(`harness.config.discovery`), and nothing else names it.
"""

from __future__ import annotations

import datetime
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from harness.config import BenchmarkEntry, Config
from harness.data.folder import DataFolder
from harness.engine.encoding import encode_sample, sizes
from harness.engine.load import Load, load_of
from harness.engine.requests import SampleRequest
from harness.models.thinking import Thinking
from harness.models.tokenizer import NO_THINKING, Tokenizer
from harness.types import Cell


@dataclass(frozen=True)
class Setup:
    """What samples depend on besides their cell: the tokenizer, the data, the seed, chat rendering.

    `date`: what a chat template that prints today's date prints; None: the day on which the tokenizer was loaded.
    """

    tokenizer: Tokenizer
    data: DataFolder
    seed: int
    chat: bool = False
    thinking: Thinking = NO_THINKING
    date: datetime.date | None = None

    def render(self, messages: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Chat messages as text; an assistant turn at the end is continued (lm-eval's chat_template signature)."""
        return self.tokenizer.render(messages, add_generation_prompt, thinking=self.thinking, date=self.date)


@dataclass(frozen=True)
class Measured:
    """What a plan has to know of a cell's prompts, in tokens."""

    prompt_tokens: int  # of all samples together; of a cell with a length, an upper bound
    longest: int  # the longest prompt plus its answer
    refusal: str | None = None  # why the cell cannot be run, whatever its prompts take
    load: Load | None = None  # what a sample asks of an engine; None: as much as fills the cell's length


class Benchmark(BenchmarkEntry):
    """A benchmark that can be planned and run. Subclasses declare their config keys as fields and set `KEY`."""

    shared_beginnings: ClassVar[bool] = False
    """Whether prompts of a cell begin alike for a long way, so that their order decides what the prefix cache saves."""
    uses_torch: ClassVar[bool] = False
    """Whether making its samples may import torch."""

    def cells(self, model: str, context: str, max_length: int) -> Iterator[Cell]:
        """The cells under one model and context setting: of the lengths, those within `max_length` tokens."""
        for task, length in self.task_lengths():
            if length <= max_length:
                yield Cell(model, context, self.name, task, length)

    def owns(self, cell: Cell) -> bool:
        """Whether a cell of a plan is one of this entry's."""
        return cell.benchmark == self.name and (cell.task, cell.length) in set(self.task_lengths())

    def data_names(self) -> tuple[str, ...]:
        """The data sets that samples are made from, by their names in `harness.data.catalog`."""
        return ()

    @abstractmethod
    def count(self, task: str, data: DataFolder) -> int:
        """Samples of one cell of `task`; where `sampling` draws them in rounds, the most that it may draw."""

    def population(self, task: str, data: DataFolder) -> int | None:
        """How many samples of `task` there are to draw from; None where samples are generated, without end."""
        return None

    def in_points(self, task: str, data: DataFolder) -> bool:
        """Whether the task's number is a mean of scores, in points; a perplexity of all texts together is not."""
        return True

    @abstractmethod
    def requests(self, cell: Cell, setup: Setup, max_length: int) -> Iterator[SampleRequest]:
        """The samples of a cell, in order, each made when it is asked for. `max_length`: tokens the context takes.

        Raises:
            GatedevalError: samples that cannot be made, such as a length too small for the task.
        """

    def measure(self, cell: Cell, setup: Setup, max_length: int) -> Measured:
        """The size of a cell's prompts. Here: every prompt is made and counted.

        Raises:
            GatedevalError: as `requests`.
        """
        total = longest = 0
        requests = []
        for sample in self.requests(cell, setup, max_length):
            request = encode_sample(sample, setup.tokenizer, setup.thinking, max_length)
            prompt, with_answer = sizes(request)
            total += prompt
            longest = max(longest, with_answer)
            requests.append(request)
        return Measured(total, longest, load=load_of(requests))

    def depends_on_limit(self, cell: Cell, data: DataFolder) -> bool:
        """Whether the cell's prompts differ between context settings of different longest lengths. Here: those that
        fill a length may.
        """
        return bool(cell.length)

    @classmethod
    def divergences(cls, entries: Sequence[Self]) -> dict[str, Any]:
        """Every option of a config's entries of this class that departs from the original benchmark's procedure."""
        return {}


def benchmarks_of(config: Config) -> tuple[Benchmark, ...]:
    """The benchmarks of a config, as what can be run."""
    return tuple(b for b in config.benchmarks if isinstance(b, Benchmark))


def divergences(benchmarks: Sequence[Benchmark]) -> dict[str, Any]:
    """What departs from the original benchmarks' procedures, for the manifest and the lines below tables."""
    found: dict[str, Any] = {}
    for cls in dict.fromkeys(type(b) for b in benchmarks):
        found |= cls.divergences([b for b in benchmarks if type(b) is cls])
    return found

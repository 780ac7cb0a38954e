"""How tables and exports show a benchmark: title, what its number is a mean over, caption line, lm-eval's names.

A benchmark without a presentation of its own is shown like any lm-eval task: one column per metric, each the mean over
all questions. `register` gives a benchmark another one. Only plain data and text functions: no numpy, no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from harness.config.discovery import benchmark_types
from harness.text import counted

_LOWER_IS_BETTER = ("ppl", "perplexity", "bits_per_byte", "brier")


@dataclass(frozen=True, kw_only=True)
class Planned:
    """What a caption line may say about one benchmark of a run.

    `entry`: its entry in the config's `benchmarks`, None where the config does not name it. `tasks`: planned tasks.
    `counts`: length in tokens (0: no length) -> finished samples of each cell.
    """

    name: str
    entry: Mapping[str, Any] | None
    tasks: Sequence[str]
    counts: Mapping[int, Sequence[int]]

    @property
    def shots(self) -> int | None:
        """Examples in the prompt, where the config says how many."""
        return shots_of(self.name, self.entry)

    @property
    def shots_text(self) -> str:
        """ "5-shot, ", or nothing where the config does not say."""
        return "" if self.shots is None else f"{self.shots}-shot, "

    @property
    def samples_text(self) -> str:
        """ "20 to 500": samples per cell."""
        return span_text(n for numbers in self.counts.values() for n in numbers)


def shots_of(name: str, entry: Mapping[str, Any] | None) -> int | None:
    """Examples in the prompt by a config's entry, `{name: {shots: 5}}` or `{name: ..., shots: 5}`; None: not given."""
    own = (entry or {}).get(name)
    return own.get("shots") if isinstance(own, Mapping) else (entry or {}).get("shots")


def span_text(numbers: Iterable[int]) -> str:
    """ "500", or "20 to 500" where they differ; "no" for none."""
    seen = sorted(set(numbers))
    if not seen:
        return "no"
    return str(seen[0]) if len(seen) == 1 else f"{seen[0]} to {seen[-1]}"


def generic_caption(planned: Planned) -> str:
    """The line of a benchmark without a presentation of its own."""
    samples = counted(planned.samples_text, "sample")
    return f"{planned.name}: {planned.shots_text}{samples} per task." if planned.entry else ""


def generic_metric_key(metric: str, length: int) -> str:
    """lm-eval's "metric,filter"; a metric without a filter has the filter "none"."""
    return metric if "," in metric else f"{metric},none"


@dataclass(frozen=True)
class Beside:
    """A metric of ours that stands beside a benchmark's own, never instead of it, and is not tested for differences.

    `title`: of its column, or of its rows in the table per task. `meaning`: the rest of its line beneath a table.
    """

    title: str
    meaning: str


@dataclass(frozen=True, kw_only=True)
class Presentation:
    """How one benchmark is shown. Everything but the title has a default that fits any lm-eval task.

    `pooling`: how the cells of one (model, context) become numbers.
        "tasks": one column per length, the mean of the tasks' means with equal weight; a missing task blocks it.
        "questions": the mean over all questions, and beside it the mean over tasks with equal weight.
        "metrics": one column per metric, the mean over all questions.
    """

    title: str
    pooling: Literal["tasks", "questions", "metrics"] = "metrics"
    all_tasks: tuple[str, ...] = ()  # the whole benchmark, in its own order; a run with fewer says so in the title
    unit: str = "tasks"  # what a task is called in the plural
    rank: int = 100  # position among a table's benchmarks; equal ranks keep the order of the plan
    every_metric: bool = False  # comparisons take each metric as a row of its own, not the headline metric alone
    unknown_length: str = "score"  # title of a "tasks" column whose length is 0
    metric_titles: Mapping[str, str] = field(
        default_factory=lambda: {"strict-match": "strict", "flexible-extract": "flexible"}
    )  # an lm-eval filter -> title of its column
    beside: Mapping[str, Beside] = field(default_factory=dict)  # metrics of ours: metric -> how it is shown
    caption: Callable[[Planned], str] = generic_caption  # the line beneath a table; empty for none
    lm_eval_task: Callable[[str], str] = str  # a task -> its name in lm-eval
    lm_eval_group: str | None = None  # the group that lm-eval lists the benchmark's tasks under
    lm_eval_metric: Callable[[str, int], str] = generic_metric_key  # metric, length -> lm-eval's key of a score
    lm_eval_shots: int | None = None  # shots in lm-eval's results where the config has none

    def titles(self, tasks: Iterable[str]) -> tuple[str, str]:
        """("RULER (2 of 13 tasks)", "RULER 2/13"), or the plain title twice where the whole benchmark is there.

        An average over fewer tasks is never called by the benchmark's name alone.
        """
        there = set(tasks)
        if not self.all_tasks or there == set(self.all_tasks):
            return self.title, self.title
        of = len(self.all_tasks)
        return f"{self.title} ({len(there)} of {of} {self.unit})", f"{self.title} {len(there)}/{of}"

    def ordered(self, tasks: Iterable[str]) -> list[str]:
        """Tasks in the benchmark's own order, then others by name."""
        there = set(tasks)
        return [t for t in self.all_tasks if t in there] + sorted(there - set(self.all_tasks))

    def metric_title(self, metric: str) -> str:
        """lm-eval's "metric,filter" as a column title; a filter "none" is left out."""
        if metric in self.beside:
            return self.beside[metric].title
        name, _, extraction = metric.partition(",")
        if extraction in self.metric_titles:
            return self.metric_titles[extraction]
        return name if extraction in ("", "none") else f"{name} ({extraction})"

    def mode(self, metric: str | None) -> str:
        """The filter of a metric, such as "strict-match", where each metric is compared; else nothing."""
        return (metric.partition(",")[2] or metric) if self.every_metric and metric else ""


def lower_is_better(metric: str) -> bool:
    """Whether a smaller value of the metric is the better one (perplexity and its relatives)."""
    return any(word in metric for word in _LOWER_IS_BETTER)


_PRESENTATIONS: dict[str, Presentation] = {}


def register(name: str, presentation: Presentation) -> None:
    """Show the benchmark `name` (the `benchmark` of its cells) by this presentation."""
    _PRESENTATIONS[name] = presentation


def presentation_of(name: str) -> Presentation:
    """The presentation of a benchmark; a generic one with its name as the title where none is registered."""
    benchmark_types()  # imports the benchmarks' modules, which register their presentations
    return _PRESENTATIONS.get(name) or Presentation(title=name)


def registered() -> tuple[str, ...]:
    """Names of the benchmarks with a presentation of their own, by rank."""
    benchmark_types()
    return tuple(sorted(_PRESENTATIONS, key=lambda name: _PRESENTATIONS[name].rank))

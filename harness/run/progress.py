"""Progress on stderr: one bar for the plan and one for the cell, or plain lines when stderr is not a terminal.

Rate and time left are computed from tokens: the costs of samples differ by two orders of magnitude.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import IO, TYPE_CHECKING

from tqdm import tqdm

from harness.types import Cell

if TYPE_CHECKING:
    from harness.run.plan import Plan

_LINE_INTERVAL = 30.0  # seconds between plain lines
_DRAW_INTERVAL = 0.1  # seconds between two drawings of the bars


class Progress:
    """Counts and shows finished samples and tokens. `quiet`: print nothing. `clock`: seconds from any fixed point."""

    def __init__(self, plan: Plan, *, quiet: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.stream = _own_stderr()
        self.terminal = self.stream.isatty()
        self.quiet = quiet
        self.cells = dict(plan.cells)  # cell -> planned samples
        self.count, self.total = sum(plan.cells.values()), sum(plan.tokens.values())
        self.planned = {c: plan.tokens[c] / n for c, n in plan.cells.items() if n}  # cell -> prompt tokens per sample
        self.samples: Counter[Cell] = Counter()  # cell -> finished samples, those of earlier sessions included
        # Prompt tokens as the plan counts them: of all finished samples, and of those finished in this session.
        self.done = self.fresh = 0.0
        self.sent = 0  # prompt and answer tokens of this session, as they were
        self.worked = 0.0  # seconds of answering, without engine starts and cached samples: the rate is about these
        self.last = self.last_line = self.clock()
        self.last_drawn = 0.0
        self.plan_bar: tqdm | None = None
        self.cell_bar: tqdm | None = None

    def __enter__(self) -> Progress:
        if self.terminal and not self.quiet:
            self.plan_bar = _bar("plan", max(self.total, 1), 0, self.stream)
            self.cell_bar = _bar("", 1, 1, self.stream)
        return self

    def __exit__(self, *exc: object) -> None:
        for bar in (self.cell_bar, self.plan_bar):
            if bar is not None:
                bar.close()
        if self.stream is not sys.stderr:
            self.stream.close()
            self.stream = sys.stderr

    def say(self, line: str) -> None:
        """Print one line of text above the bars."""
        if self.quiet:
            return
        if self.plan_bar is not None:
            self.plan_bar.write(line, file=self.stream)
        else:
            print(line, file=self.stream, flush=True)

    def resume(self) -> None:
        """Leave the time since the last sample out of the rate: an engine was starting."""
        self.last = self.clock()

    def enter(self, cell: Cell) -> None:
        """The samples of `cell` come next; samples of the cell before may still be running."""
        if not self.samples:
            self._show(cell)

    def advance(self, cell: Cell, prompt_tokens: int, answer_tokens: int, *, reused: bool = False) -> None:
        """Count one finished sample of `cell`. `reused`: an earlier session had finished it."""
        now = self.clock()
        planned = self.planned.get(cell, prompt_tokens)
        self.samples[cell] += 1
        self.done += planned
        if not reused:
            self.worked += now - self.last
            self.fresh += planned
            self.sent += prompt_tokens + answer_tokens
        self.last = now
        if self.plan_bar is not None:
            self._show(cell)
        elif not self.quiet and now - self.last_line >= _LINE_INTERVAL:
            self.last_line = now
            share = min(1.0, self.done / max(self.total, 1))
            print(f"{share:.0%} of the tokens, {self.standing()}", file=self.stream, flush=True)

    def standing(self) -> str:
        """For example "120/240 samples, 5,310 tokens/s, about 12 min left"; without a rate at the start."""
        text = f"{self.samples.total():,}/{self.count:,} samples"
        if self.fresh and self.worked > 0:
            left = max(0.0, self.total - self.done) / self.fresh * self.worked
            text += f", {self.sent / self.worked:,.0f} tokens/s, about {duration(left)} left"
        return text

    def _show(self, cell: Cell) -> None:
        if self.plan_bar is None or self.cell_bar is None:
            return
        n, count = self.samples[cell], self.cells.get(cell, 0)
        self.cell_bar.total, self.cell_bar.n = max(count, 1), n
        self.cell_bar.set_description_str(
            f"{cell.model}, {cell.context}, {cell.task} {cell.length or ''}".rstrip(), refresh=False
        )
        self.cell_bar.unit = f"{n:,}/{count:,}"
        self.plan_bar.unit = self.standing()
        self.plan_bar.n = min(self.done, max(self.total, 1))
        now = self.clock()
        if now - self.last_drawn >= _DRAW_INTERVAL or self.samples.total() == self.count:
            self.last_drawn = now
            self.plan_bar.refresh()
            self.cell_bar.refresh()


def _own_stderr() -> IO[str]:
    """Standard error under a file descriptor of its own.

    While an engine starts, descriptor 2 leads to the engine's log (`harness.engine.log`): its processes inherit it.
    """
    try:
        if sys.stderr.fileno() != 2:  # a test or a notebook has replaced it
            return sys.stderr
        return open(os.dup(2), "w", buffering=1, encoding=sys.stderr.encoding, errors="backslashreplace")
    except (AttributeError, OSError, ValueError):
        return sys.stderr


def _bar(title: str, total: int, position: int, stream: IO[str]) -> tqdm:
    """A bar whose `unit` is the text to its right, in place of tqdm's own rate, which would count samples alike."""
    return tqdm(
        total=total,
        desc=title,
        position=position,
        leave=position == 0,
        bar_format="{desc} {percentage:3.0f}%|{bar}| {unit}",
        unit="",
        file=stream,
        dynamic_ncols=True,
    )


def duration(seconds: float) -> str:
    """A duration in words: "40 s", "12 min", "3 h 20 min"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"

"""Progress on stderr: a bar for the plan and one for the cell, or plain lines where there is no terminal.

Both rate and time left are in tokens: samples differ in cost by two orders of magnitude.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from tqdm import tqdm

from harness.types import Cell

if TYPE_CHECKING:
    from harness.run.plan import Plan

_EVERY = 30.0  # seconds between plain lines
_REFRESH = 0.1  # seconds between two drawings of the bars


class Progress:
    """Counts what is done. `quiet`: nothing is printed. `clock`: seconds from any fixed point."""

    def __init__(self, plan: Plan, *, quiet: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.terminal = sys.stderr.isatty()
        self.quiet = quiet
        self.cells = dict(plan.cells)  # samples planned
        self.count, self.total = sum(plan.cells.values()), sum(plan.tokens.values())
        self.planned = {c: plan.tokens[c] / n for c, n in plan.cells.items() if n}  # prompt tokens a sample
        self.samples: Counter[Cell] = Counter()  # finished, those of earlier sessions included
        self.done = self.fresh = 0.0  # prompt tokens by the plan's count: finished; of them in this session
        self.sent = 0  # prompt and answer tokens of this session, as they were
        self.worked = (
            0.0  # seconds spent answering: engine starts, and what was found finished, say nothing of the rate
        )
        self.last = self.spoken = self.clock()
        self.shown = 0.0
        self.plan_bar: tqdm | None = None
        self.cell_bar: tqdm | None = None

    def __enter__(self) -> Progress:
        if self.terminal and not self.quiet:
            self.plan_bar = _bar("plan", max(self.total, 1), 0)
            self.cell_bar = _bar("", 1, 1)
        return self

    def __exit__(self, *exc: object) -> None:
        for bar in (self.cell_bar, self.plan_bar):
            if bar is not None:
                bar.close()

    def say(self, line: str) -> None:
        """One line of news."""
        if self.quiet:
            return
        if self.plan_bar is not None:
            self.plan_bar.write(line, file=sys.stderr)
        else:
            print(line, file=sys.stderr, flush=True)

    def resume(self) -> None:
        """Work goes on: the time since the last sample was spent otherwise (an engine was started)."""
        self.last = self.clock()

    def enter(self, cell: Cell) -> None:
        """The stream has come to `cell`; samples of the one before may still be running."""
        if not self.samples:
            self._show(cell)

    def advance(self, cell: Cell, prompt_tokens: int, answer_tokens: int, *, reused: bool = False) -> None:
        """One sample of `cell` is finished (or was found finished)."""
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
        elif not self.quiet and now - self.spoken >= _EVERY:
            self.spoken = now
            share = min(1.0, self.done / max(self.total, 1))
            print(f"{share:.0%} of the tokens, {self.standing()}", file=sys.stderr, flush=True)

    def standing(self) -> str:
        """ "120/240 samples, 5,310 tokens/s, about 12 min left"; no rate before this session has one."""
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
        if now - self.shown >= _REFRESH or self.samples.total() == self.count:
            self.shown = now
            self.plan_bar.refresh()
            self.cell_bar.refresh()


def _bar(title: str, total: int, position: int) -> tqdm:
    """A bar whose words at the right are its `unit`: tqdm's own rate and time left know nothing of tokens."""
    return tqdm(
        total=total,
        desc=title,
        position=position,
        leave=position == 0,
        bar_format="{desc} {percentage:3.0f}%|{bar}| {unit}",
        unit="",
        file=sys.stderr,
        dynamic_ncols=True,
    )


def duration(seconds: float) -> str:
    """A duration as people say it: "40 s", "12 min", "3 h 20 min"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"

"""Progress on stderr: a bar in prompt tokens with an honest ETA, or plain lines where there is no terminal."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from tqdm import tqdm

from harness.types import Cell

if TYPE_CHECKING:
    from harness.plan import Plan

_EVERY = 30.0  # seconds between plain lines


class Progress:
    """One bar for the whole plan, counted in prompt tokens (samples differ in cost by two orders of magnitude)."""

    def __init__(self, plan: Plan, *, quiet: bool = False) -> None:
        self.total = sum(plan.tokens.values())
        self.quiet = quiet
        self.terminal = sys.stderr.isatty()
        self.done = 0.0  # prompt tokens, by the plan's count
        self.sent = self.samples = 0
        self.count = sum(plan.cells.values())
        self.planned = {c: plan.tokens[c] / n for c, n in plan.cells.items() if n}
        self.worked = 0.0  # seconds spent answering: engine starts tell nothing about the rate
        self.last = self.spoken = time.monotonic()
        self.bar: tqdm | None = None

    def __enter__(self) -> Progress:
        if self.terminal and not self.quiet:
            self.bar = tqdm(total=self.total, unit="tok", unit_scale=True, file=sys.stderr, dynamic_ncols=True)
        return self

    def __exit__(self, *exc: object) -> None:
        if self.bar is not None:
            self.bar.close()

    def say(self, line: str) -> None:
        """One line of news."""
        if self.quiet:
            return
        if self.bar is not None:
            self.bar.write(line, file=sys.stderr)
        else:
            print(line, file=sys.stderr, flush=True)

    def resume(self) -> None:
        """Work goes on: the time since the last sample was spent otherwise (an engine was started)."""
        self.last = time.monotonic()

    def enter(self, cell: Cell) -> None:
        """The stream has come to `cell`."""
        if self.bar is not None:
            self.bar.set_description(f"{cell.model}, {cell.context}, {cell.task} {cell.length or ''}".rstrip())

    def advance(self, cell: Cell, prompt_tokens: int, answer_tokens: int, *, reused: bool = False) -> None:
        """One sample of `cell` is finished (or was found finished)."""
        now = time.monotonic()
        self.worked, self.last = self.worked + now - self.last, now
        planned = self.planned.get(cell, prompt_tokens)
        self.done += planned
        self.samples += 1
        self.sent += 0 if reused else prompt_tokens + answer_tokens
        if self.bar is not None:
            self.bar.update(planned)
            return
        if not self.quiet and now - self.spoken >= _EVERY:
            self.spoken = now
            rate = self.sent / max(self.worked, 1e-9)
            left = (self.total - self.done) / max(self.done, 1) * self.worked
            print(
                f"{self.samples}/{self.count} samples, {self.done / max(self.total, 1):.0%} of the tokens,"
                f" {rate:,.0f} tokens/s, about {left / 60:.0f} min left",
                file=sys.stderr,
                flush=True,
            )

"""Progress on stderr: one bar for the plan and one for the cell, or plain lines when stderr is not a terminal.

Rate and time left are not computed from samples, whose costs differ by two orders of magnitude: the rate is in tokens,
the time left in the work that `harness.run.costs` predicts, which a plan shows too.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import IO, TYPE_CHECKING

from tqdm import tqdm

from harness.run.estimate import Estimate, duration
from harness.text import counted
from harness.types import Cell

if TYPE_CHECKING:
    from harness.run.costs import Costs
    from harness.run.plan import Plan

_LINE_INTERVAL = 30.0  # seconds between plain lines
_DRAW_INTERVAL = 0.1  # seconds between two drawings of the bars
_TRUST = 0.05
"""How much the predicted speed counts beside the observed one: as much as this part of the plan, 30 s at most."""
_TICK = 1.0  # seconds between drawings while nothing finishes: the clocks in the lines go on


class Progress:
    """Counts and shows finished samples and work. `quiet`: print nothing. `clock`: seconds from any fixed point.

    `costs`: the predicted work of every cell; None: work is prompt tokens.

    `engines`: says how several engines stand (`harness.cluster`); an empty text adds nothing.

    A thread draws once a second, so that the clock of an engine's start and the time left go on while no sample
    finishes. All drawing happens under one lock.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        quiet: bool = False,
        clock: Callable[[], float] = time.monotonic,
        costs: Costs | None = None,
    ) -> None:
        self.clock = clock
        self.stream = own_stderr()
        self.terminal = self.stream.isatty()
        self.quiet = quiet
        self.engines: Callable[[], str] = str
        self._engine_of = plan.engine
        self.cells = dict(plan.cells)  # cell -> planned samples
        self.count = sum(plan.cells.values())
        self.costs, self.unit = costs, "tokens" if costs is None else "work"
        self.planned = (  # cell -> work per sample
            {c: plan.tokens[c] / n for c, n in plan.cells.items() if n} if costs is None else costs.weights()
        )
        self.total = sum(self.planned[c] * n for c, n in plan.cells.items() if n)
        self.samples: Counter[Cell] = Counter()  # cell -> finished samples, those of earlier sessions included
        self.done = 0.0  # work of all finished samples, as the plan counts it
        seconds = costs is not None and costs.measured
        starts = [known for m in costs.models.values() if (known := m.known.start)] if costs is not None else []
        self.estimate = Estimate(
            clock,
            start=sum(starts) / len(starts) if starts else 0.0,
            trust=min(30.0, _TRUST * self.total) if seconds else 0.0,
        )
        self.began = self.last_line = clock()
        self.ended: float | None = None
        self.last_drawn = 0.0
        self.plan_bar: tqdm | None = None
        self.cell_bar: tqdm | None = None
        self._shown: Cell | None = None  # the cell of the lower bar
        self._starting: list[str] = []  # the engines that are starting
        self._started: set[str] = set()  # the engines that were started
        self._lock = threading.RLock()
        self._ended = threading.Event()

    def __enter__(self) -> Progress:
        self.began = self.last_line = self.clock()
        if self.terminal and not self.quiet:
            self.plan_bar = _bar("plan", self.total or 1, 0, self.stream)
            self.cell_bar = _bar("", 1, 1, self.stream, "making the first samples")
        if not self.quiet:
            threading.Thread(target=self._tick_until_the_end, daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        self.ended = self.clock()
        with self._lock:
            if self.plan_bar is not None and self.samples.total() >= self.count:
                self.plan_bar.n = self.total or 1  # sums of fractions may end just below it
            for bar in (self.cell_bar, self.plan_bar):
                if bar is not None:
                    bar.refresh()
                    bar.close()
            self.plan_bar = self.cell_bar = None
            if self.stream is not sys.stderr:
                self.stream.close()
                self.stream = sys.stderr

    def say(self, line: str) -> None:
        """Print one line of text above the bars."""
        if self.quiet:
            return
        with self._lock:
            if self.plan_bar is not None:
                self.plan_bar.write(line, file=self.stream)
            else:
                print(line, file=self.stream, flush=True)

    def warn(self, line: str) -> None:
        """Print one line of text above the bars, also where the screen is quiet: something failed."""
        if self.quiet:
            print(line, file=self.stream, flush=True)
        else:
            self.say(line)

    def replan(self, counts: Mapping[Cell, int]) -> None:
        """Another round of samples: `counts` are the planned samples of these cells from now on."""
        if not counts:
            return
        with self._lock:
            self.cells.update(counts)
            self.count = sum(self.cells.values())
            self.total = int(sum(n * self.planned.get(cell, 0.0) for cell, n in self.cells.items()))
            if self.plan_bar is not None:
                self.plan_bar.total = max(self.total, 1)
        self._draw()

    def found(self, samples: int) -> None:
        """Say how many finished samples an earlier session has left; nothing for none."""
        if samples:
            self.say(f"found {samples:,} of {counted(f'{self.count:,}', 'sample')} finished")

    def predicted(self, seconds: float | None) -> None:
        """Say how long the session is predicted to take; nothing where that is not known."""
        if seconds is not None and self.costs is not None:
            sources = {m.known.source for m in self.costs.models.values() if m.measured}
            source = next(iter(sources)) if len(sources) == 1 else "earlier runs and calibrations"
            self.say(f"predicted to take about {duration(seconds)} (from {source})")

    @contextlib.contextmanager
    def starting(self, engine: str) -> Iterator[None]:
        """Within this, the engine of that name starts: a line with a clock, and no time of it in the rate."""
        if self.plan_bar is None:
            self.say(f"{engine}: starting vLLM")
        since = self.clock()
        with self._lock:
            self._starting.append(engine)
            self._started.add(engine)
            self.estimate.start_begins()
        self._draw()
        try:
            yield
        finally:
            with self._lock:
                self._starting.remove(engine)
                seconds = self.clock() - since
                self.estimate.start_ends()
        self.say(f"{engine}: vLLM started in {duration(seconds)}")

    def enter(self, cell: Cell) -> None:
        """The samples of `cell` come next; samples of the cell before may still be running."""
        if not self.samples:
            with self._lock:
                self._shown = cell
            self._draw()

    def advance(self, cell: Cell, prompt_tokens: int, answer_tokens: int, *, reused: bool = False) -> None:
        """Count one finished sample of `cell`. `reused`: an earlier session had finished it."""
        planned = self.planned.get(cell, prompt_tokens)
        with self._lock:
            self.samples[cell] += 1
            self.done += planned
            if reused:
                self.estimate.skip()
            else:
                self.estimate.count(planned, prompt_tokens + answer_tokens)
            self._shown = cell
            whole = self.samples[cell] >= self.cells.get(cell, 0)  # a finished bar is drawn full
            if self.plan_bar is not None:
                if whole or self.clock() - self.last_drawn >= _DRAW_INTERVAL:
                    self._draw()
            else:
                self._line()

    def left(self, engine: str, found: Mapping[Cell, int]) -> float:
        """Work of an engine that is not done. `found`: samples that earlier sessions have left, which come again."""
        return sum(
            self.planned.get(cell, 0.0) * max(0, n - max(self.samples[cell], found.get(cell, 0)))
            for cell, n in list(self.cells.items())
            if self._engine_of(cell) == engine
        )

    def standing(self) -> str:
        """For example "120/240 samples, 5,310 tokens/s, about 12 min left"; without a rate at the start."""
        text = f"{self.samples.total():,}/{self.count:,} samples"
        if (rate := self.estimate.rate()) is not None:
            text += f", {rate:,.0f} tokens/s"
        if self.estimate.scaled:
            unfinished = {self._engine_of(cell) for cell, planned in self.cells.items() if self.samples[cell] < planned}
            engines = len(unfinished - self._started)
            left = self.estimate.left(max(0.0, self.total - self.done), engines)
            text += f", about {duration(left)} left" if self.samples.total() < self.count else ""
        return "; ".join(filter(None, (text, self.engines())))

    def closing(self, sent: int, cached: int) -> str:
        """The session in a line: time, rate, and which part of the `sent` prompt tokens was `cached`."""
        parts = [f"took {duration((self.ended or self.clock()) - self.began)}"]
        if (rate := self.estimate.rate()) is not None:
            parts.append(f"{rate:,.0f} tokens/s while answering")
        if sent:
            parts.append(f"{cached / sent:.0%} of {sent:,} prompt tokens came from the prefix cache")
        return ", ".join(parts)

    # ------------------------------------------------------------------------------------------------- drawing

    def _tick_until_the_end(self) -> None:
        while not self._ended.wait(_TICK):
            with self._lock:
                if self._ended.is_set():
                    return
                if self.plan_bar is not None:
                    self._draw()
                else:
                    self._line()

    def _line(self) -> None:
        """A plain line, where the last one is old enough."""
        now = self.clock()
        if self.quiet or now - self.last_line < _LINE_INTERVAL:
            return
        self.last_line = now
        if self._starting and self.estimate.starting:
            self.say(f"starting vLLM on {', '.join(self._starting)}, {duration(self.estimate.starting_for())}")
        else:
            share = min(1.0, self.done / (self.total or 1))
            self.say(f"{share:.0%} of the {self.unit}, {self.standing()}")

    def _draw(self) -> None:
        """Draw both bars."""
        with self._lock:
            if self.plan_bar is None or self.cell_bar is None:
                return
            self.last_drawn = self.clock()
            self.plan_bar.unit = self.standing()
            whole = self.samples.total() >= self.count
            self.plan_bar.n = (self.total or 1) if whole else min(self.done, self.total or 1)
            if self._starting and self.estimate.starting:
                model = ", ".join(self._starting).replace("{", "{{").replace("}", "}}")  # tqdm formats the text
                clock = duration(self.estimate.starting_for())
                self.cell_bar.bar_format = f"starting vLLM on {model}, {clock}"
            elif (cell := self._shown) is not None:
                self.cell_bar.bar_format = _FORMAT
                n, count = self.samples[cell], self.cells.get(cell, 0)
                self.cell_bar.total, self.cell_bar.n = max(count, 1), n
                self.cell_bar.set_description_str(
                    f"{cell.model}, {cell.context}, {cell.task} {cell.length or ''}".rstrip(), refresh=False
                )
                self.cell_bar.unit = f"{n:,}/{count:,}"
            self.plan_bar.refresh()
            self.cell_bar.refresh()


_FORMAT = "{desc} {percentage:3.0f}%|{bar}| {unit}"


def own_stderr() -> IO[str]:
    """Standard error under a file descriptor of its own.

    Descriptor 2 may lead elsewhere while an engine starts, because the engine's processes inherit it.
    """
    try:
        if sys.stderr.fileno() != 2:  # a test or a notebook has replaced it
            return sys.stderr
        return open(os.dup(2), "w", buffering=1, encoding=sys.stderr.encoding, errors="backslashreplace")
    except (AttributeError, OSError, ValueError):
        return sys.stderr


def _bar(title: str, total: float, position: int, stream: IO[str], shown: str | None = None) -> tqdm:
    """A bar whose `unit` is the text to its right, in place of tqdm's own rate, which would count samples alike.

    `shown`: text in place of the bar, until there is something to count.
    """
    return tqdm(
        total=total,
        desc=title,
        position=position,
        leave=position == 0,
        bar_format=shown or _FORMAT,
        unit="",
        file=stream,
        dynamic_ncols=True,
    )

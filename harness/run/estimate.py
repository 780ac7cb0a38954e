"""The rate of a session and the time that it still takes, from planned work, the clock and the engine starts."""

from __future__ import annotations

from collections.abc import Callable


class Estimate:
    """`clock`: seconds from any fixed point.

    `start`: seconds that an engine usually takes to start; 0: not known before the first one. `trust`: where planned
    work is in seconds, how many of them the plan's own speed counts as; 0: planned work has no scale.

    The rate is about answering alone: engine starts and samples of earlier sessions are not in it. Between two samples
    the time left counts down. Where a sample takes much longer than those before it, the rate of what is left falls, so
    that the time left grows again and never stands still.
    """

    def __init__(self, clock: Callable[[], float], *, start: float = 0.0, trust: float = 0.0) -> None:
        self._clock, self._usual_start, self._trust = clock, start, trust
        self._last = clock()  # when the last sample finished, or the last start ended
        self._planned = 0.0  # work of this session, as the plan counts it
        self._sent = 0  # prompt and answer tokens of this session, as they were
        self._samples = 0
        self._worked = 0.0  # seconds of answering
        self._started: list[float] = []  # seconds of every engine start
        self._begun: float | None = None  # when the start that goes on began

    def count(self, planned: float, sent: int) -> None:
        """One sample was answered: its work as planned, and all its tokens as they were."""
        now = self._clock()
        self._begun = None  # another model's engine answers while one starts: the time is one of answering
        self._worked += now - self._last
        self._planned += planned
        self._sent += sent
        self._samples += 1
        self._last = now

    def skip(self) -> None:
        """One sample was there already."""
        self._last = self._clock()

    def start_begins(self) -> None:
        """An engine starts. Of several that start at once, the first one counts."""
        if self._begun is None:
            self._begun = self._clock()

    def start_ends(self) -> float:
        """The engine is there, or failed. Returns the seconds that it took; 0 where others have answered meanwhile."""
        if self._begun is None:
            return 0.0
        now = self._clock()
        took = now - self._begun
        self._started.append(took)
        self._begun, self._last = None, now
        return took

    @property
    def starting(self) -> bool:
        """Whether an engine starts, and none answers."""
        return self._begun is not None

    def starting_for(self) -> float:
        """Seconds since the start that goes on began; 0 where none goes on."""
        return 0.0 if self._begun is None else self._clock() - self._begun

    def rate(self) -> float | None:
        """Prompt and answer tokens per second of answering; None before this session has answered anything."""
        return self._sent / self._worked if self._planned and self._worked > 0 else None

    @property
    def scaled(self) -> bool:
        """Whether `left` is known: something was answered, or planned work is in seconds."""
        return self.rate() is not None or self._trust > 0

    def left(self, work: float, engines: int = 0) -> float:
        """Seconds for that much work (as the plan counts it) and so many engines that are to start later.

        A start is taken to last as long as the mean of those so far. Only where `scaled`.
        """
        start = sum(self._started) / len(self._started) if self._started else self._usual_start
        later = engines * start
        answering = work * self._pace(self._worked)
        if self._begun is not None:
            return answering + later + max(0.0, start - self.starting_for())
        if not self._samples:
            return answering + later
        idle = self._clock() - self._last
        usual = 2 * self._worked / self._samples
        if idle > usual:  # a longer sample than before: count its time as work
            answering = work * self._pace(self._worked + idle - usual)
            idle = usual
        return max(0.0, answering - idle) + later

    def _pace(self, worked: float) -> float:
        """Seconds per unit of planned work, where so many seconds were worked."""
        return (worked + self._trust) / (self._planned + self._trust)


def duration(seconds: float) -> str:
    """A duration in words: "40 s", "12 min", "3 h 20 min"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"

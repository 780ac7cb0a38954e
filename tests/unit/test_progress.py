"""Progress of a run: two bars on a terminal, plain lines elsewhere, and a time left that is computed from tokens."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.run.estimate import Estimate, duration
from harness.run.progress import Progress
from harness.types import Cell
from tests.support.terminal import in_terminal

LONG, SHORT = Cell("m", "c", "ruler", "vt", 131072), Cell("m", "c", "ruler", "vt", 4096)


def plan(**counts: int) -> Any:
    """The part of a plan that `Progress` reads: samples and prompt tokens of every cell."""
    cells = {LONG: counts["long"], SHORT: counts["short"]}
    tokens = {c: n * c.length for c, n in cells.items()}
    return SimpleNamespace(cells=cells, engine=lambda cell: cell.model, tokens=tokens)


class Clock:
    """A clock that a test sets."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_the_time_left_is_computed_from_tokens_not_from_samples() -> None:
    clock = Clock()
    shown = Progress(plan(long=10, short=10), quiet=True, clock=clock)
    for _ in range(10):  # half of the samples, but 97% of the work
        clock.now += 32
        shown.advance(LONG, 131072, 0)
    assert shown.standing() == "10/20 samples, 4,096 tokens/s, about 10 s left"
    for _ in range(10):
        clock.now += 1
        shown.advance(SHORT, 4096, 0)
    assert shown.standing() == "20/20 samples, 4,096 tokens/s", "nothing is left"


def test_cached_samples_and_engine_starts_do_not_change_the_rate() -> None:
    clock = Clock()
    shown = Progress(plan(long=10, short=10), quiet=True, clock=clock)
    for _ in range(5):
        shown.advance(LONG, 131072, 0, reused=True)
    assert shown.standing() == "5/20 samples", "no rate before this session has one"
    with shown.starting("m"):
        clock.now += 300
    clock.now += 32
    shown.advance(LONG, 131072, 0)
    left = round((4 * 131072 + 10 * 4096) / 4096 / 60)
    assert shown.standing() == f"6/20 samples, 4,096 tokens/s, about {left} min left"


def test_plain_lines_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    for quiet in (False, True):
        clock = Clock()
        with Progress(plan(long=4, short=0), quiet=quiet, clock=clock) as shown:
            shown.enter(LONG)
            for _ in range(4):
                clock.now += 16
                shown.advance(LONG, 131000, 72)
            shown.say("news")
        err = capsys.readouterr().err
        if quiet:
            assert err == ""
        else:
            assert err.splitlines() == [
                "50% of the tokens, 2/4 samples, 8,192 tokens/s, about 32 s left",
                "100% of the tokens, 4/4 samples, 8,192 tokens/s",
                "news",
            ]
            assert "\r" not in err
            assert "\x1b" not in err


def test_time_left_never_freezes_while_no_sample_finishes() -> None:
    clock = Clock()
    estimate = Estimate(clock)
    for _ in range(4):
        clock.now += 10
        estimate.count(100, 100)
    left = []
    for _ in range(60):
        left.append(estimate.left(1000))
        clock.now += 1
    assert left[:3] == [100, 99, 98], "it counts down"
    assert all(a != b for a, b in itertools.pairwise(left)), "it never stands still"
    assert left[-1] > left[21], "a sample that takes longer than all before raises it"


def test_while_another_model_answers_an_engine_start_is_time_of_answering() -> None:
    clock = Clock()
    cells = {LONG: 4, Cell("other", "c", "ruler", "vt", 4096): 4}
    made = SimpleNamespace(cells=cells, engine=lambda cell: cell.model, tokens=dict.fromkeys(cells, 4 * 4096))
    shown = Progress(made, quiet=True, clock=clock)  # type: ignore[arg-type]
    with shown.starting("a"), shown.starting("other"):  # both at once: no time of it in the rate
        clock.now += 100
    clock.now += 10
    shown.advance(LONG, 4000, 0)
    assert shown.estimate.rate() == 400
    with shown.starting("other"):
        clock.now += 10
        shown.advance(LONG, 4000, 0)
        assert not shown.estimate.starting  # the line tells of the answers
        clock.now += 10
    shown.advance(LONG, 4000, 0)
    assert shown.estimate.rate() == 400
    assert shown.left(LONG.model, {}) == 4096
    assert shown.left("other", {}) == 4 * 4096
    assert shown.left("other", dict.fromkeys(cells, 3)) == 4096


def test_engine_starts_to_come_are_in_the_time_left() -> None:
    clock = Clock()
    other = Cell("other", "c", "ruler", "vt", 4096)
    cells = {LONG: 2, other: 2}
    made = SimpleNamespace(cells=cells, engine=lambda cell: cell.model, tokens=dict.fromkeys(cells, 2 * 4096))
    shown = Progress(made, quiet=True, clock=clock)  # type: ignore[arg-type]
    with shown.starting("m"):
        clock.now += 60
    assert shown.standing() == "0/4 samples", "no rate yet"
    for _ in range(2):
        clock.now += 10
        shown.advance(LONG, 4096, 0)
    assert shown.standing().endswith("about 80 s left"), "two samples of 10 s, and the start of the other model"
    with shown.starting("other"):
        clock.now += 50
        assert shown.standing().endswith("about 30 s left")
        clock.now += 50
        assert shown.standing().endswith("about 20 s left"), "a start that takes longer than the first one"
    clock.now += 5
    assert shown.standing().endswith("about 15 s left")


def test_plain_lines_of_a_slow_start_and_the_closing_line(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with Progress(plan(long=2, short=2), clock=clock) as shown:
        shown.found(3)
        shown.found(0)
        with shown.starting("m"):
            clock.now += 29
            shown._line()
            clock.now += 2
            shown._line()
        clock.now += 32
        shown.advance(LONG, 131000, 72)
    assert capsys.readouterr().err.splitlines() == [
        "found 3 of 4 samples finished",
        "m: starting vLLM",
        "starting vLLM on m, 31 s",
        "m: vLLM started in 31 s",
        "48% of the tokens, 1/4 samples, 4,096 tokens/s, about 34 s left",
    ]
    assert shown.closing(131000, 32750) == (
        "took 63 s, 4,096 tokens/s while answering, 25% of 131,000 prompt tokens came from the prefix cache"
    )


def test_durations() -> None:
    assert [duration(s) for s in (0.4, 89, 90, 720, 5940, 12_000)] == [
        "0 s", "89 s", "2 min", "12 min", "99 min", "3 h 20 min",
    ]  # fmt: skip


BARS = """
import time
from types import SimpleNamespace
from harness.run.progress import Progress
from harness.types import Cell
cells = {Cell("base", "YaRN", "ruler", "vt", n): 6 for n in (8192, 4096)}
with Progress(SimpleNamespace(cells=cells, engine=lambda c: c.model, tokens={c: 6 * c.length for c in cells})) as shown:
    shown.found(2)
    with shown.starting("ba{se}"):
        time.sleep(2.5)
    for cell in cells:
        shown.enter(cell)
        for i in range(6):
            time.sleep(0.03)  # faster than bars are drawn
            shown.advance(cell, cell.length, 10)
        time.sleep(0.2)
        shown.say("news of it")
    time.sleep(0.2)
"""


@pytest.mark.parametrize("columns", [120, 80, 44])
def test_a_bar_for_the_plan_and_one_for_the_cell(columns: int) -> None:
    root = Path(__file__).resolve().parents[2]
    screens, code = in_terminal(["-c", BARS], cwd=root, columns=columns)
    assert code == 0
    assert all(len(row) <= columns for screen in screens for row in screen)
    both = [s for s in screens if any(r.startswith("plan ") for r in s) and any(r.startswith("base, YaRN") for r in s)]
    assert both, "two bars at a time"
    if columns > 100:
        text = "\n".join("\n".join(screen) for screen in both)
        assert "base, YaRN, vt 8192 100%|" in text, "a finished bar is full"
        assert "base, YaRN, vt 4096 100%|" in text
        assert " 6/6" in text
        assert "tokens/s, about " in text
    clocks = {row for screen in screens for row in screen if row.startswith("starting vLLM on ba{se}, ")}
    assert {int(row.split()[-2]) for row in clocks} >= {0, 1, 2}, "the clock goes on while the engine starts"
    last = screens[-1]
    said = ["found 2 of 12 samples finished"[:columns]]
    assert [row for row in last if row][-4].startswith("ba{se}: vLLM started in ")
    assert [row for row in last if row][-3:-1] == ["news of it", "news of it"]
    assert [row for row in last if row][-1].startswith("plan 100%|")
    assert last[0][:columns] == said[0]
    assert not any(row.startswith("base") for row in last), "the bar of the cell is removed at the end"

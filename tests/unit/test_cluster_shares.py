"""How engines are divided among models, and threads of which one works at a time."""

from __future__ import annotations

import itertools
import random
import threading
import time

import pytest

from harness.cluster.shares import Share, divide, usable
from harness.cluster.turn import LaneStopped, Turn


@pytest.mark.parametrize("seed", range(20))
def test_no_other_division_of_whole_engines_is_done_earlier(seed: int) -> None:
    chance = random.Random(seed)
    work = {label: chance.choice([1.0, 3.0, 10.0, 50.0]) for label in "abc"}
    most = {label: chance.randrange(1, 9) for label in "abc"}
    engines = chance.randrange(3, 12)
    shares = divide(engines, work, most)
    assert all(1 <= shares[label] <= most[label] for label in work)
    assert sum(shares.values()) == min(engines, sum(most.values()))
    best = min(
        max(work[label] / n for label, n in zip("abc", counts, strict=True))
        for counts in itertools.product(*(range(1, most[label] + 1) for label in "abc"))
        if sum(counts) <= engines
    )
    assert max(work[label] / shares[label] for label in work) == pytest.approx(best)


def test_engines_are_given_in_the_order_of_the_plan_and_nobody_loses_one() -> None:
    assert divide(2, {"a": 1.0, "b": 5.0, "c": 5.0}, dict.fromkeys("abc", 9)) == {"a": 1, "b": 1, "c": 0}
    assert divide(4, {"a": 1.0, "b": 9.0}, {"a": 9, "b": 9}, {"a": 3, "b": 1}) == {"a": 3, "b": 1}
    assert divide(6, {"a": 1.0, "b": 9.0}, {"a": 9, "b": 9}, {"a": 3, "b": 1}) == {"a": 3, "b": 3}


def test_a_model_uses_as_many_engines_as_shorten_its_time() -> None:
    assert usable(100.0, 1.0, 500) == 100
    assert usable(100.0, 30.0, 500) == 4  # the longest request takes a third of all
    assert usable(100.0, 1.0, 7) == 7
    assert usable(0.0, 0.0, 0) == 1


def test_an_engine_joins_a_model_only_where_it_answers_for_longer_than_it_starts() -> None:
    left = [100.0]
    share = Share(lambda: left[0], 9)
    assert share.worth_more(0.0)
    share.begins(10.0, start_seconds=20.0)
    left[0] = 50.0
    assert not share.worth_more(40.0)  # 30 s are left
    assert share.worth_more(60.0)  # 50 s are left


def test_one_thread_works_at_a_time_and_stop_ends_each_where_it_waits() -> None:
    turn, working, seen, ends = Turn(), [0], [], []

    def lane(name: str) -> None:
        with turn:
            try:
                while True:
                    working[0] += 1
                    seen.append((name, working[0]))
                    time.sleep(0.001)
                    working[0] -= 1
                    with turn.released():
                        time.sleep(0.001)
            except LaneStopped:
                ends.append(name)
                with turn.released():  # it may wait while it cleans up
                    pass

    threads = [threading.Thread(target=lane, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    turn.stop()
    for thread in threads:
        thread.join(timeout=5)
    assert {name for name, _ in seen} == {"a", "b"}
    assert {count for _, count in seen} == {1}
    assert sorted(ends) == ["a", "b"]
    with turn.released():  # a thread that has not the turn: nothing happens
        pass

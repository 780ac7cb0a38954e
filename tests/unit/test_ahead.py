"""An engine that starts in a thread while another one works: taken, started again, abandoned."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from harness.config import ContextSetting
from harness.engine.requests import EngineError
from harness.engine.vllm_api import CORE_PROCESS
from harness.run import ahead as module
from harness.run.ahead import Ahead, fit_side_by_side
from harness.types import GatedevalError

ONE, TWO = [ContextSetting(label="native")], [ContextSetting(label="long", rope_theta=1e6, max_length=1024)]


class Started:
    """Stands in for an engine."""

    def __init__(self, label: str) -> None:
        self.label, self.closed = label, threading.Event()
        self.thread = threading.current_thread().name

    def close(self) -> None:
        self.closed.set()


class Starter:
    """Starts engines; in a thread only after `go`; each label in `failures` fails so many times."""

    def __init__(self, failures: dict[str, int] | None = None, error: type[Exception] = EngineError) -> None:
        self.started: list[Started] = []
        self.go, self.running = threading.Event(), 0
        self.failures, self.error = failures or {}, error

    def __call__(self, label: str, settings: Sequence[ContextSetting]) -> Any:
        self.running += 1
        assert self.running == 1, "two engines start at one time"
        if threading.current_thread() is not threading.main_thread():
            assert self.go.wait(10)
        self.running -= 1
        if self.failures.get(label):
            self.failures[label] -= 1
            raise self.error(f"no room for {label}")
        self.started.append(Started(label))
        return self.started[-1]


def test_the_next_engine_starts_while_the_present_one_works() -> None:
    start = Starter()
    with Ahead(start) as ahead:
        first: Any = ahead.take("a", ONE)
        ahead.begin("b", ONE)
        ahead.begin("b", ONE)  # begun already
        start.go.set()
        second: Any = ahead.take("b", ONE)
    assert [(first.label, first.thread), (second.label, second.thread)] == [("a", "MainThread"), ("b", "start-ahead")]
    assert not first.closed.is_set()
    assert not second.closed.is_set()
    assert len(start.started) == 2


def test_an_engine_for_other_settings_is_no_substitute() -> None:
    """A model that needs an engine per setting starts its second one while the next model's starts: one at a time."""
    start = Starter()
    with Ahead(start) as ahead:
        ahead.take("a", ONE)
        ahead.begin("b", ONE)
        threading.Timer(0.05, start.go.set).start()
        again: Any = ahead.take("a", TWO)
        ahead.begin("b", ONE)
        other: Any = ahead.take("b", ONE)
    assert (again.thread, other.thread) == ("MainThread", "start-ahead")
    assert sorted(engine.label for engine in start.started) == ["a", "a", "b"]


def test_an_engine_that_found_no_room_beside_the_other_is_started_again() -> None:
    start = Starter({"b": 1})
    start.go.set()
    with Ahead(start) as ahead:
        ahead.begin("b", ONE)
        engine: Any = ahead.take("b", ONE)
        assert engine.thread == "MainThread"
        start.failures["c"] = 2
        ahead.begin("c", ONE)
        with pytest.raises(EngineError, match="no room for c"):
            ahead.take("c", ONE)


def test_another_error_of_the_start_is_raised_where_the_engine_is_asked_for() -> None:
    start = Starter({"b": 1}, GatedevalError)
    start.go.set()
    with Ahead(start) as ahead:
        ahead.begin("b", ONE)
        with pytest.raises(GatedevalError, match="no room for b"):
            ahead.take("b", ONE)


def test_an_engine_that_nobody_takes_is_stopped() -> None:
    start = Starter()
    start.go.set()
    with Ahead(start, end=lambda: None) as ahead:
        ahead.begin("b", ONE)
    assert start.started[0].closed.is_set()


def test_a_start_that_goes_on_is_ended_before_the_user_is_told_what_happened() -> None:
    """While an engine starts, standard error leads to its log: a message after a Ctrl-C would be lost there."""
    start = Starter({"b": 1})
    with contextlib.suppress(KeyboardInterrupt), Ahead(start, end=start.go.set) as ahead:
        ahead.begin("b", ONE)
        begun = ahead._begun
        raise KeyboardInterrupt
    assert begun is not None
    assert begun.over.is_set()
    assert str(begun.error) == "no room for b"
    assert not start.started


def test_only_cpu_engines_with_room_for_both_run_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    def plan(kind: str, known: bool = True) -> Any:
        memory = SimpleNamespace(devices=SimpleNamespace(kind=kind)) if known else None
        return SimpleNamespace(longest_memory=lambda label: memory, config=SimpleNamespace(engine="options"))

    monkeypatch.delenv(CORE_PROCESS, raising=False)
    monkeypatch.setattr(module, "options_beside", lambda memories, options: options)
    assert fit_side_by_side(plan("cpu"), "a", "b")
    assert not fit_side_by_side(plan("gpu"), "a", "b")
    assert not fit_side_by_side(plan("cpu", known=False), "a", "b")
    monkeypatch.setenv(CORE_PROCESS, "0")
    assert not fit_side_by_side(plan("cpu"), "a", "b")
    monkeypatch.delenv(CORE_PROCESS)
    monkeypatch.setattr(module, "options_beside", lambda memories, options: None)
    assert not fit_side_by_side(plan("cpu"), "a", "b")

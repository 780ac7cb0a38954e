"""A pool of engines behaves as one engine does, whatever happens to its engines. Processes are threads here."""

from __future__ import annotations

import dataclasses
import time
from array import array
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from harness.cluster import pool as pools
from harness.cluster.member import State
from harness.cluster.node import description
from harness.cluster.pool import Pool
from harness.cluster.standing import standing
from harness.cluster.wire import pack, unpack
from harness.config import ContextSetting, EngineOptions, Model
from harness.engine import probing
from harness.engine.requests import Answer, Completion, EngineError, Failure, Prompt, Question, SelfCheckError
from harness.types import GatedevalError
from tests.support.pool_engine import DEADLY, REFUSED, SLOW, PoolEngine, expected
from tests.support.thread_backend import Process, ThreadBackend

MODEL = Model(label="m", path="nowhere")
NATIVE, YARN = ContextSetting(label="native"), ContextSetting(label="YaRN", rope_theta=1e6)


@pytest.fixture(autouse=True)
def _plain_engines() -> Iterator[None]:
    yield
    PoolEngine.cannot_start, PoolEngine.refused = "", set()


def pool(backend: ThreadBackend, **more: Any) -> Pool:
    return Pool(backend, MODEL, [NATIVE, YARN], EngineOptions(), **more)


def prompts(count: int, first: int = 1) -> list[Prompt]:
    return [Prompt(f"sample {n}", array("I", [first, n, n + 1, 5]), 8 + n % 3, ("\n",)) for n in range(count)]


def texts(answers: list[Answer | Failure]) -> dict[Any, Any]:
    """key -> the answer's text. Every key once."""
    found = {a.key: a.text for a in answers if isinstance(a, Completion)}
    assert len(found) == sum(isinstance(a, Completion) for a in answers)
    return found


def all_ready(pool: Pool) -> None:
    pool._wait_for(lambda: all(m.state is State.READY for m in pool.members))


def test_requests_travel_as_they_are_at_four_bytes_a_token() -> None:
    context, other = tuple(range(70_000, 70_300)), (4, 5)
    options = ((context, (7,)), (context, (8, 9)), (other, (1,)))
    asked = [Prompt("p", array("I", range(5000)), 3, ("a", "b"), 0.5, (2, 3)), Question("q", options, rolling=True)]
    entries, ids = pack(enumerate(asked))
    assert ids.dtype == np.int32
    assert ids.nbytes == 4 * (5000 + 300 + 2)
    first, second = unpack((entries, ids))
    assert isinstance(first, Prompt)
    assert isinstance(second, Question)
    assert (list(first.ids), first.max_tokens, first.stop) == (list(range(5000)), 3, ("a", "b"))
    assert (first.temperature, first.stop_ids, str(first.key)) == (0.5, (2, 3), "p")
    assert (second.options, second.rolling, str(second.key)) == (options, True, "q")
    sent = [[f.name for f in dataclasses.fields(kind)] for kind in (Prompt, Question)]
    assert sent == [["key", "ids", "max_tokens", "stop", "temperature", "stop_ids"], ["key", "options", "rolling"]], (
        "a new field of a request has to travel, too"
    )


def test_every_request_is_answered_once_and_both_engines_work() -> None:
    question = Question("which", (((1, 2), (3,)), ((1, 2), (4, 5))))
    engines = pool(ThreadBackend())
    all_ready(engines)
    asked = prompts(300)
    answers = list(engines.answer([*asked[:150], None, question, None, *asked[150:]]))
    choice = next(a for a in answers if a.key == "which")
    assert choice.logprobs == expected(question)  # type: ignore[union-attr]
    assert texts(answers) == {p.key: expected(p) for p in asked}
    assert {a.engine for a in answers if isinstance(a, Completion)} == {"engine 1", "engine 2"}
    entries = engines.facts["engines"]
    assert sum(entry["answers"] for entry in entries) == 301
    assert engines.facts["model_class"] == "PoolEngine"


def test_an_engine_that_is_killed_is_replaced_and_nothing_is_lost_or_doubled() -> None:
    backend, said = ThreadBackend(delays={1: 0.05, 2: 0.05}), []
    engines = pool(backend, say=said.append)
    all_ready(engines)
    asked, answers = prompts(400), []
    for answer in engines.answer(iter(asked)):
        answers.append(answer)
        if len(answers) in (20, 90, 170):
            backend.alive()[0].die()
    assert texts(answers) == {p.key: expected(p) for p in asked}
    assert engines.restarts == 3
    assert len(backend.processes) == 5
    assert sum("died: signal 9" in line and "another one is started" in line for line in said) == 3
    assert "3 restarts" in standing([engines])
    assert sum("died" in entry for entry in engines.facts["engines"]) == 3


@pytest.mark.parametrize("engine_count", [1, 3])
def test_a_request_that_kills_engines_is_named_and_all_others_are_answered(engine_count: int) -> None:
    asked = prompts(60)
    asked[17] = Prompt("the poisoned one", array("I", [DEADLY, 1]), 4)
    backend, said = ThreadBackend(engine_count), []
    engines = pool(backend, say=said.append)
    all_ready(engines)
    answers = list(engines.answer(iter(asked)))
    [failure] = [a for a in answers if isinstance(a, Failure)]
    assert failure.key == "the poisoned one"
    assert "the poisoned one: engines die on this request" in failure.error
    assert "a token killed it" in failure.error
    assert texts(answers) == {p.key: expected(p) for p in asked if p.key != "the poisoned one"}
    assert 4 <= engines.restarts <= 12


def test_a_request_that_an_engine_gives_up_on_fails_alone() -> None:
    asked = prompts(60)
    asked[30] = Prompt("odd", array("I", [REFUSED, 1]), 4)
    backend = ThreadBackend()
    engines = pool(backend)
    answers = list(engines.answer(iter(asked)))
    assert [a.error for a in answers if isinstance(a, Failure)] == ["odd: the engine gave up"]
    assert texts(answers) == {p.key: expected(p) for p in asked if p.key != "odd"}
    assert engines.restarts == 0
    assert len(backend.processes) == 2


def test_an_engine_that_comes_late_gets_work() -> None:
    backend = ThreadBackend(1)
    engines = pool(backend)
    engines._next_look = 0.0
    answers = []
    for answer in engines.answer(iter(prompts(12, first=SLOW) + prompts(40))):
        answers.append(answer)
        if len(answers) == 1:
            backend.engines, engines._next_look = 2, 0.0
    assert len(answers) == 52
    assert {a.engine for a in answers if isinstance(a, Completion)} == {"engine 1", "engine 2"}


def test_a_slow_engine_does_not_hold_the_end() -> None:
    backend = ThreadBackend(delays={2: 3.0})
    engines = pool(backend)
    all_ready(engines)
    asked, since = prompts(40), time.monotonic()
    answers = list(engines.answer(iter(asked)))
    assert time.monotonic() - since < 2.0
    assert texts(answers) == {p.key: expected(p) for p in asked}
    # and what the slow one still answers is not taken for an answer of the next stream
    again = list(engines.answer(iter(prompts(20))))
    assert texts(again) == {p.key: expected(p) for p in prompts(20)}


def test_engines_change_the_context_setting_together_and_check_themselves() -> None:
    engines = pool(ThreadBackend())
    engines.self_check()
    assert engines.can_switch_to(YARN)
    engines.set_context(YARN)
    engines.self_check()
    all_ready(engines)
    assert [m.handle.worker._engine.setting.label for m in engines.members] == ["YaRN", "YaRN"]
    PoolEngine.refused = {"native"}
    engines.set_context(NATIVE)
    with pytest.raises(SelfCheckError, match="no number"):
        engines.self_check()
    engines.set_context(YARN)  # the engines are right under another setting
    engines.self_check()
    assert len(list(engines.answer(prompts(5)))) == 5


def test_a_model_that_no_engine_starts_on_fails_at_once_with_its_error() -> None:
    PoolEngine.cannot_start = "vLLM did not start: out of memory"
    backend = ThreadBackend(3)
    with pytest.raises(EngineError, match="out of memory"):
        pool(backend)
    assert len(backend.processes) == 3
    assert not backend.alive()


def test_engines_that_all_die_on_everything_end_with_an_error() -> None:
    backend = ThreadBackend()
    engines = pool(backend)
    with pytest.raises(EngineError, match="a token killed it"):
        list(engines.answer(iter(prompts(200, first=DEADLY))))


def test_a_process_that_dies_while_its_engine_starts_is_replaced() -> None:
    backend = ThreadBackend(1)
    died: list[Process] = []

    def die_first(process: Process) -> None:
        if not died:
            died.append(process)
            process.die()

    backend.on_spawn = die_first
    engines = pool(backend)
    assert len(list(engines.answer(iter(prompts(5))))) == 5
    assert len(backend.processes) == 2


def test_a_node_without_the_model_is_named() -> None:
    backend = ThreadBackend(2)
    backend.describes = {2: {"host": "node-b", "node": "b"}}
    check = [{**MODEL.model_dump(), "fingerprint": "f"}]
    with pytest.raises(GatedevalError, match=r"model 'm': nowhere does not exist.*same path"):
        pool(backend, check=check)


def test_a_node_with_another_version_is_named() -> None:
    backend = ThreadBackend(1)  # with another node whose engine is ready first, this one would be left out instead
    backend.describes = {1: {"host": "node-b", "versions": {"vllm": "0.1"}}}
    with pytest.raises(GatedevalError, match=r"node-b has vllm 0\.1, this machine has .*same versions"):
        all_ready(pool(backend, node=description()))


def test_a_node_that_comes_late_and_lacks_the_model_is_left_out() -> None:
    backend, said = ThreadBackend(1), []
    engines = pool(backend, say=said.append)
    all_ready(engines)
    backend.describes = {2: {"host": "node-b", "node": "b"}}
    engines.check = [{**MODEL.model_dump(), "fingerprint": "f"}]
    backend.engines, engines._next_look = 2, 0.0
    asked = prompts(12, first=SLOW)
    assert texts(list(engines.answer(iter(asked)))) == {p.key: expected(p) for p in asked}
    assert [line for line in said if "left out: node-b: model 'm'" in line]
    assert len(backend.alive()) == 1


def test_processes_serve_one_model_after_the_other() -> None:
    backend = ThreadBackend()
    engines = pool(backend)
    list(engines.answer(iter(prompts(10))))
    engines.close()
    following = Pool(backend, Model(label="n", path="n"), [NATIVE], EngineOptions(), roster=engines.roster)
    answers = list(following.answer(iter(prompts(10))))
    assert texts(answers) == {p.key: expected(p) for p in prompts(10)}
    assert len(backend.processes) == 2


def test_a_stream_that_is_left_early_leaves_nothing_running() -> None:
    engines = pool(ThreadBackend())
    stream = engines.answer(iter(prompts(200, first=SLOW)))
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    answers = list(engines.answer(iter(prompts(10))))
    assert texts(answers) == {p.key: expected(p) for p in prompts(10)}


def test_a_text_is_probed_in_one_of_the_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(engine: PoolEngine, plan: str) -> str:
        if plan == "deadly":
            backend.processes[0].die()
        return f"{plan} under {engine.setting.label}"

    monkeypatch.setattr(probing, "probe", measured)
    backend = ThreadBackend(2)
    engines = pool(backend)
    assert not engines.eager
    all_ready(engines)
    engines.set_context(YARN)
    assert engines.probe("text") == "text under YaRN"  # type: ignore[arg-type, comparison-overlap]
    all_ready(engines)
    with pytest.raises(EngineError, match=r"engine 1.* died: signal 9"):
        engines.probe("deadly")  # type: ignore[arg-type]
    assert len(list(engines.answer(prompts(5)))) == 5


def test_prompts_are_taken_as_they_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "AHEAD_TOKENS", 100_000)
    monkeypatch.setattr(pools, "MOST_AHEAD_TOKENS", 100_000)
    taken: list[int] = []

    def long_prompts() -> Iterator[Prompt]:
        for n in range(100):
            taken.append(n)
            yield Prompt(n, array("I", [SLOW]) + array("I", bytes(4 * 99_999)), 1)

    engines = pool(ThreadBackend(1))
    stream = engines.answer(long_prompts())
    next(stream)
    assert len(taken) < 20
    stream.close()  # type: ignore[attr-defined]

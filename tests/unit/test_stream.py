"""The stream of requests into vLLM and the arguments it is started with, on a simulated vLLM engine."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.config import ContextSetting, Model
from harness.engine.requests import EngineError
from harness.engine.start import kv_cache_gib, vllm_arguments
from harness.engine.stream import InFlight, RequestStream, one_line, watch_engine_process
from harness.models.checkpoint import inspect
from harness.models.tiny import make_tiny
from harness.rope.context import overrides
from tests.support.engines import EAGER

WIDE = InFlight(requests=1000, prompt_tokens=10**9)


class SimulatedVllm:
    """Finishes one request per step, the oldest first; records what it was given."""

    def __init__(self, dies_at_step: int | None = None) -> None:
        self.waiting: deque[tuple[str, int]] = deque()
        self.aborted: list[str] = []
        self.steps = self.most_tokens = self.most_requests = 0
        self.dies_at_step = dies_at_step

    def add_request(self, name: str, prompt: dict[str, list[int]], params: Any) -> None:
        self.waiting.append((name, len(prompt["prompt_token_ids"])))
        self.most_requests = max(self.most_requests, len(self.waiting))
        self.most_tokens = max(self.most_tokens, sum(size for _, size in self.waiting))

    def step(self) -> list[Any]:
        self.steps += 1
        if self.steps == self.dies_at_step:
            raise RuntimeError("no memory\nleft")
        name, _ = self.waiting.popleft()
        return [SimpleNamespace(finished=True, request_id=name)]

    def abort_request(self, names: list[str]) -> None:
        self.aborted += names
        self.waiting = deque(request for request in self.waiting if request[0] not in names)


def requests(sizes: list[int]) -> Iterator[tuple[int, list[int], None]]:
    return ((number, [7] * size, None) for number, size in enumerate(sizes))


def test_every_request_is_answered_once() -> None:
    stream = RequestStream(SimulatedVllm())
    for _ in range(2):  # names stay different in the next stream
        assert [item for item, _, _ in stream.run(requests([1, 5, 2]), WIDE)] == [0, 1, 2]


@pytest.mark.parametrize(
    ("limit", "most_requests", "most_tokens"),
    [
        (InFlight(requests=3, prompt_tokens=10**9), 3, 30),
        (InFlight(requests=1000, prompt_tokens=25), 3, 30),
        (InFlight(requests=1000, prompt_tokens=1), 1, 10),  # a request longer than the limit still goes in, alone
    ],
)
def test_limits_on_what_is_in_flight(limit: InFlight, most_requests: int, most_tokens: int) -> None:
    vllm = SimulatedVllm()
    assert len(list(RequestStream(vllm).run(requests([10] * 20), limit))) == 20
    assert (vllm.most_requests, vllm.most_tokens) == (most_requests, most_tokens)


def test_limits_follow_vllms_capacity() -> None:
    config = SimpleNamespace(
        cache_config=SimpleNamespace(num_gpu_blocks=100, block_size=16),
        scheduler_config=SimpleNamespace(max_num_seqs=64),
    )
    assert InFlight.twice_capacity(config, 512) == InFlight(requests=128, prompt_tokens=3200)
    assert InFlight.twice_capacity(config, 4096).prompt_tokens == 8192  # two of the longest prompts
    assert InFlight.twice_capacity(config, 10**8).prompt_tokens == 8_000_000


def test_a_request_that_is_not_ready_does_not_stop_the_engine() -> None:
    def source() -> Iterator[tuple[int, list[int], None] | None]:
        yield None
        yield (0, [1], None)
        yield None
        yield (1, [1], None)

    assert [item for item, _, _ in RequestStream(SimulatedVllm()).run(source(), WIDE)] == [0, 1]


def test_an_abandoned_stream_aborts_its_requests_unless_the_engine_is_closed() -> None:
    vllm = SimulatedVllm()
    stream = RequestStream(vllm)
    answers = stream.run(requests([1, 1, 1]), WIDE)
    next(answers)
    answers.close()  # type: ignore[attr-defined]
    assert vllm.aborted == ["1", "2"]
    answers = stream.run(requests([1, 1, 1]), WIDE)
    next(answers)
    stream.close()
    answers.close()  # type: ignore[attr-defined]
    assert len(vllm.aborted) == 2


def test_an_engine_that_dies_is_an_engine_error() -> None:
    with pytest.raises(EngineError, match="the engine died: no memory left"):
        list(RequestStream(SimulatedVllm(dies_at_step=2)).run(requests([1, 1, 1]), WIDE))


def test_errors_on_one_line() -> None:
    assert one_line(ValueError("a\n  b")) == "a b"
    assert one_line(ValueError()) == "ValueError"
    assert len(one_line(ValueError("x" * 5000))) == 404


def test_callers_that_wait_learn_of_the_engines_death() -> None:
    replied = threading.Event()
    reply = SimpleNamespace(set_exception=lambda error: replied.set())
    core = SimpleNamespace(
        resources=SimpleNamespace(engine_dead=False), outputs_queue=queue.Queue(), utility_results={1: reply}
    )
    core.outputs_queue.put_nowait = core.outputs_queue.put  # as vLLM's queue
    watch_engine_process(core)
    core.resources.engine_dead = True
    assert "EngineDead" in type(core.outputs_queue.get(timeout=60)).__name__
    assert replied.is_set()
    watch_engine_process(SimpleNamespace())  # an engine in this process: nothing to watch


def test_arguments_for_vllm(tmp_path: Path) -> None:
    make_tiny(tmp_path)
    checkpoint, model = inspect(tmp_path / "headwise"), Model(label="m", path=str(tmp_path / "headwise"))
    given = overrides(ContextSetting(label="c", rope_theta=1e6, max_length=4096), checkpoint.config)
    arguments = vllm_arguments(model, checkpoint, tmp_path / "headwise", EAGER, given)
    assert arguments["max_model_len"] == 4096
    assert arguments["hf_overrides"]["rope_parameters"]["rope_theta"] == 1e6
    assert arguments["generation_config"] == "vllm"
    assert "max_num_seqs" not in arguments  # left to vLLM
    # 4 prompts x 4096 tokens x 4 layers x 2 (K and V) x 2 heads x 32 dimensions x 4 bytes is far below 1 GiB
    assert kv_cache_gib(checkpoint, EAGER, 4096) == 1
    assert kv_cache_gib(checkpoint, EAGER, 2**20) > 1

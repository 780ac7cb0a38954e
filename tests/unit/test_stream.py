"""The stream of requests into vLLM and the arguments it is started with, on a simulated vLLM engine."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from harness.config import ContextSetting, EngineOptions, Model
from harness.engine import start, vllm_api
from harness.engine.requests import EngineError
from harness.engine.start import kv_cache_bytes, vllm_arguments
from harness.engine.stream import InFlight, RequestStream
from harness.engine.vllm_api import watch_engine_process
from harness.models.checkpoint import inspect
from harness.models.tiny import make_tiny
from harness.rope.context import overrides
from harness.types import GatedevalError
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


def token_prompt(ids: Sequence[int]) -> dict[str, list[int]]:
    return {"prompt_token_ids": list(ids)}


def stream_to(vllm: SimulatedVllm) -> RequestStream:
    return RequestStream(vllm, token_prompt)


def requests(sizes: list[int]) -> Iterator[tuple[int, list[int], None]]:
    return ((number, [7] * size, None) for number, size in enumerate(sizes))


def test_every_request_is_answered_once() -> None:
    stream = stream_to(SimulatedVllm())
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
    assert len(list(stream_to(vllm).run(requests([10] * 20), limit))) == 20
    assert (vllm.most_requests, vllm.most_tokens) == (most_requests, most_tokens)


def test_limits_follow_vllms_capacity() -> None:
    cache = SimpleNamespace(num_gpu_blocks=100, block_size=16, kv_cache_size_tokens=None)
    config = SimpleNamespace(cache_config=cache, scheduler_config=SimpleNamespace(max_num_seqs=64))
    capacity = vllm_api.capacity(SimpleNamespace(vllm_config=config))
    assert capacity == (64, 1600)
    assert InFlight.twice(*capacity, 512) == InFlight(requests=128, prompt_tokens=3200)
    assert InFlight.twice(*capacity, 4096).prompt_tokens == 8192  # two of the longest prompts
    assert InFlight.twice(*capacity, 10**8).prompt_tokens == 8_000_000
    cache.kv_cache_size_tokens = 1500  # vLLM's own count, where it has one
    assert vllm_api.capacity(SimpleNamespace(vllm_config=config)) == (64, 1500)


def test_a_request_that_is_not_ready_does_not_stop_the_engine() -> None:
    def source() -> Iterator[tuple[int, list[int], None] | None]:
        yield None
        yield (0, [1], None)
        yield None
        yield (1, [1], None)

    assert [item for item, _, _ in stream_to(SimulatedVllm()).run(source(), WIDE)] == [0, 1]


def test_an_abandoned_stream_aborts_its_requests_unless_the_engine_is_closed() -> None:
    vllm = SimulatedVllm()
    stream = stream_to(vllm)
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
        list(stream_to(SimulatedVllm(dies_at_step=2)).run(requests([1, 1, 1]), WIDE))


def test_a_request_that_vllm_refuses_is_an_engine_error() -> None:
    """A bare ValueError would end the whole run; an EngineError fails the cells of this engine."""

    class Refusing(SimulatedVllm):
        def add_request(self, name: str, prompt: Any, params: Any) -> None:
            raise ValueError("Token id 99 is out of vocabulary")

    with pytest.raises(EngineError, match="did not take a request: Token id 99 is out of vocabulary"):
        list(stream_to(Refusing()).run(requests([1]), WIDE))


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


@pytest.fixture(scope="module")
def arguments_for(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A function: engine options and a platform -> vLLM's arguments for a tiny headwise model."""
    root = tmp_path_factory.mktemp("tiny")
    make_tiny(root)
    checkpoint = inspect(root / "headwise")
    given = overrides(ContextSetting(label="c", rope_theta=1e6, max_length=4096), checkpoint.config)

    def arguments(options: EngineOptions, *, gpu: bool = False, dtype: str = "auto") -> dict[str, Any]:
        model = Model(label="m", path=str(root / "headwise"), dtype=dtype)  # type: ignore[arg-type]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(vllm_api, "on_cpu", lambda: not gpu)
            patch.setattr(vllm_api, "on_gpu", lambda: gpu)
            return vllm_arguments(model, checkpoint, root / "headwise", options, given)

    arguments.checkpoint = checkpoint  # type: ignore[attr-defined]
    return arguments


def test_arguments_for_vllm(arguments_for: Any) -> None:
    arguments = arguments_for(EAGER)
    assert arguments["max_model_len"] == 4096
    assert arguments["hf_overrides"]["rope_parameters"]["rope_theta"] == 1e6
    assert arguments["generation_config"] == "vllm"
    assert "max_num_seqs" not in arguments  # left to vLLM
    # 4 prompts x 4096 tokens x 4 layers x 2 (K and V) x 2 heads x 32 dimensions x 4 bytes is far below 1 GiB
    assert kv_cache_bytes(arguments_for.checkpoint, EAGER, 4096) == 2**30
    assert kv_cache_bytes(arguments_for.checkpoint, EAGER, 2**20) > 2**30


def test_kv_cache_size_reaches_vllm_on_cpus_and_gpus(arguments_for: Any) -> None:
    """It was ignored on a GPU, rounded to whole GiB on a CPU, and there the first engine's size held for the second."""
    half = EngineOptions(kv_cache_gib=0.5)
    for gpu in (False, True):
        assert arguments_for(half, gpu=gpu)["kv_cache_memory_bytes"] == 2**29
    assert "kv_cache_memory_bytes" not in arguments_for(EngineOptions(), gpu=True)  # vLLM takes what is free
    assert arguments_for(EngineOptions())["kv_cache_memory_bytes"] == 2**30


@pytest.mark.parametrize(
    ("configured", "gpu", "eager"),
    [("auto", False, True), ("auto", True, False), (False, False, False), (True, True, True)],
)
def test_eager_on_a_cpu_and_compiled_on_a_gpu_unless_the_config_says(
    arguments_for: Any, configured: Any, gpu: bool, eager: bool
) -> None:
    assert arguments_for(EngineOptions(enforce_eager=configured), gpu=gpu)["enforce_eager"] is eager


def test_parallel_and_quantisation_options_reach_vllm(arguments_for: Any) -> None:
    options = EngineOptions(
        tensor_parallel_size=2, pipeline_parallel_size=3, quantization="fp8", kv_cache_dtype="fp8_e4m3"
    )
    arguments = arguments_for(options, gpu=True)
    assert (arguments["tensor_parallel_size"], arguments["pipeline_parallel_size"]) == (2, 3)
    assert (arguments["quantization"], arguments["kv_cache_dtype"]) == ("fp8", "fp8_e4m3")
    assert not {"quantization", "kv_cache_dtype"} & arguments_for(EngineOptions()).keys()


def test_batch_invariance_is_refused_on_a_cpu_with_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_api, "on_cpu", lambda: True)
    with pytest.raises(GatedevalError, match=r"engine\.batch_invariant: vLLM has batch-invariant kernels"):
        start.set_environment(EngineOptions(batch_invariant=True), "bfloat16")
    monkeypatch.setattr(vllm_api, "on_cpu", lambda: False)
    monkeypatch.setattr(start.os, "environ", {})
    start.set_environment(EngineOptions(batch_invariant=True), "bfloat16")
    assert start.os.environ["VLLM_BATCH_INVARIANT"] == "1"


def test_float32_asks_triton_for_ieee_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's default for float32 is TF32: 10 bits of mantissa in attention, where 23 were asked for."""
    for dtype, expected in (("float32", "ieee"), ("bfloat16", None)):
        monkeypatch.setattr(start.os, "environ", {})
        start.set_environment(EngineOptions(), dtype)
        assert start.os.environ.get("TRITON_F32_DEFAULT") == expected


@pytest.mark.parametrize("given", [None, "tf32x3"])
def test_an_engine_in_float32_leaves_the_next_one_as_it_would_be_alone(
    given: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start.os, "environ", {"TRITON_F32_DEFAULT": given} if given else {})
    for dtype in ("float32", "float32", "bfloat16", "float32", "float16"):
        start.set_environment(EngineOptions(), dtype)
        expected = "ieee" if dtype == "float32" and given is None else given
        assert start.os.environ.get("TRITON_F32_DEFAULT") == expected

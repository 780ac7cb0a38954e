"""Each name of vLLM that its documentation does not promise exists in the vLLM that is installed."""

from __future__ import annotations

import dataclasses
import inspect as python_inspect
import os
from typing import Any

import pytest
from vllm import envs
from vllm.config import CacheConfig, CompilationConfig, ModelConfig, ParallelConfig, VllmConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.inputs import tokens_input
from vllm.platforms import current_platform
from vllm.sampling_params import SamplingParams
from vllm.v1.engine import core_client, exceptions, llm_engine, utils
from vllm.v1.executor import multiproc_executor

from harness.config import EngineOptions
from harness.engine import start, vllm_api
from tests.support import ROOT


def test_arguments_of_the_engine() -> None:
    given = {field.name for field in dataclasses.fields(EngineArgs)}
    ours = {
        "model", "tokenizer", "dtype", "max_model_len", "hf_overrides", "tensor_parallel_size", "enforce_eager",
        "pipeline_parallel_size", "enable_prefix_caching", "generation_config", "worker_extension_cls",
        "use_tqdm_on_load", "disable_log_stats", "seed", "kv_cache_memory_bytes", *start._OPTIONAL,
    }  # fmt: skip
    assert ours <= given


def test_environment_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM reads what `set_environment` sets; a variable that vLLM has renamed would change nothing, silently."""
    environment: dict[str, str] = {}
    monkeypatch.setattr(start.os, "environ", environment)
    start.set_environment(EngineOptions(tensor_parallel_size=2), "float32")
    monkeypatch.undo()
    known = set(envs.environment_variables)
    assert [name for name in environment if name.startswith("VLLM_") and name not in known] == []
    assert "VLLM_BATCH_INVARIANT" in known


def test_engine_and_its_processes() -> None:
    usage = python_inspect.signature(llm_engine.LLMEngine.from_engine_args).parameters
    assert "usage_context" in usage
    for method in ("add_request", "step", "abort_request", "collective_rpc", "reset_prefix_cache", "get_tokenizer"):
        assert callable(getattr(llm_engine.LLMEngine, method)), method
    client: Any = core_client.MPClient
    assert "timeout" in python_inspect.signature(client.shutdown).parameters
    source = python_inspect.getsource(core_client)
    for name in ("self.resources", "self.outputs_queue", "self.utility_results", "engine_dead", "engine_manager"):
        assert name in source, name
    assert "self.processes" in python_inspect.getsource(utils.CoreEngineProcManager)
    assert issubclass(exceptions.EngineDeadError, Exception)
    # of an engine whose core runs in our process
    assert vllm_api.CORE_PROCESS in envs.environment_variables
    assert "distributed_executor_backend" in {field.name for field in dataclasses.fields(EngineArgs)}
    assert "self.engine_core = EngineCore(" in source
    executor = python_inspect.getsource(multiproc_executor.MultiprocExecutor)
    for name in ("self.workers", "self._ensure_worker_termination("):
        assert name in executor, name
    assert vllm_api.PROCESS_NAMES == ("EngineCore", "VllmWorker")
    assert 'name=f"VllmWorker-' in python_inspect.getsource(multiproc_executor.WorkerProc)
    assert '"EngineCore' in python_inspect.getsource(utils.CoreEngineProcManager)


def test_a_core_in_this_process_is_for_a_cpu_and_for_users_who_have_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks are processes in any case; the environment is as before afterwards, also after a failed start."""
    seen: list[tuple[str | None, str | None]] = []
    here = str(ROOT / "tasks/demo/models/baseline/long")  # vLLM may look any other name up at the hub

    def from_engine_args(arguments: Any, usage_context: Any) -> None:
        seen.append((os.environ.get(vllm_api.CORE_PROCESS), arguments.distributed_executor_backend))
        if arguments.seed == 13:
            raise ValueError("no start")

    monkeypatch.setattr(llm_engine.LLMEngine, "from_engine_args", from_engine_args)
    monkeypatch.delenv(vllm_api.CORE_PROCESS, raising=False)
    vllm_api.start({"model": here})
    vllm_api.start({"model": here}, core_here=True)
    assert seen == [(None, None), ("0", "mp")]
    with pytest.raises(ValueError, match="no start"):
        vllm_api.start({"model": here, "seed": 13}, core_here=True)
    assert vllm_api.CORE_PROCESS not in os.environ
    for chosen in ("0", "1"):
        monkeypatch.setenv(vllm_api.CORE_PROCESS, chosen)
        vllm_api.start({"model": here}, core_here=True)
        assert seen[-1] == (chosen, None)
    monkeypatch.delenv(vllm_api.CORE_PROCESS)
    monkeypatch.setattr(vllm_api, "on_cpu", lambda: False)
    vllm_api.start({"model": here}, core_here=True)
    assert seen[-1] == (None, None)


def test_facts_about_what_ran() -> None:
    fields = {c: {f.name for f in dataclasses.fields(c)} for c in (CacheConfig, CompilationConfig, ParallelConfig)}
    assert {"num_gpu_blocks", "block_size", "cache_dtype", "kv_cache_size_tokens"} <= fields[CacheConfig]
    assert {"mode", "cudagraph_mode"} <= fields[CompilationConfig]
    assert {"tensor_parallel_size", "pipeline_parallel_size"} <= fields[ParallelConfig]
    assert isinstance(VllmConfig.use_v2_model_runner, property)
    assert isinstance(ModelConfig.head_dtype, property)
    assert callable(ModelConfig.get_vocab_size)
    assert callable(current_platform.is_cpu)
    assert callable(current_platform.is_cuda_alike)


def test_a_prompt_carries_its_context_setting_as_salt() -> None:
    """Prompts under two settings share no prefix, even if a cache were not emptied between them."""
    prompt = vllm_api.token_prompt([1, 2, 3], "YaRN")
    assert prompt == tokens_input([1, 2, 3], cache_salt="YaRN")
    assert (prompt["prompt_token_ids"], prompt["cache_salt"]) == ([1, 2, 3], "YaRN")


def test_sampling_takes_log_probabilities_of_named_tokens() -> None:
    params = SamplingParams(temperature=0.0, max_tokens=1, logprob_token_ids=[0, 5], detokenize=False)
    assert params.logprob_token_ids == [0, 5]

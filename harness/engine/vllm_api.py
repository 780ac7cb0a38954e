"""What this package takes from vLLM that is not in vLLM's documentation. All of it is here, and every use is guarded.

Written for vLLM 0.32. `tests/unit/test_vllm_api.py` checks each name against the vLLM that is installed, so another
version fails there first. A part that is missing costs its comfort (a faster close, an earlier error), never an answer.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_JOIN_SECONDS = 60.0  # for the processes of an engine to end after they were told to


PROCESS_NAMES = ("EngineCore", "VllmWorker")
"""What the names of vLLM's processes begin with: the engine core's, and the ranks'."""
CORE_PROCESS = "VLLM_ENABLE_V1_MULTIPROCESSING"
"""Environment variable: whether vLLM's engine core (scheduler, KV cache's blocks) gets a process of its own."""


def start(arguments: Mapping[str, Any], *, core_here: bool = False) -> Any:
    """A running `LLMEngine`; vLLM's own exceptions.

    `core_here`: vLLM's engine core runs in this process, the ranks of the model in processes of their own as always.
    On a CPU that saves a process that imports vLLM before the ranks do. It changes nothing on other devices, where a
    single rank runs in the core's process, and nothing where the user has set vLLM's environment variable for it.
    """
    from vllm.engine.arg_utils import EngineArgs
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.llm_engine import LLMEngine

    # This usage context has the batch sizes of offline work (vLLM's LLM class); a server's are smaller.
    usage = UsageContext.LLM_CLASS
    if not core_here or not on_cpu() or CORE_PROCESS in os.environ:
        return LLMEngine.from_engine_args(EngineArgs(**arguments), usage_context=usage)
    with _environment(CORE_PROCESS, "0"):
        # the executor "mp" has processes: with vLLM's default a single rank would run in this process, too
        ranks_apart = EngineArgs(**{**arguments, "distributed_executor_backend": "mp"})
        return LLMEngine.from_engine_args(ranks_apart, usage_context=usage)


@contextlib.contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    """Within this `with`, an environment variable that is not set has `value`."""
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]


def token_prompt(ids: Sequence[int], salt: str) -> Any:
    """A prompt of token ids. Only prompts with equal `salt` share prefixes in the cache."""
    from vllm.inputs import tokens_input

    return tokens_input(list(ids), cache_salt=salt)


def on_cpu() -> bool:
    """Whether vLLM runs on the CPU here."""
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


def on_gpu() -> bool:
    """Whether vLLM runs on an NVIDIA or AMD GPU here."""
    from vllm.platforms import current_platform

    return bool(current_platform.is_cuda_alike())


def capacity(vllm: Any) -> tuple[int, int]:
    """(requests, tokens) that an engine can work on at once: `max_num_seqs`, and the size of its KV cache."""
    config = vllm.vllm_config
    cache = config.cache_config
    tokens = getattr(cache, "kv_cache_size_tokens", None)
    if tokens is None:
        tokens = (cache.num_gpu_blocks or 0) * cache.block_size
    return config.scheduler_config.max_num_seqs, tokens


def sizes(vllm: Any) -> dict[str, int]:
    """`vocabulary` (entries of a row of logits) and `block_size` (tokens in a block of the KV cache)."""
    config = vllm.vllm_config
    return {"vocabulary": config.model_config.get_vocab_size(), "block_size": config.cache_config.block_size}


def settings_that_ran(vllm: Any) -> dict[str, Any]:
    """What of vLLM's resolved configuration changes low-order bits: plain JSON values; None where vLLM has no such."""
    config = vllm.vllm_config
    model, parallel, compilation = config.model_config, config.parallel_config, config.compilation_config
    mode, graphs = getattr(compilation, "mode", None), getattr(compilation, "cudagraph_mode", None)
    v2 = getattr(config, "use_v2_model_runner", None)
    return {
        "dtype": str(model.dtype).removeprefix("torch."),
        "head_dtype": str(getattr(model, "head_dtype", model.dtype)).removeprefix("torch."),
        "quantization": getattr(model, "quantization", None),
        "kv_cache_dtype": str(config.cache_config.cache_dtype),
        "tensor_parallel": parallel.tensor_parallel_size,
        "pipeline_parallel": parallel.pipeline_parallel_size,
        "enforce_eager": bool(model.enforce_eager),
        "compilation": getattr(mode, "name", mode),
        "cuda_graphs": getattr(graphs, "name", graphs),
        "model_runner": None if v2 is None else ("v2" if v2 else "v1"),
    }


def watch_engine_process(engine_core: Any) -> None:
    """Start a thread that wakes waiting callers with an error when vLLM's process has died.

    vLLM's synchronous client notices the death, but a caller that already waits for the next output, or for a worker's
    reply, would wait for ever. Does nothing if the engine runs in this process.
    """
    resources, outputs = getattr(engine_core, "resources", None), getattr(engine_core, "outputs_queue", None)
    if resources is None or outputs is None:
        return
    replies = getattr(engine_core, "utility_results", {})
    # The thread gets these three objects, not the client itself, which it would keep alive.
    threading.Thread(target=_wake_callers_on_death, args=(resources, outputs, replies), daemon=True).start()


def _wake_callers_on_death(resources: Any, outputs: Any, replies: dict[Any, Any]) -> None:
    from vllm.v1.engine.exceptions import EngineDeadError

    while not resources.engine_dead:
        time.sleep(0.2)
    for reply in list(replies.values()):
        with contextlib.suppress(Exception):  # the reply came, or its caller gave up, in the meantime
            reply.set_exception(EngineDeadError())
    outputs.put_nowait(EngineDeadError())


def is_dead(engine_core: Any) -> bool:
    """Whether vLLM has noticed that a process of the engine has ended; False if the engine runs in this process."""
    return bool(getattr(getattr(engine_core, "resources", None), "engine_dead", False))


def stop(engine_core: Any, *, at_once: bool) -> None:
    """End an engine's processes and wait until they have ended: until then they hold their memory, a GPU's included.

    `at_once`: kill them, without vLLM's five seconds for an orderly end.
    """
    import psutil

    processes = []
    for process in [*_core_processes(engine_core), *_rank_processes(engine_core)]:
        with contextlib.suppress(psutil.Error):
            known = psutil.Process(process.pid)
            processes += [*known.children(recursive=True), known]  # the ranks are the children of a core's process
    if at_once and (executor := _own_executor(engine_core)) is not None:
        executor._ensure_worker_termination = _kill  # in place of vLLM's wait for an orderly end
    engine_core.shutdown(timeout=0.0 if at_once else None)
    _, alive = psutil.wait_procs(processes, timeout=_JOIN_SECONDS)
    for process in alive:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(alive, timeout=_JOIN_SECONDS)


def end_engine_processes() -> None:
    """Kill all processes that vLLM has started in this one: engines die, and a start that goes on fails at once."""
    for process in multiprocessing.active_children():
        if process.name.startswith(PROCESS_NAMES):
            process.kill()


def _kill(processes: Sequence[Any]) -> None:
    for process in processes:
        process.kill()


def _own_executor(engine_core: Any) -> Any:
    """vLLM's executor, which started the ranks, of an engine whose core runs in this process; None for others."""
    return getattr(getattr(engine_core, "engine_core", None), "model_executor", None)


def _rank_processes(engine_core: Any) -> list[Any]:
    """The ranks' processes of an engine whose core runs in this process; none for others."""
    workers = getattr(_own_executor(engine_core), "workers", None) or ()
    return [worker.proc for worker in workers if getattr(worker, "proc", None) is not None]


def _core_processes(engine_core: Any) -> list[Any]:
    """The processes of the engine's core; none if the engine runs in this process."""
    manager = getattr(getattr(engine_core, "resources", None), "engine_manager", None)
    return [process for process in getattr(manager, "processes", ()) if getattr(process, "pid", None)]

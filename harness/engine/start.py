"""Start vLLM on a checkpoint: its arguments, its environment, the size of its KV cache, and the check of the plugin."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.config import EngineOptions, Model
from harness.engine import vllm_api
from harness.engine.causes import explanation
from harness.engine.log import EngineLog
from harness.engine.precision import float32_logits, running_dtype, unavailable
from harness.engine.requests import EngineError
from harness.gated import LOAD_FORMAT
from harness.gated.watchdog import ENGINE_OF, follow_forks
from harness.models.checkpoint import Checkpoint
from harness.models.layout import ARCHITECTURE, LAYOUT_KEY
from harness.rope.context import Overrides
from harness.types import GatedevalError

WORKER = "harness.gated.worker.WorkerExtension"
_OPTIONAL = (
    "max_num_seqs",
    "max_num_batched_tokens",
    "gpu_memory_utilization",
    "block_size",
    "quantization",
    "kv_cache_dtype",
)


def vllm_arguments(
    model: Model, checkpoint: Checkpoint, tokenizer_dir: Path, options: EngineOptions, overrides: Overrides
) -> dict[str, Any]:
    """vLLM's engine arguments. Options that the config leaves out are not passed: vLLM's own defaults apply."""
    on_cpu, dtype = vllm_api.on_cpu(), running_dtype(model.dtype, checkpoint.dtype)
    hf_overrides = dict(overrides.hf_overrides)
    if float32_logits(options, checkpoint, model.dtype, on_gpu=vllm_api.on_gpu()):
        hf_overrides["head_dtype"] = "float32"
    if model.gate_layout is not None:  # the plugin's config parser reads it (`harness.gated.plugin`)
        hf_overrides[LAYOUT_KEY] = model.gate_layout
    arguments: dict[str, Any] = {
        "model": str(checkpoint.path),
        "tokenizer": str(tokenizer_dir),
        "dtype": dtype,
        "max_model_len": overrides.max_model_len,
        "hf_overrides": hf_overrides,
        "tensor_parallel_size": options.tensor_parallel_size,
        "pipeline_parallel_size": options.pipeline_parallel_size,
        "enforce_eager": _eager(options, on_cpu),
        "enable_prefix_caching": options.prefix_caching,
        "generation_config": "vllm",  # without its temperature and penalties; its eos ids: models/stopping.py
        "worker_extension_cls": WORKER,
        "load_format": LOAD_FORMAT,  # vLLM's default loader, with a report of what it left out
        "use_tqdm_on_load": False,
        "disable_log_stats": True,
        "seed": 0,
    }
    # Bytes per device. On a CPU always, since vLLM would take half of the machine's memory; VLLM_CPU_KVCACHE_SPACE, if
    # the user has set it, has the last word there.
    if on_cpu:
        arguments["kv_cache_memory_bytes"] = kv_cache_bytes(checkpoint, options, overrides.max_model_len)
    elif options.kv_cache_gib is not None:
        arguments["kv_cache_memory_bytes"] = round(options.kv_cache_gib * 2**30)
    return arguments | {name: value for name in _OPTIONAL if (value := getattr(options, name)) is not None}


def _eager(options: EngineOptions, on_cpu: bool) -> bool:
    """Whether to start without compilation. On a CPU compiling takes a minute and answers come no faster."""
    return on_cpu if options.enforce_eager == "auto" else bool(options.enforce_eager)


def start_vllm(arguments: Mapping[str, Any], checkpoint: Checkpoint, log: EngineLog, *, core_here: bool = False) -> Any:
    """A running vLLM engine (`LLMEngine`). What it and its processes print goes to `log`: stdout is data.

    `set_environment` was called before. `core_here`: see `vllm_api.start`.

    Raises:
        GatedevalError: the checkpoint is gated and the gatedeval plugin is not loaded.
        EngineError: vLLM could not start; with the cause from the log, and what to change where that is known.
    """
    with log.redirected():
        _check_plugin(checkpoint)
        try:
            engine = vllm_api.start(arguments, core_here=core_here)
        except Exception as error:
            why = explanation(error, log.text(), log.path)
            raise EngineError(f"vLLM did not start on {checkpoint.path}: {why}") from error
    vllm_api.watch_engine_process(engine.engine_core)
    return engine


_FOR_FLOAT32 = {"TRITON_F32_DEFAULT": "ieee"}  # Triton multiplies float32 in TF32 (10 bits of mantissa) by default
_set_for_float32: set[str] = set()  # those of them that this process has set, not the user


def set_environment(options: EngineOptions, dtype: str) -> None:
    """Set defaults for the environment variables that vLLM reads. Variables that the user has set stay as they are.

    Call this before vLLM is imported. `dtype`: the one to run in.

    Raises:
        GatedevalError: `options` ask for what vLLM does not have on this machine.
    """
    os.environ[ENGINE_OF] = str(os.getpid())  # the engine's processes end when this process does
    follow_forks()
    defaults = {
        # vLLM's default on GPUs is fork. A forked engine inherits our open files, such as the pipe to the process that
        # generates samples, and starts with whatever state our libraries are in.
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "VLLM_LOGGING_STREAM": "ext://sys.stderr",
        "VLLM_LOGGING_LEVEL": "INFO",  # all of it goes to the engine's log
        "VLLM_LOGGING_COLOR": "0",
        "VLLM_RAISE_ON_LOGIT_NANS": "1",  # else a logit that is no number is answered with token 0
        "TOKENIZERS_PARALLELISM": "false",
        # Every worker would print these: libraries' warnings, and one about shared memory that an engine left behind.
        "PYTHONWARNINGS": "ignore::FutureWarning,ignore:resource_tracker:UserWarning",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",  # vLLM's default leaves one core idle
    }
    if dtype == "float32":
        _set_for_float32.update(name for name in _FOR_FLOAT32 if name not in os.environ)
        defaults |= _FOR_FLOAT32
    else:  # an engine in another dtype must not depend on whether one in float32 ran before it
        for name in _set_for_float32:
            os.environ.pop(name, None)
        _set_for_float32.clear()
    if options.tensor_parallel_size > 1:
        defaults["VLLM_CPU_OMP_THREADS_BIND"] = _cores_per_rank(options.tensor_parallel_size, os.cpu_count() or 1)
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    if refusals := unavailable(options, on_gpu=not vllm_api.on_cpu()):
        raise GatedevalError("; ".join(refusals))
    if options.batch_invariant:
        os.environ["VLLM_BATCH_INVARIANT"] = "1"


def _cores_per_rank(ranks: int, cores: int) -> str:
    """Cores for each rank of a CPU engine, e.g. "0-3|4-7". Without this, all ranks compete for the same cores."""
    share = max(1, cores // ranks)
    if share == 1:
        return "|".join(str(rank % cores) for rank in range(ranks))
    return "|".join(f"{rank * share}-{(rank + 1) * share - 1}" for rank in range(ranks))


def kv_cache_bytes(checkpoint: Checkpoint, options: EngineOptions, max_model_len: int) -> int:
    """KV cache of a CPU engine, in bytes: the configured size, else room for four of the longest prompts (float32).

    The computed size is a whole number of GiB, at least 1 and at most a quarter of the machine's memory.
    """
    if options.kv_cache_gib is not None:
        return round(options.kv_cache_gib * 2**30)
    config, layout = checkpoint.config, checkpoint.layout
    width = 2 * layout.num_kv_heads * layout.head_dim if layout else 2 * int(config.get("hidden_size", 4096))
    bytes_per_token = int(config.get("num_hidden_layers", 32)) * width * 4
    four_prompts = 4 * max_model_len * bytes_per_token / 2**30
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return int(max(1, min(four_prompts + 1, memory / 4))) * 2**30


def _check_plugin(checkpoint: Checkpoint) -> None:
    """Refuse a gated checkpoint if vLLM does not know its model class: vLLM would load it wrongly without an error."""
    from vllm import ModelRegistry
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    if checkpoint.architecture == ARCHITECTURE and ARCHITECTURE not in ModelRegistry.get_supported_archs():
        raise GatedevalError(
            f"{checkpoint.path} needs {ARCHITECTURE}, which vLLM does not know: the gatedeval plugin is not loaded"
            " (is VLLM_PLUGINS set to exclude it? is gatedeval installed in this environment?)"
        )

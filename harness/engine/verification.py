"""What a started engine really runs, compared with what was planned; the facts that the manifest stores about it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.config import ContextSetting
from harness.engine import vllm_api
from harness.engine.requests import EngineError
from harness.engine.self_check import BOUNDS, QUANTISED_BOUND
from harness.gated import LOAD_FORMAT
from harness.models.checkpoint import Checkpoint


def verified_facts(engine: Any, setting: ContextSetting) -> dict[str, Any]:
    """Facts about a live `Engine`: plain JSON values. `setting`: the context setting that it was started under.

    `model_class`, `gates`, `dtype`, `device` and `rope_tables` are rank 0's; `arithmetic` is all that changes low-order
    bits, as one flat mapping; `rope_deviation` is how far vLLM's own rotary table was from ours.

    Raises:
        EngineError: a rank runs another model class, gate or dtype than planned, no tensor reached one of its
            parameters, the longest prompt does not fit, or vLLM's rotary table is another setting's.
    """
    checkpoint, ranks = engine.checkpoint, engine.rpc("gatedeval_facts")
    for rank, facts in enumerate(ranks):
        check_rank(facts, rank, checkpoint, planned_dtype(engine.arguments, checkpoint))
        _check_loaded(engine, rank, facts["model_class"], facts.pop("unloaded"))
    limit = engine.vllm.model_config.max_model_len
    if limit < engine.max_model_len:
        raise EngineError(f"the engine takes {limit} tokens, {engine.max_model_len} were planned")
    facts = dict(ranks[0], max_model_len=limit, ranks=len(ranks))
    # counted in the files: vLLM's CPU backend repacks linear weights, which are then no parameters of the model
    facts["parameters"] = checkpoint.parameters
    facts["arithmetic"] = {**vllm_api.settings_that_ran(engine.vllm), **engine.rpc("gatedeval_arithmetic")[0]}
    facts["enforce_eager"] = facts["arithmetic"]["enforce_eager"]  # what ran; the config may say "auto"
    if rope := checkpoint.rope_at_start(setting):
        # vLLM computed its table from the overrides. If it ignored a setting, its table differs from ours.
        facts["rope_deviation"] = max(engine.rpc("gatedeval_check_rope", rope.to_plain(), engine.max_model_len))
    return facts


def check_replaceable(engine: Any, setting: ContextSetting) -> None:
    """Check that the table of a setting that vLLM does not compute itself can be written over vLLM's.

    Raises:
        EngineError: it cannot, so the engine would go on with another encoding.
    """
    checkpoint, rope = engine.checkpoint, engine.checkpoint.rope_under(setting)
    if rope and rope.parameters["rope_type"] == "longrope" and checkpoint.can_switch and not engine.switchable:
        raise EngineError(
            f"context {setting.label!r}: longrope is applied by replacing the rotary table in the live engine, and"
            f" {engine.facts['model_class']} has {len(engine.facts['rope_tables'])} replaceable tables, not one"
        )


def planned_dtype(arguments: Mapping[str, Any], checkpoint: Checkpoint) -> str | None:
    """The dtype that the weights must have in the engine; None where vLLM chooses it or the weights are quantised."""
    dtype = str(arguments.get("dtype", "auto"))
    quantised = checkpoint.quantisation or arguments.get("quantization")
    return None if dtype == "auto" or quantised else dtype


def check_rank(facts: Mapping[str, Any], rank: int, checkpoint: Checkpoint, dtype: str | None) -> None:
    """Compare one rank's facts with the plan. `dtype`: the planned one; None: any.

    Raises:
        EngineError: another model class, gate or dtype.
    """
    if checkpoint.layout and facts["model_class"] != checkpoint.architecture:
        raise EngineError(
            f"rank {rank} runs {facts['model_class']}, the checkpoint needs {checkpoint.architecture}: vLLM has not"
            " loaded the gatedeval plugin (is VLLM_PLUGINS set to exclude it? is gatedeval installed in this"
            " environment?)"
        )
    if facts["gates"] and facts["gates"] != [checkpoint.gate]:
        raise EngineError(f"rank {rank} runs gates {facts['gates']}, the checkpoint has {checkpoint.gate}")
    if dtype is not None and facts["dtype"] != dtype:
        raise EngineError(
            f"rank {rank} runs in {facts['dtype']}, planned was {dtype}: the answers' hashes would name another dtype"
            f" than the one that gave them; set the model's dtype (or its benchmark's) to {facts['dtype']}, or use a"
            f" device that has {dtype}"
        )


def _check_loaded(engine: Any, rank: int, model_class: str, unloaded: list[str] | None) -> None:
    """Refuse a model with parameters that no tensor of the checkpoint reached."""
    checkpoint = engine.checkpoint
    if unloaded is None:
        default = engine.arguments.get("load_format") == LOAD_FORMAT
        if default and checkpoint.quantisation is None and not engine.vllm.model_config.quantization:
            raise EngineError(f"rank {rank} did not report which parameters of {model_class} were loaded")
    elif unloaded:
        shown = "; ".join(unloaded[:4]) + ("; ..." if len(unloaded) > 4 else "")
        raise EngineError(
            f"{checkpoint.path}: no tensor in its weight files reached {len(unloaded)} parameter(s) of"
            f" {model_class} (rank {rank}): {shown}. The checkpoint is incomplete, or its tensors have names that"
            " vLLM's class does not know"
        )


def rounding(arithmetic: Mapping[str, Any]) -> float:
    """How far two computations of one log-probability may be apart (nats), by an engine's `arithmetic`."""
    if arithmetic["quantization"] or str(arithmetic["kv_cache_dtype"]).startswith(("fp8", "int8", "nvfp4")):
        return QUANTISED_BOUND
    return BOUNDS.get(arithmetic["dtype"], QUANTISED_BOUND)

"""Probe one text in a live engine: what attention, gates and activations do while the text passes through."""

from __future__ import annotations

import contextlib

from harness.engine.engine import Engine
from harness.engine.requests import EngineError, Prompt
from harness.probe.plan import ProbePlan
from harness.probe.results import ProbeResult, combine
from harness.types import GatedevalError


def probe(engine: Engine, plan: ProbePlan) -> ProbeResult:
    """Send `plan`'s text through `engine` and measure it in every rank. The context setting in force applies.

    The engine must have been started with `enforce_eager`, and nothing else may run in it. The prefix cache is emptied
    before, because cached tokens do not pass through the model.

    Raises:
        GatedevalError: the text does not fit the context setting, the engine is compiled, or it has pipeline stages.
        EngineError: the model cannot be measured, or a measured number is not finite.
    """
    if not engine.arguments["enforce_eager"]:
        raise GatedevalError("a probe needs an engine that runs eagerly: set engine.enforce_eager: true")
    check_stages(engine.arguments["pipeline_parallel_size"])
    engine.vllm.reset_prefix_cache()
    try:
        engine.rpc("gatedeval_probe_start", plan.to_plain())
        list(engine.generate([Prompt("probe", plan.ids, max_tokens=1)]))
        return combine(plan, engine.rpc("gatedeval_probe_finish"))
    except Exception as error:
        with contextlib.suppress(Exception):  # a dead engine has no hooks to remove; the first error is told
            engine.rpc("gatedeval_probe_cancel")
        if isinstance(error, GatedevalError):
            raise
        raise EngineError(f"{engine.checkpoint.path} cannot be probed: {error}") from error


def check_stages(pipeline_parallel_size: int) -> None:
    """Raise GatedevalError for an engine with pipeline stages: none of its processes has all layers."""
    if pipeline_parallel_size > 1:
        raise GatedevalError(
            f"a probe needs all layers in every process: engine.pipeline_parallel_size is {pipeline_parallel_size};"
            " set it to 1 (tensor_parallel_size divides a model's heads instead)"
        )

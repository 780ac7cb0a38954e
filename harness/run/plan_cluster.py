"""How a plan's work is spread over a cluster's engines, as text for people; without a model and without a cluster."""

from __future__ import annotations

import os

from harness.cluster.costs import CostModel
from harness.config.cluster import ClusterOptions
from harness.run.hardware import gpu_names
from harness.run.plan import Plan
from harness.text import align, counted
from harness.types import Cell


def render_cluster(plan: Plan, options: ClusterOptions) -> str:
    """A line about the engines, and per model how its requests spread over them.

    Where the number of engines is known only to the cluster, the plan says what one engine takes.
    """
    parallel = plan.config.engine.tensor_parallel_size * plan.config.engine.pipeline_parallel_size
    engines = options.engines or _engines_here(options, parallel)
    size = counted(parallel, "GPU") if options.gpus != 0 else counted(options.cpus or 1, "core")
    head = f"cluster {options.address}: "
    if engines is None:
        head += f"as many engines of {size} as it has room for"
        engines = 1
    else:
        head += f"{counted(engines, 'engine')} ({size} each where the cluster has GPUs)"
    lines = [f"{head}; all of them answer one model after the other"]
    costs = {cell: _cost(plan, cell) for cell in plan.cells}
    total = sum(costs.values()) or 1.0
    rows = [("model", "engines", "requests", "per engine", "share of the work", "longest request")]
    for label in plan.models:
        cells = [cell for cell in plan.cells if cell.model == label]
        requests = sum(plan.cells[cell] for cell in cells)
        used = min(engines, requests)
        work = sum(costs[cell] for cell in cells)
        longest = max((costs[cell] / plan.cells[cell] for cell in cells if plan.cells[cell]), default=0.0)
        part = longest / (work / used) if work else 0.0
        rows.append(
            (label, f"{used}", f"{requests:,}", f"{requests // max(1, used):,}", f"{work / total:.0%}",
             f"{part:.2%} of an engine's work")
        )  # fmt: skip
    return "\n".join([*lines, *align(rows, right=range(1, 5), rule=True)])


def _engines_here(options: ClusterOptions, parallel: int) -> int | None:
    """Engines on this machine; None where another one's devices count."""
    if options.address != "local":
        return None
    if options.gpus != 0 and (gpus := len(gpu_names())):
        return max(1, gpus // parallel)
    return max(1, (os.cpu_count() or 1) // (options.cpus or 4))


def _cost(plan: Plan, cell: Cell) -> float:
    """What the prompts of a cell cost (see `harness.cluster.costs`)."""
    checkpoint, samples = plan.models[cell.model].checkpoint, plan.cells[cell]
    if not samples:
        return 0.0
    return samples * CostModel.of(checkpoint.parameters, checkpoint.config).prompt(round(plan.tokens[cell] / samples))

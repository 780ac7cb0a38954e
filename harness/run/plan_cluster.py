"""How a plan's work is spread over a cluster's engines, as text for people; without a model and without a cluster."""

from __future__ import annotations

import os

from harness.cluster.shares import AT_ONCE, divide, usable
from harness.config.cluster import ClusterOptions
from harness.run.costs import Costs
from harness.run.hardware import gpu_names
from harness.text import align, counted
from harness.types import Cell


def render_cluster(costs: Costs, options: ClusterOptions) -> str:
    """A line about the engines, and per model how many it gets and how its requests spread over them.

    Where the number of engines is known only to the cluster, the plan says how many each model can use.
    """
    plan, weights = costs.plan, costs.weights()
    parallel = plan.config.engine.tensor_parallel_size * plan.config.engine.pipeline_parallel_size
    known = options.engines or _engines_here(options, parallel)
    size = counted(parallel, "GPU") if options.gpus != 0 else counted(options.cpus or 1, "core")
    of_model = {label: [c for c in plan.cells if plan.engine(c) == label and plan.cells[c]] for label in plan.engines}
    of_model = {label: cells for label, cells in of_model.items() if cells or label in plan.models}
    work = {label: sum(weights[c] * plan.cells[c] for c in cells) for label, cells in of_model.items()}
    most = {label: _usable(costs, cells, weights, work[label]) for label, cells in of_model.items()}
    head = f"cluster {options.address}: "
    if known is None:
        head += f"as many engines of {size} as it has room for; the models share them by their work"
    else:
        at_once = min(AT_ONCE, known, len(work))
        head += f"{counted(known, 'engine')} ({size} each where the cluster has GPUs)"
        head += f"; {counted(at_once, 'model')} at once" if len(work) > 1 else ""
        head += ", the next one takes the engines of one that has ended" if at_once < len(work) else ""
    first = dict(list(work.items())[: min(AT_ONCE, known or AT_ONCE)])
    given = divide(known, first, most) if known is not None else {}
    total = sum(work.values()) or 1.0
    rows = [("model", "engines", "at most", "requests", "per engine", "share of the work", "longest request")]
    for label, cells in of_model.items():
        requests = sum(plan.cells[cell] for cell in cells)
        engines = given.get(label, 1)
        longest = max((weights[cell] for cell in cells), default=0.0)
        part = longest / (work[label] / engines) if work[label] else 0.0
        rows.append(
            (label, f"{engines}" if known is not None else "-", f"{most[label]:,}", f"{requests:,}",
             f"{requests // engines:,}", f"{work[label] / total:.0%}", f"{part:.2%} of an engine's work")
        )  # fmt: skip
    return "\n".join([head, *align(rows, right=range(1, 6), rule=True)])


def _usable(costs: Costs, cells: list[Cell], weights: dict[Cell, float], work: float) -> int:
    longest = max((weights[cell] for cell in cells), default=0.0)
    return usable(work, longest, sum(costs.plan.cells[cell] for cell in cells))


def _engines_here(options: ClusterOptions, parallel: int) -> int | None:
    """Engines on this machine; None where another one's devices count."""
    if options.address != "local":
        return None
    if options.gpus != 0 and (gpus := len(gpu_names())):
        return max(1, gpus // parallel)
    return max(1, (os.cpu_count() or 1) // (options.cpus or 4))

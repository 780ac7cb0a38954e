"""What `plan` and `run --budget` share: the plan for a device, its measured speed, the budget, and their text."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from harness.config import Config
    from harness.run.budget import Budget
    from harness.run.plan import Plan


def planned_for(config: Config, device_memory: float | None) -> Plan:
    """The plan of `config`. `device_memory`: GiB of each GPU that it is made for; None: this machine's devices."""
    from harness.cost.devices import GIB, Devices
    from harness.run.plan import build

    if device_memory is None:
        return build(config)
    options = config.engine
    count = options.tensor_parallel_size * options.pipeline_parallel_size
    name = f"GPU of {device_memory:g} GiB"
    return build(config, devices=Devices(kind="gpu", memory=device_memory * GIB, count=count, name=name, assumed=True))


def measured(plan: Plan, path: Path) -> None:
    """Measure the models whose speed no run beside the run directory `path` tells; nothing where all are known."""
    from harness.engine.requests import EngineError
    from harness.run.calibration import measure
    from harness.run.costs import Costs, results_of
    from harness.types import GatedevalError

    costs = Costs(plan, results_of(path, plan))
    try:
        measure(plan, costs, plan.config.results, lambda line: print(line, file=sys.stderr, flush=True))
    except EngineError as error:
        raise GatedevalError(f"the speed could not be measured: {error}") from error


def fitted(plan: Plan, seconds: float, path: Path) -> Budget:
    """The plan of equal precision within `seconds`.

    Raises:
        GatedevalError: the speed of a model is not known, or the smallest plan takes longer.
    """
    from harness.run.budget import fitting
    from harness.run.costs import Costs, results_of
    from harness.types import GatedevalError

    costs = Costs(plan, results_of(path, plan))
    if not costs.measured:
        raise GatedevalError(
            f"--budget: the speed of {', '.join(costs.unmeasured())} on this machine is not known; add --measure, which"
            " takes about ten seconds per model beside its start"
        )
    return fitting(costs, seconds)


def show(plan: Plan, path: Path, out: TextIO, budget: Budget | None = None) -> None:
    """Print the plan with its memory and time; nothing where everything was refused: a table of zeros says nothing.

    `budget`: what gave the plan its numbers of samples.
    """
    from harness.run.costs import Costs, results_of
    from harness.run.costs_text import memory_text, time_text
    from harness.run.plan_text import render

    if not plan.cells:
        return
    print(render(plan), file=out)
    costs = Costs(plan, results_of(path, plan))
    for part in (memory_text(costs), time_text(costs, plan.cells)):
        if part:
            print("\n" + "\n".join(part), file=out)
    if budget is not None:
        print("\n" + budget.text(plan.config), file=out)

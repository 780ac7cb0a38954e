"""What a plan takes, as text for people: memory on each device, and time, per engine and context setting."""

from __future__ import annotations

from collections.abc import Mapping

from harness.cost.memory import Memory, gib
from harness.run.costs import Costs
from harness.run.estimate import duration
from harness.text import align
from harness.types import Cell

_DASH = "-"


def memory_text(costs: Costs) -> list[str]:
    """A line per model and setting with what it takes on each device."""
    plan = costs.plan
    if plan.devices is None:
        return ["memory: not known: nvidia-smi does not tell the GPUs' memory (--device-memory GIB says it)"]
    devices = plan.devices
    what = "machine" if devices.kind == "cpu" else f"GPU ({devices.count} x {devices.name})"
    title = f"memory on each device; the {what} has {gib(devices.memory)}"
    rows: list[tuple[str, ...]] = [
        ("model", "context", "weights", "KV cache", "per token", "longest prompt", "at once", "layers")
    ]
    for (model, setting), memory in plan.memory.items():
        rows.append((model, setting, *_memory_row(memory, costs, model, setting)))
    return [title + ":", *align(rows, right=range(2, 7), rule=True)]


def _memory_row(memory: Memory, costs: Costs, model: str, setting: str) -> tuple[str, ...]:
    cells = costs.plan.of(model, setting)
    cell = max(cells, key=lambda c: costs.plan.loads[c].tokens / costs.plan.loads[c].requests, default=None)
    together = _DASH if cell is None else f"{costs.together(cell, sum(costs.plan.cells[c] for c in cells)):,.0f}"
    return (
        gib(memory.weights),
        _size(memory.pool),
        _size(memory.token),
        f"{_size(memory.longest)} ({memory.max_length:,})",
        together,
        memory.kv.kind if memory.kv else "not known from config.json",
    )


def _size(value: float | None) -> str:
    return _DASH if value is None else "none" if value <= 0 else gib(value)


def time_text(costs: Costs, samples: Mapping[Cell, int]) -> list[str]:
    """A line per model and setting with the predicted time, and the sum; or how to get to know it."""
    if not samples:
        return []
    unknown = [label for label in costs.unmeasured() if any(costs.plan.engine(cell) == label for cell in samples)]
    if unknown and costs.plan.devices is not None and costs.plan.devices.assumed:
        return [f"time: not known on {costs.plan.devices.name}"]
    if unknown:
        return [
            f"time: not known for {', '.join(unknown)}: no run in {costs.plan.config.results} tells the speed on this"
            " machine; `gatedeval plan CONFIG --measure` measures it (about ten seconds per model, and its start)"
        ]
    rows: list[tuple[str, ...]] = [
        ("model", "context", "start", "prompts", "of it attention", "answers", "together", "from")
    ]
    for label, cost in costs.models.items():
        first, mine = True, {c: n for c, n in samples.items() if costs.plan.engine(c) == label}
        for setting in dict.fromkeys(c.context for c in mine):
            of_setting = {c: n for c, n in mine.items() if c.context == setting and n}
            if not of_setting:
                continue
            parts = _parts(costs, of_setting)
            starts = (cost.known.start or 0.0) if first or costs.engines(label, 2) == 2 else 0.0
            start = starts + cost.known.switch
            prompts, attention, answers = parts
            rows.append(
                (label, setting, *map(duration, (start, prompts, attention, answers, start + prompts + answers)),
                 cost.known.source)
            )  # fmt: skip
            first = False
    rows.append(("all", "", "", "", "", "", duration(costs.total(samples)), ""))
    return ["time (predicted):", *align(rows, right=range(2, 7), rule=True)]


def _parts(costs: Costs, samples: Mapping[Cell, int]) -> tuple[float, float, float]:
    """Seconds of (reading prompts, its quadratic part, writing answers)."""
    prompts = attention = answers = 0.0
    for cell, n in samples.items():
        work = costs.work(cell, n)
        parts = costs.of(cell).speed.parts(work)
        reading = work.computed / costs.batch() / work.steps if work.steps else 0.0  # part of the steps
        attention += parts["pairs"]
        prompts += parts["made"] + parts["requests"] + parts["computed"] + parts["pairs"] + parts["steps"] * reading
        answers += parts["answers"] + parts["reads"] + parts["steps"] * (1 - reading)
    return prompts, attention, answers

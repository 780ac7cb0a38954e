"""The numbers that a table reports, as parts of a plan: which cells each is a mean of, and with what weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from harness.benchmarks.presentation import presentation_of
from harness.run.plan import Plan
from harness.stats.sequential import Design
from harness.types import Cell

Place = tuple[str, str, str, int, str]
"""Model, context setting, benchmark, length in tokens, and the task where each is a number of its own (else "")."""


def numbers_of(plan: Plan, cells: Iterable[Cell]) -> dict[Place, list[Cell]]:
    """The numbers that some cells of the plan make up, each with its cells, in their order."""
    found: dict[Place, list[Cell]] = {}
    for cell in cells:
        rule = plan.benchmark(cell).sampling
        task = cell.task if rule is not None and rule.per == "task" else ""
        found.setdefault((cell.model, cell.context, cell.benchmark, cell.length, task), []).append(cell)
    return found


def population_of(plan: Plan, cells: Sequence[Cell]) -> tuple[int, ...] | None:
    """How many samples there are of each cell's task to draw from; None where they are generated, without end."""
    there = [plan.benchmark(cell).population(cell.task, plan.data) for cell in cells]
    population = tuple(n for n in there if n is not None)
    return population if len(population) == len(cells) else None


def weights_of(cells: Sequence[Cell], population: Sequence[int] | None) -> tuple[float, ...]:
    """Each cell's weight in the reported number; they sum to 1. RULER's tasks count alike, MMLU's questions do."""
    equal = population is None or presentation_of(cells[0].benchmark).pooling == "tasks"
    parts = [1.0] * len(cells) if equal or population is None else [float(n) for n in population]
    return tuple(part / sum(parts) for part in parts)


def design_of(plan: Plan, cells: Sequence[Cell]) -> Design:
    """How cells make up their number, with the most samples that the plan asks of each.

    An interval counts the population as finite only where a rule draws from it at random, not for a task's first n.
    """
    population = population_of(plan, cells)
    drawn = all(plan.benchmark(cell).sampling is not None for cell in cells)
    most = [plan.cells[cell] for cell in cells]
    return Design.of(weights_of(cells, population), 1, most, population if drawn else None)

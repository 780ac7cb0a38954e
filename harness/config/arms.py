"""Which checkpoints make one row of a table, and whether they are enough for a claim about their recipe. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple


class Checkpoint(NamedTuple):
    """A model as far as arms go: label, arm (None: it is a row of its own), training step (None: unknown)."""

    label: str
    arm: str | None = None
    step: int | None = None

    @property
    def row(self) -> str:
        """The name of the row that it belongs to."""
        return self.arm or self.label


def checkpoints_of(entries: Iterable[Mapping[str, Any]]) -> list[Checkpoint]:
    """The entries of `models`, as run.json has them."""
    return [Checkpoint(e["label"], e.get("arm"), e.get("step")) for e in entries]


def steps_of(checkpoints: Sequence[Checkpoint], arm: str) -> list[int]:
    """The training steps of an arm, ascending; none where its checkpoints have none."""
    return sorted({c.step for c in checkpoints if c.arm == arm and c.step is not None})


def last_steps(checkpoints: Sequence[Checkpoint]) -> dict[str, int]:
    """Arm -> the step that its row is about, for arms with steps: the last one that all of them have, else its own."""
    steps = {c.arm: steps_of(checkpoints, c.arm) for c in checkpoints if c.arm and c.step is not None}
    common = set.intersection(*map(set, steps.values())) if steps else set()
    return {arm: max(common) if common else own[-1] for arm, own in steps.items()}


def rows_of(checkpoints: Sequence[Checkpoint], steps: str = "last") -> dict[str, tuple[str, ...]]:
    """Row -> the labels of its checkpoints, in the order of the config.

    `steps`: "last" leaves out checkpoints at other steps than those of `last_steps`, "all" takes every one.
    """
    last = last_steps(checkpoints) if steps == "last" else {}
    rows: dict[str, tuple[str, ...]] = {}
    for c in checkpoints:
        if c.arm not in last or c.step == last[c.arm]:
            rows[c.row] = (*rows.get(c.row, ()), c.label)
    return rows


def row_names(checkpoints: Sequence[Checkpoint], arms: str, steps: str) -> list[str]:
    """The names that rows of a table have, with its options `arms` and `steps`."""
    if arms == "off":
        return [c.label for c in checkpoints]
    rows = rows_of(checkpoints, steps)
    below = [label for own in rows.values() for label in own] if arms == "expanded" else []
    return list(dict.fromkeys([*rows, *below]))


def recipe_refusal(checkpoints: Sequence[Checkpoint], steps: str = "last") -> str | None:
    """Why nothing can be said about recipes from these checkpoints, in one line; None where something can."""
    several = [c.arm for c in checkpoints if c.arm and len(steps_of(checkpoints, c.arm)) > 1]
    if steps == "all" and several:
        return (
            f"infer: recipe needs independent trainings, and steps of one training (arm {several[0]!r}) are not; "
            "use steps: last"
        )
    single = [row for row, labels in rows_of(checkpoints, steps).items() if len(labels) < 2]
    if not single:
        return None
    last = last_steps(checkpoints) if steps == "last" else {}
    at = f" at step {last[single[0]]}" if single[0] in last else ""
    more = f" (and {', '.join(map(repr, single[1:]))})" if single[1:] else ""
    return (
        f"infer: recipe needs two checkpoints or more in every arm, and {single[0]!r}{more} has one{at}: one training "
        "cannot show how much trainings of a recipe differ; give more checkpoints the same `arm`, or use infer: files"
    )

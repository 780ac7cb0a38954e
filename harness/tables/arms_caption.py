"""What a caption says about arms: whose mean a row is, and what its comparisons are about."""

from __future__ import annotations

from collections.abc import Iterable

from harness.config.arms import last_steps
from harness.stats import permutation_floor
from harness.store import Store
from harness.tables.arms import arms_of, members
from harness.tables.paired import ALPHA, Comparison
from harness.text import counted


def arm_lines(store: Store, rows: Iterable[str]) -> list[str]:
    """One line for every arm among `rows`: its checkpoints, and which of its steps they are at."""
    arms = arms_of(store)
    if arms is None:
        return []
    known = members(arms.checkpoints)
    last = last_steps(known) if arms.steps == "last" else {}
    lines = []
    for row in dict.fromkeys(rows):
        labels = arms.rows.get(row, (row,))
        if labels == (row,):
            continue
        left_out = [c for c in known if c.row == row and c.label not in labels]
        what = f"mean over {counted(len(labels), 'checkpoint')} ({', '.join(labels)})"
        if len(labels) == 1:
            what = f"one checkpoint ({labels[0]})"
        at = f", those at step {last[row]}; {len(left_out)} at other steps are left out" if left_out else ""
        spread = "; ± the standard deviation between them" if len(labels) > 1 else ""
        lines.append(f"Arm {row}: {what}{at}{spread}.")
    return lines


def inference_lines(comparisons: Iterable[Comparison]) -> list[str]:
    """What the comparisons of arms are about, and by which test; nothing where none of them is of an arm."""
    found = [c for c in comparisons if c.checkpoints is not None]
    if not found:
        return []
    if not any(c.recipe for c in found):
        return [
            "Comparisons are about these checkpoints: an arm's scores are averaged over its checkpoints, sample by "
            "sample. Other trainings of the same recipes may differ by more; infer: recipe tests that."
        ]
    start = "Comparisons are about the recipes: the unit is a checkpoint, so they hold for other trainings."
    family = max(c.family for c in found)
    sizes = sorted({(a.size, b.size) for c in found if c.checkpoints is not None for a, b in [c.checkpoints]})
    floors = ", ".join(f"{a} against {b} checkpoints: {permutation_floor(a, b):.2g}" for a, b in sizes)
    lines = [start]
    if any(c.test == "Welch t" for c in found):
        needed = f"p < {ALPHA}" if family == 1 else f"p < {ALPHA / family:.2g} ({ALPHA} / {family})"
        lines.append(
            "Test: Welch's t on the checkpoints' means, which assumes that these are normally distributed. The exact "
            f"permutation of checkpoints assumes nothing, but its smallest p-value is too large ({floors}); a "
            f"comparison needs {needed}."
        )
    if any(c.test != "Welch t" for c in found):
        lines.append(
            "Test: exact permutation of checkpoints over the arms, which assumes no distribution "
            f"(smallest p-value with {floors})."
        )
    return [" ".join(lines)]

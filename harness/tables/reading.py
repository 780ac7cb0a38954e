"""How to read a table, in words: dash, parentheses, bold, intervals, significance. Only what occurs in it."""

from __future__ import annotations

from collections.abc import Iterable

from harness.tables.layout import DASH, Table
from harness.tables.pairs import Comparison

ALPHA = 0.05


def spans(values: Iterable[tuple[str, float]], before: str = "") -> str:
    """ "RULER ±0.7 to ±3.9, MMLU ±11.2": the smallest and largest value of each group, one decimal."""
    by_group: dict[str, list[float]] = {}
    for group, value in values:
        by_group.setdefault(group, []).append(value)
    parts = []
    for group, numbers in by_group.items():
        low, high = f"{before}{min(numbers):.1f}", f"{before}{max(numbers):.1f}"
        parts.append(f"{group} {low}" + (f" to {high}" if high != low else ""))
    return ", ".join(parts)


def reading_lines(
    table: Table,
    halves: list[tuple[str, float]],
    tested: list[tuple[str, Comparison]],
    silent: list[str],
    baselines: list[str],
    clustered: list[float],
) -> list[str]:
    """Caption lines. `halves`: (group, half-width of a 95% interval), points; `tested`: (group, comparison);
    `silent`: why some models were not compared; `baselines`: whom they were compared with; `clustered`: half-widths
    with MMLU's subjects as clusters.
    """
    entries = [
        e
        for row, numeric in ((r, table.columns) for r in table.rows)
        for e, c in zip(row, numeric, strict=True)
        if c.numeric
    ]
    parts, lines = [], []
    if any(e.value is None for e in entries):
        parts.append(f"{DASH} beyond the context's reach, or not there")
    if any(e.note is not None for e in entries):
        parts.append("in brackets the 95% interval")
    elif any(e.drop is not None for e in entries):
        parts.append("in parentheses the change against the same model's first un-extended context")
    if any(e.best for e in entries):
        parts.append("bold the best in its column")
    if any("†" in e.marks for e in entries):
        parts.append("† from a part of the planned samples or tasks")
    if parts:
        lines.append("Reading: " + "; ".join(parts) + ".")
    if halves:
        lines.append(
            f"95% intervals: {spans(halves, '±')} points (Wilson for 0/1 scores, else bootstrap, stratified by task)."
        )
    if clustered:
        widths = spans([("", half) for half in clustered], "±").strip()
        lines.append(
            f"MMLU's interval is over questions of these subjects; over other subjects too (subjects as clusters) it "
            f"is {widths} points."
        )
    if tested:
        tests = " or ".join(sorted({c.test for _, c in tested}))
        lines.append(
            f"▲ above, ▼ below {' or '.join(baselines)} under the same context setting: p < {ALPHA}, paired {tests} "
            f"test, Holm over {len(tested)} comparisons."
        )
        lines.append(
            f"Differences smaller than these may go unseen (80% power): {spans((g, c.mdd) for g, c in tested)} points."
        )
    if silent:
        lines.append(f"Not tested ({len(silent)}): {silent[0]}.")
    return lines

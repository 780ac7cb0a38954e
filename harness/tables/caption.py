"""What stands beneath a table: how it was measured, what is missing, and every setting that moves a number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from harness.data.catalog import MMLU_SUBJECTS
from harness.store import Store
from harness.tables.aggregates import describe, ruler_tasks
from harness.types import Cell
from tasks.ruler.protocol import TASKS as RULER_TASKS

CAPPED_SHARE = 0.01  # length-capped answers above this share are told


def benchmark_config(store: Store, kind: str) -> list[dict[str, Any]]:
    """The config's entries for one benchmark: "ruler", "mmlu", "gsm8k" or "lm_eval"."""
    return [b for b in store.manifest.get("config", {}).get("benchmarks") or [] if kind in b]


def counts(numbers: Iterable[int]) -> str:
    """ "500", or "20 to 500" where they differ; "no" for none."""
    seen = sorted(set(numbers))
    if not seen:
        return "no"
    return str(seen[0]) if len(seen) == 1 else f"{seen[0]} to {seen[-1]}"


def ruler_counts(store: Store) -> str:
    """ "500 samples per task and length"; where lengths differ, the samples per task of each."""
    lengths: dict[int, list[int]] = {}
    for cell in store.cells:
        if cell.benchmark == "ruler":
            lengths.setdefault(cell.length, []).append(len(store.scores(cell).ids))
    groups: dict[str, list[str]] = {}
    for length in sorted(lengths):
        groups.setdefault(counts(lengths[length]), []).append(str(length))
    if len(groups) < 2:
        return f"{next(iter(groups), 'no')} samples per task and length"
    return "samples per task: " + "; ".join(f"{n} at {_and(at)}" for n, at in groups.items())


def _and(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def ruler_title(store: Store) -> tuple[str, str]:
    """ "RULER", or "RULER (2 of 13 tasks)", and short for it: an average over fewer tasks is never called RULER's."""
    tasks = ruler_tasks(store)
    if set(tasks) == set(RULER_TASKS):
        return "RULER", "RULER"
    return f"RULER ({len(tasks)} of {len(RULER_TASKS)} tasks)", f"RULER {len(tasks)}/{len(RULER_TASKS)}"


def mmlu_title(store: Store) -> tuple[str, str]:
    """ "MMLU", or "MMLU (5 of 57 subjects)", and short for it."""
    subjects = {cell.task for cell in store.cells if cell.benchmark == "mmlu"}
    n, whole = len(subjects), len(MMLU_SUBJECTS)
    return ("MMLU", "MMLU") if n >= whole else (f"MMLU ({n} of {whole} subjects)", f"MMLU {n}/{whole}")


def shots(entry: dict[str, Any], kind: str) -> str:
    """ "5-shot, ", from a config's benchmark entry; empty where it does not say."""
    n = (entry.get(kind) or {}).get("shots") if isinstance(entry.get(kind), dict) else entry.get("shots")
    return "" if n is None else f"{n}-shot, "


def scoring_lines(store: Store) -> list[str]:
    """One line per benchmark: what the number is, and over how many samples."""
    lines = []
    sizes = {
        name: counts(len(store.scores(c).ids) for c in store.cells if c.benchmark == name)
        for name in dict.fromkeys(c.benchmark for c in store.cells)
    }
    if "ruler" in sizes:
        tasks = ruler_tasks(store)
        over = "13 tasks" if set(tasks) == set(RULER_TASKS) else f"{len(tasks)} tasks ({', '.join(tasks)})"
        facts = [
            f"{key.replace('_', ' ')} {value}"
            for entry in benchmark_config(store, "ruler")[:1]
            for key, value in entry.items()
            if key not in ("ruler", "lengths", "samples", "answer_tokens")  # the last: see `setting_lines`
        ]
        lines.append(
            f"RULER: mean of {over} with equal weight, {ruler_counts(store)}, official "
            f"string-match scoring{''.join('; ' + f for f in facts)}."
        )
    lines += [
        f"MMLU: {shots(entry, 'mmlu')}accuracy over questions, {sizes.get('mmlu', 'no')} per subject; by subject: mean "
        "over subjects."
        for entry in benchmark_config(store, "mmlu")[:1]
    ]
    lines += [
        f"GSM8k: {shots(entry, 'gsm8k')}{sizes.get('gsm8k', 'no')} questions; strict: the answer after ####; flexible: "
        "the last number in the answer."
        for entry in benchmark_config(store, "gsm8k")[:1]
    ]
    for entry in benchmark_config(store, "lm_eval"):
        name = entry["lm_eval"]
        lines.append(f"{name}: {shots(entry, 'lm_eval')}{sizes.get(name, 'no')} samples per task.")
    return lines


def setting_lines(store: Store) -> list[str]:
    """Seed, divergence options that were on, answers cut by their token budget, unreadable lines, free lines."""
    lines = []
    if (seed := store.manifest.get("seed", store.manifest.get("config", {}).get("seed"))) is not None:
        lines.append(f"Seed {seed}.")
    options = {k: v for k, v in (store.manifest.get("options") or {}).items() if v not in (None, False)}
    if options:
        lines.append(
            "Divergences from upstream that were on: "
            + ", ".join(k if v is True else f"{k} {v}" for k, v in options.items())
            + "."
        )
    lines += capped_lines(store)
    unreadable = sum(store.scores(cell).unreadable for cell in store.cells)
    if unreadable:
        lines.append(f"{unreadable} damaged lines in the sample files were left out; their samples are owed again.")
    return lines + [str(line) for line in store.manifest.get("caption") or []]


def capped_lines(store: Store) -> list[str]:
    """Answers cut by their token budget: the cells, or where they are many the tasks with their highest share."""
    capped: dict[Cell, float] = {}
    for cell in store.cells:
        columns = store.scores(cell)
        if columns.capped.size and (share := float(columns.capped.mean())) > CAPPED_SHARE:
            capped[cell] = share
    if not capped:
        return []
    if len(capped) <= 6:
        ranked = sorted(capped.items(), key=lambda item: -item[1])
        where = [f"{describe(cell)} {100 * share:.0f}%" for cell, share in ranked]
    else:
        tasks: dict[str, list[float]] = {}
        for cell, share in capped.items():
            tasks.setdefault(cell.task, []).append(share)
        of = Counter(cell.task for cell in store.cells)
        where = [
            f"{task} up to {100 * max(shares):.0f}% (in {len(shares)} of {of[task]} cells)"
            for task, shares in sorted(tasks.items(), key=lambda item: -max(item[1]))
        ]
    return [f"Answers cut by their token budget in more than 1% of samples: {', '.join(where)}."]


def missing_lines(missing: list[str], partial: list[str]) -> list[str]:
    """What is not there, in words, at most eight items of each kind."""

    def some(items: list[str]) -> str:
        items = list(dict.fromkeys(items))
        return "; ".join(items[:8]) + (f"; and {len(items) - 8} more" if len(items) > 8 else "")

    lines = []
    if missing:
        lines.append(f"Missing ({len(set(missing))}): {some(missing)}.")
    if partial:
        lines.append(f"† partial ({len(set(partial))}): {some(partial)}.")
    return lines

"""`gatedeval compare`: the verdict on two models in words and numbers, and the samples on which they differ."""

from __future__ import annotations

import math
from pathlib import Path

from harness import stats
from harness.store import Store
from harness.tables.aggregates import ruler_tasks, task_mean, usable
from harness.tables.delta import Line, choose, headlines, lines
from harness.tables.frames import labels
from harness.tables.layout import length_title
from harness.tables.pairs import adjust
from harness.tables.reading import ALPHA
from harness.tables.rerun import in_16_bit, rerun_sentence
from harness.types import Cell, GatedevalError

LISTED = 40  # differing samples printed; the rest are counted


def compare(
    path: Path | str,
    baseline: str | None = None,
    candidate: str | None = None,
    context: str | None = None,
    *,
    listed: int = LISTED,
    rerun: Path | str | None = None,
) -> str:
    """The comparison of two models of one run as text.

    `context` restricts it to one context setting. `listed`: how many of the differing samples to print, 0 for none.
    `rerun`: another run of the same config, whose distance from this one is the rerun noise beside each difference.
    Raises GatedevalError where there is nothing to compare, or where the two were asked different things.
    """
    store = Store.read(Path(path))
    again = None if rerun is None else Store.read(Path(rerun))
    baseline, candidate = choose(store, baseline, candidate)
    contexts = labels(store, "contexts")
    if context is not None and context not in contexts:
        raise GatedevalError(f"no context {context!r} in this run; it has {', '.join(map(repr, contexts))}")
    found, absent = lines(store, baseline, candidate, context)
    if not found:
        raise GatedevalError(
            f"{candidate!r} and {baseline!r} have no cell in common that both have scores for"
            + (f": {absent[0]}" if absent else "")
        )
    main = headlines(found)
    single = [line for line in found if line not in main]
    for family in (main, single):  # a benchmark's verdict is not weakened by looking at its tasks too
        adjust([line.comparison for line in family])
    out = [f"{candidate} against {baseline}", ""]
    for name in dict.fromkeys(line.context for line in main):
        out.append(f"{name}:")
        for line in (line for line in main if line.context == name):
            out.append(f"  {_sentence(line, baseline, candidate)}")
            if line.comparison.clustered is not None:
                low, high = line.comparison.clustered
                out.append(f"    subjects as clusters (would it hold on other subjects?): [{low:+.2f}, {high:+.2f}]")
            if again is not None:
                out.append(f"    {rerun_sentence(store, again, line)}")
        out += [f"  {text}" for text in _curves(store, name, baseline, candidate)] + [""]
    out.append(_count(main, candidate, "comparisons"))
    if single:
        out.append(_count(single, candidate, "single tasks") + " `--style delta` shows each.")
    if absent:
        out.append(f"Not compared ({len(absent)}): {'; '.join(absent[:5])}{'; ...' if len(absent) > 5 else ''}.")
    if again is None and in_16_bit(store):
        out.append(
            "Answers in 16-bit precision can change with the composition of batches: a rerun of the same model moves "
            "some samples too. How many: run the config into another directory with another engine.max_num_seqs, and "
            "give that run as --rerun."
        )
    return "\n".join([*out, *_differing(store, found, baseline, candidate, listed)]) + "\n"


def _count(family: list[Line], candidate: str, what: str) -> str:
    won = sum(x.comparison.adjusted < ALPHA and x.comparison.difference > 0 for x in family)
    lost = sum(x.comparison.adjusted < ALPHA and x.comparison.difference < 0 for x in family)
    return (
        f"Of {len(family)} {what}, {candidate} is better in {won} and worse in {lost}; in the other "
        f"{len(family) - won - lost} no difference is shown (p < {ALPHA} after Holm over these, paired tests)."
    )


def _sentence(line: Line, baseline: str, candidate: str) -> str:
    c = line.comparison
    name = {"ruler": "RULER", "mmlu": "MMLU", "gsm8k": "GSM8k"}.get(line.benchmark, line.benchmark)
    if line.task not in ("average", "all") and line.task != line.benchmark:
        name += f" {line.task}"
    if line.benchmark == "gsm8k" and line.metric:
        name += f" ({line.metric.partition(',')[2]})"
    if line.length:
        name += f" at {length_title(line.length)}"
    if c.adjusted < ALPHA:
        verdict = f"{candidate if c.difference > 0 else baseline} is better"
    elif c.difference == 0 and c.gained == c.lost == 0:
        verdict = "equal on every sample"
    else:
        verdict = f"no difference shown (one of {c.mdd:.1f} points would be, with 80% power)"
    return (
        f"{name}: {c.baseline:.2f} -> {c.candidate:.2f}, {c.difference:+.2f} [{c.low:+.2f}, {c.high:+.2f}], "
        f"p = {c.p:.2g}, Holm {c.adjusted:.2g} ({c.test}; {c.samples} samples, {c.gained} gained, {c.lost} lost): "
        f"{verdict}"
    )


def _curves(store: Store, context: str, baseline: str, candidate: str) -> list[str]:
    """Effective length and area under the score-length curve, where RULER ran at two lengths or more."""
    lengths = sorted({c.length for c in store.cells if c.benchmark == "ruler" and c.context == context})
    if len(lengths) < 2:
        return []
    tasks = ruler_tasks(store)
    out = []
    for model in (baseline, candidate):
        curve = {n: task_mean(store, [Cell(model, context, "ruler", t, n) for t in tasks]).value for n in lengths}
        longest, area = stats.effective_length(curve), stats.area_under_curve(curve)
        reach = length_title(longest) if longest else f"below {length_title(lengths[0])}"
        mean = "not known (a length is missing)" if math.isnan(area) else f"{area:.2f}"
        out.append(
            f"{model}: effective length {reach} (score above {stats.RULER_THRESHOLD}), mean height of its curve "
            f"over log2(length) {mean}"
        )
    return out


def _differing(store: Store, found: list[Line], baseline: str, candidate: str, listed: int) -> list[str]:
    """The samples that the two models score differently, those that the candidate lost first."""
    rows = []
    for line in found:
        if line.task in ("average", "all"):
            continue
        ((a, b),) = line.comparison.cells
        if not (usable(store, a) and usable(store, b)):
            continue
        left = {s.id: s for s in store.samples(a)}
        for s in store.samples(b):
            if s.id in left:
                metric = line.metric or next(iter(s.scores))
                before, after = left[s.id].scores[metric], s.scores[metric]
                if before != after:
                    rows.append(
                        (after - before, a, s.id, metric, before, after, left[s.id].response, s.response, s.references)
                    )
    if not rows:
        return ["", "No sample is scored differently."]
    out = [
        "",
        f"{len(rows)} samples are scored differently" + (f", the first {listed}:" if len(rows) > listed else ":"),
    ]
    rows.sort(key=lambda r: r[0])
    for _, cell, id, metric, before, after, old, new, references in rows[:listed]:
        where = f"{cell.context} / {cell.task}" + (f" at {length_title(cell.length)}" if cell.length else "")
        mode = f" {metric.partition(',')[2]}" if "," in metric and cell.benchmark == "gsm8k" else ""
        out += [
            f"- {where}, sample {id}{mode}: {before:.2f} -> {after:.2f}; reference {_short(', '.join(references))}",
            f"    {baseline}: {_short(old)}",
            f"    {candidate}: {_short(new)}",
        ]
    return out


def _short(text: str, limit: int = 100) -> str:
    """One line of a text, control characters shown and not acted on (a response may hold terminal escapes)."""
    plain = "".join(c if c.isprintable() else " " for c in text)
    plain = " ".join(plain.split())
    return repr(plain if len(plain) <= limit else plain[: limit - 3] + "...")

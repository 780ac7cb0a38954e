"""`gatedeval compare`: the verdict on two models in words and numbers, and the samples on which they differ."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from pathlib import Path

from harness import stats
from harness.benchmarks.presentation import presentation_of
from harness.store import Store
from harness.tables.arms_caption import inference_lines
from harness.tables.arms_view import read_by_arm
from harness.tables.caption import clusters_title
from harness.tables.choices import reference_text, response_text
from harness.tables.comparisons import Line, check_found, choose, headlines, lines
from harness.tables.dtypes import in_16_bits
from harness.tables.family import adjust_lines
from harness.tables.frames import check_label
from harness.tables.layout import DASH, length_title
from harness.tables.lengths import CurveSummary, summaries
from harness.tables.paired import ALPHA, Comparison
from harness.tables.rerun import rerun_sentence
from harness.text import counted, interval_text, number_text
from harness.types import Cell, Sample

HIERARCHICAL = "checkpoints and samples drawn again (would it hold for other trainings on other samples?)"
LISTED = 40  # differing samples printed; the rest are counted


def compare(
    path: Path | str,
    baseline: str | None = None,
    candidate: str | None = None,
    context: str | None = None,
    *,
    listed: int = LISTED,
    rerun: Path | str | None = None,
    infer: str | None = None,
) -> str:
    """The comparison of two models, or two arms, of one run as text.

    `context` restricts it to one context setting. `listed`: how many of the differing samples to print, 0 for none.
    `rerun`: another run of the same config, whose distance from this one is the rerun noise beside each difference.
    `infer`: "files" or "recipe", in place of the run's own choice.
    Raises GatedevalError where there is nothing to compare, or where the prompts of the two differ.
    """
    store = read_by_arm(Store.read(Path(path)), baseline, candidate, infer=infer)
    again = None if rerun is None else read_by_arm(Store.read(Path(rerun)), baseline, candidate)
    baseline, candidate = choose(store, baseline, candidate)
    check_label(store, "contexts", context)
    found, absent = lines(store, baseline, candidate, context)
    check_found(found, absent, baseline, candidate)
    main = headlines(found)
    single = [line for line in found if line not in main]
    families = adjust_lines(store, found, baseline, candidate)
    out = [f"{candidate} against {baseline}", ""]
    for name in dict.fromkeys(line.context for line in main):
        out.append(f"{name}:")
        for line in (line for line in main if line.context == name):
            out += _verdict(store, again, line, baseline, candidate)
        out += [f"  {text}" for text in _curves(store, name, baseline, candidate)] + [""]
    out.append(count_sentence(main, candidate, "comparisons", families[0]))
    if single:
        out.append(
            count_sentence(single, candidate, "single tasks", families[1])
            + " `gatedeval table RUN --style delta` shows each."
        )
    out += inference_lines(line.comparison for line in main)
    if absent:
        out.append(f"Not compared ({len(absent)}): {'; '.join(absent[:5])}{'; ...' if len(absent) > 5 else ''}.")
    if again is None and in_16_bits(store):
        out.append(
            "Answers in 16-bit precision can change with the composition of batches: a rerun of the same model moves "
            "some samples too. How many: run the config into another directory with another engine.max_num_seqs, and "
            "give that run as --rerun."
        )
    return "\n".join([*out, "", *_listing(_differing(store, found), baseline, candidate, listed)]) + "\n"


def _verdict(store: Store, again: Store | None, line: Line, baseline: str, candidate: str) -> list[str]:
    """One comparison: the sentence, the interval over other tasks, and the rerun noise where it is known."""
    out = [f"  {sentence(line, baseline, candidate)}"]
    if (wide := line.comparison.hierarchical) is not None:
        out.append(f"    {HIERARCHICAL}: {interval_text(*wide)}")
    if line.comparison.clustered is not None:
        out.append(f"    {clusters_title(line.shown)}: {interval_text(*line.comparison.clustered)}")
    if again is not None:
        out.append(f"    {rerun_sentence(store, again, line)}")
    return out


def count_sentence(family: list[Line], candidate: str, what: str, tested: str) -> str:
    won = sum(x.comparison.significant and x.comparison.difference > 0 for x in family)
    lost = sum(x.comparison.significant and x.comparison.difference < 0 for x in family)
    kind = "tests over checkpoints" if any(x.comparison.recipe for x in family) else "paired tests"
    return (
        f"Of {len(family)} {what}, {candidate} is better in {won} and worse in {lost}; in the other "
        f"{len(family) - won - lost} no difference is shown ({kind}, p < {ALPHA}; {tested})."
    )


def line_name(line: Line) -> str:
    """ "RULER vt at 4K": benchmark, task unless the line is about the whole, mode and length."""
    name, mode = line.shown.title, line.shown.mode(line.metric)
    if not line.whole and line.task != line.benchmark:
        name += f" {line.task}"
    if mode:
        name += f" ({mode})"
    return name + (f" at {length_title(line.length)}" if line.length else "")


def sentence(line: Line, baseline: str, candidate: str) -> str:
    c = line.comparison
    if c.significant:
        verdict = f"{candidate if c.difference > 0 else baseline} is better"
    elif c.difference == 0 and c.gained == c.lost == 0:
        verdict = "equal on every sample"
    else:
        verdict = f"no difference shown ({_power(c)})"
    before, after = (
        number_text(v, 2) + spread for v, spread in zip((c.baseline, c.candidate), _spreads(c), strict=True)
    )
    return (
        f"{line_name(line)}: {before} -> {after}, "
        f"{number_text(c.difference, 2, signed=True)} {interval_text(c.low, c.high)}, "
        f"p = {c.p:.2g}, Holm {c.adjusted:.2g} ({c.test}; {counted(c.samples, 'sample')}, {c.gained} gained, "
        f"{c.lost} lost): {verdict}"
    )


def _spreads(c: Comparison) -> list[str]:
    """Of two arms, " ± 1.20 (3 checkpoints)" for each: the standard deviation between its checkpoints."""
    if c.checkpoints is None:
        return ["", ""]
    return [
        (f" ± {number_text(c.scale * stats.spread(means), 2)}" if means.size > 1 else "")
        + f" ({counted(means.size, 'checkpoint')})"
        for means in c.checkpoints
    ]


def _power(c: Comparison) -> str:
    """What the samples could have shown, in words that never contradict the difference that was seen."""
    unit = "checkpoints" if c.recipe else "samples"
    if c.larger_than_detectable:
        return (
            f"it is as large as the {c.mdd:.1f} points that such {unit} show with 80% power, and the test still does"
            f" not exclude chance: use more {unit}"
        )
    return f"one of {c.mdd:.1f} points would be, with 80% power at the level {ALPHA}/{c.family}"


def _curves(store: Store, context: str, baseline: str, candidate: str) -> list[str]:
    """The figures of each model's curve, where a benchmark has two lengths or more."""
    found = [s for s in summaries(store, context) if s.model in (baseline, candidate) and len(s.curve) > 1]
    found.sort(key=lambda s: s.model != baseline)
    return [f"{s.model}: {_curve_sentence(s)}" for s in found]


def _curve_sentence(summary: CurveSummary) -> str:
    """Effective length, with a warning where the score dips below the bar before it, and the curve's means."""
    dip = ""
    if summary.effective != summary.unbroken:
        unbroken = summary.unbroken
        until = f"only up to {length_title(unbroken)}" if unbroken else "not even at the shortest length"
        dip = f"; a shorter length is below it: above at every length {until}"
    height = "not known (a length is missing)" if math.isnan(summary.height) else f"{summary.height:.2f}"
    weighted = ", ".join(
        f"{name} {DASH if math.isnan(value) else f'{value:.2f}'}" for name, value in summary.means.items()
    )
    return (
        f"effective length {summary.reach} (score above {stats.RULER_THRESHOLD}{dip}), mean height of its curve over "
        f"log2(length) {height}; over lengths: {weighted}"
    )


@dataclass(frozen=True)
class _Differing:
    """One sample that the two models score differently; scores 0..1."""

    cell: Cell  # the baseline's
    metric: str
    before: float
    after: float
    baseline: Sample
    candidate: Sample


def _differing(store: Store, found: list[Line]) -> list[_Differing]:
    """The samples that the two models score differently: losses and gains of the candidate in turn, largest first."""
    rows = []
    for line in found:
        if line.whole:
            continue
        ((a, b),) = line.comparison.cells
        left = {s.id: s for s in store.samples(a)}
        for sample in store.samples(b):
            if sample.id in left:
                metric = line.metric or next(iter(sample.scores))
                before, after = left[sample.id].scores[metric], sample.scores[metric]
                if before != after:
                    rows.append(_Differing(a, metric, before, after, left[sample.id], sample))
    ranked = sorted(rows, key=lambda row: -abs(row.after - row.before))
    lost, gained = ([row for row in ranked if (row.after > row.before) is up] for up in (False, True))
    pairs = itertools.zip_longest(lost, gained)
    return [row for pair in pairs for row in pair if row is not None]


def _listing(rows: list[_Differing], baseline: str, candidate: str, listed: int) -> list[str]:
    """The first `listed` of the differing samples: scores, reference and both responses."""
    if not rows:
        return ["No sample is scored differently."]
    gained = sum(row.after > row.before for row in rows)
    differing = f"{counted(len(rows), 'sample')} {'is' if len(rows) == 1 else 'are'} scored differently"
    counts = f"{differing} ({len(rows) - gained} lost, {gained} gained)"
    if not listed:
        return [f"{counts}; --listed N lists N of them."]
    out = [counts + (f", {listed} of them, losses and gains in turn:" if len(rows) > listed else ":")]
    for row in rows[:listed]:
        cell = row.cell
        where = f"{cell.context} / {cell.task}" + (f" at {length_title(cell.length)}" if cell.length else "")
        mode = presentation_of(cell.benchmark).mode(row.metric)
        references = _short(reference_text(row.candidate))
        sample = f"sample {row.candidate.id}" + (f" {mode}" if mode else "")
        out += [
            f"- {where}, {sample}: {row.before:.2f} -> {row.after:.2f}; reference {references}",
            f"    {baseline}: {_short(response_text(row.baseline))}",
            f"    {candidate}: {_short(response_text(row.candidate))}",
        ]
    return out


def _short(text: str, limit: int = 100) -> str:
    """One line of a text, without control characters: a response may contain terminal escape sequences."""
    plain = "".join(c if c.isprintable() else " " for c in text)
    plain = " ".join(plain.split())
    return repr(plain if len(plain) <= limit else plain[: limit - 3] + "...")

"""One family of tests per run, sentences that agree with their own numbers, and a curve's summary figures."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from harness import stats
from harness.store import Store
from harness.tables import delta_table
from harness.tables.compare import compare
from harness.tables.rows import declared_comparisons
from harness.tables.table5 import table5
from tests.support.sample_runs import config, write_run

TASKS = ("niah_single_1", "vt")


def random_run(path: Path, number: int) -> Path:
    """Two models whose skills differ by 0 to 0.4, with 5 to 24 samples a cell."""
    gap = 0.05 * (number % 9)
    settings = config(tasks=TASKS, lengths=(4096, 8192))
    return write_run(
        path, settings, n=5 + number % 20, skill=lambda cell: 0.45 + (gap if cell.model == "gated" else 0.0)
    )


@pytest.mark.parametrize("number", range(16))
def test_no_sentence_contradicts_its_own_numbers(tmp_path: Path, number: int) -> None:
    text = compare(random_run(tmp_path / "run", number), "baseline", "gated").replace("\N{MINUS SIGN}", "-")
    sentences = re.findall(r"-> [\d.]+, ([+-][\d.]+) .*?: (no difference shown.*|.* is better|equal on.*)", text)
    assert sentences
    for difference, verdict in sentences:
        if match := re.search(r"one of ([\d.]+) points would be", verdict):
            assert abs(float(difference)) < float(match[1]) + 0.05, verdict


def test_table_delta_and_compare_test_one_family(tmp_path: Path) -> None:
    run = random_run(tmp_path / "run", 7)
    store = Store.read(run)
    declared = [comparison for comparison, _ in declared_comparisons(store)]
    adjusted = {round(c.adjusted, 6) for c in declared}
    assert {c.family for c in declared} == {len(declared)}
    frame = delta_table(store, "baseline", "gated").frame
    averages = frame[frame.task.isin(["average", "all", "gsm8k"])]
    assert len(averages)
    assert set(averages.p_adjusted.round(6)) <= adjusted
    assert f"Holm over the {len(declared)} comparisons of the run's table" in compare(run, "baseline", "gated")
    assert any(f"Holm over {len(declared)} comparisons" in line for line in table5(store).caption)
    assert any(f"Holm over {len(declared)} comparisons" in line for line in table5(store, baseline="baseline").caption)


def test_another_baseline_has_the_family_of_its_own_table(tmp_path: Path) -> None:
    settings = config(models=("baseline", "one", "two"), tasks=TASKS, lengths=(4096,))
    text = compare(write_run(tmp_path / "run", settings, n=8), "one", "two")
    family = len(declared_comparisons(Store.read(tmp_path / "run"), "one"))
    assert f"Holm over the {family} comparisons of the table with baseline one" in text


def test_a_detectable_difference_has_the_level_of_its_family(tmp_path: Path) -> None:
    store = Store.read(random_run(tmp_path / "run", 3))
    for comparison, _ in declared_comparisons(store):
        alone = 100 * stats.minimum_detectable_difference(comparison.differences)
        assert comparison.mdd >= alone
        assert comparison.mdd > alone or comparison.mdd == 100


def test_a_dip_before_the_effective_length_is_reported(tmp_path: Path) -> None:
    curve = {4096: 90.0, 8192: 80.0, 16384: 90.0}
    assert stats.effective_length(curve) == 16384
    assert stats.unbroken_length(curve) == 4096
    assert stats.unbroken_length({4096: 80.0, 8192: 90.0}) is None
    assert stats.unbroken_length({4096: 90.0, 8192: math.nan, 16384: 90.0}) == 16384

    def skill(cell):  # type: ignore[no-untyped-def]
        return 0.2 if cell.length == 8192 and cell.benchmark == "ruler" else 1.0

    settings = config(tasks=("niah_single_1",), lengths=(4096, 8192, 16384))
    text = compare(write_run(tmp_path / "run", settings, n=20, skill=skill), "baseline", "gated", "YaRN")
    assert "effective length 16K" in text
    assert "a shorter length is below it: above at every length only up to 4K" in text


def test_rulers_summary_figures() -> None:
    lengths = [4096 << i for i in range(6)]
    means = stats.length_means(dict(zip(lengths, [96, 95, 94, 93, 90, 80], strict=True)))
    assert [round(value, 2) for value in means.values()] == [91.33, 89.05, 93.62]
    assert all(math.isnan(v) for v in stats.length_means({4096: 90.0, 8192: math.nan}).values())
    assert all(math.isnan(v) for v in stats.length_means({}).values())


@pytest.mark.parametrize("number", range(0, 16, 3))
def test_the_captions_detectable_difference_has_the_level_of_the_verdicts(tmp_path: Path, number: int) -> None:
    """Holm asks a single comparison for 0.05 divided by the size of the family, so power is stated at that level."""
    store = Store.read(random_run(tmp_path / "run", number))
    declared = [comparison for comparison, _ in declared_comparisons(store)]
    (line,) = [x for x in table5(store).caption if x.startswith("Differences smaller")]
    assert f"80% power at the level of these comparisons, 0.05/{len(declared)}" in line
    stated = [float(n) for n in re.findall(r"\d+\.\d(?!\d)", line.partition("): ")[2])]
    mdds = [round(c.mdd, 1) for c in declared]
    assert (min(stated), max(stated)) == (min(mdds), max(mdds))

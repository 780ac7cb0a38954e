"""From a run to numbers: what each average is over, what blocks it, and the caption."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from harness import stats
from harness.data.catalog import MMLU_SUBJECTS
from harness.store import Store
from harness.tables import Entry, Table, cells_frame, samples_frame, table5, tasks_table
from harness.tables.aggregates import question_mean, task_mean
from harness.tables.layout import DASH, Column, length_title, mark_best
from harness.tables.reference import load_reference
from harness.types import Cell, GatedevalError
from tasks.ruler.protocol import TASKS as RULER_TASKS
from tests.support.sample_runs import answer, config, sample, table5_cells, write_run


def skill(cell: Cell) -> float:
    return {"baseline": 0.6, "gated": 0.8}[cell.model] - (0.3 if cell.context == "YaRN" else 0.0)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "demo", config(lengths=(4096, 8192, 16384, 32768)), skill=skill)


def row(table: Table, model: str, context: str) -> dict[str, Entry]:
    names = [c.name for c in table.columns]
    return next(dict(zip(names, r, strict=True)) for r in table.rows if (r[0].text, r[1].text) == (model, context))


def value(entry: Entry) -> float:
    assert entry.value is not None
    return entry.value


def with_missing(run: Path, *cells: Cell, keep: int = 0) -> Path:
    """Cut sample files down to their first `keep` lines."""
    for cell in cells:
        path = run / "samples" / f"{cell.key}.jsonl"
        path.write_text("".join(line + "\n" for line in path.read_text().splitlines()[:keep]))
    return run


def test_the_ruler_average_is_the_mean_of_thirteen_tasks_with_equal_weight(run: Path) -> None:
    store = Store.read(run)
    means = [
        np.mean([s.scores["score"] for s in store.samples(Cell("gated", "8k", "ruler", t, 4096))]) for t in RULER_TASKS
    ]
    assert len(means) == 13
    assert value(row(table5(store), "gated", "8k")["RULER 4K"]) == pytest.approx(100 * np.mean(means))


def test_equal_weight_holds_when_tasks_have_unequal_sample_counts(tmp_path: Path) -> None:
    cells = {Cell("m", "c", "ruler", "vt", 4096): 1, Cell("m", "c", "ruler", "cwe", 4096): 3}
    with Store.open(tmp_path / "r", {}, cells=cells) as store:
        for cell, n in cells.items():
            for i in range(n):
                store.append(cell, sample(i, {"score": float(cell.task == "vt")}))
        assert task_mean(store, list(cells)).value == 50.0


def test_rows_are_models_within_contexts_and_lengths_sort_as_numbers(run: Path) -> None:
    table = table5(Store.read(run))
    assert any("bold the best model under one context setting" in line for line in table.caption)
    assert [(r[0].text, r[1].text) for r in table.rows] == [
        ("baseline", "8k"),
        ("gated", "8k"),
        ("baseline", "YaRN"),
        ("gated", "YaRN"),
    ]
    assert table.breaks == {2}
    assert [c.short for c in table.columns[2:6]] == ["RULER 4K", "RULER 8K", "RULER 16K", "RULER 32K"]


def test_beyond_the_contexts_reach_is_a_dash_and_not_missing(run: Path) -> None:
    table = table5(Store.read(run))
    assert row(table, "gated", "8k")["RULER 16K"].number == DASH
    assert table.missing == []


def test_the_drop_is_against_the_same_models_first_unextended_context(run: Path) -> None:
    table = table5(Store.read(run))
    for model in ("baseline", "gated"):
        native, yarn = row(table, model, "8k"), row(table, model, "YaRN")
        for column in ("RULER 4K", "RULER 8K", "MMLU 2/57", "GSM8k strict"):
            assert native[column].drop is None
            assert yarn[column].drop == pytest.approx(value(yarn[column]) - value(native[column]))
        assert yarn["RULER 16K"].drop is None, "nothing to compare with"


def staged(tmp_path: Path) -> Store:
    """Models that are planned under contexts of their own, with fewer samples at the longer lengths."""
    settings = {
        "models": [{"label": m} for m in ("a (short)", "b (short)", "a", "b")],
        "contexts": [
            {"label": "base 10K", "rope_theta": 1e4, "max_length": 256},
            {"label": "base 1M", "rope_theta": 1e6, "max_length": 2048},
            {"label": "YaRN", "rope_theta": 1e6, "yarn": {"factor": 4}, "max_length": 8192},
        ],
        "benchmarks": [{"ruler": ["vt"], "lengths": [256, 8192]}],
    }
    planned = {256: 100, 8192: 10}
    cells: dict[Cell, int | None] = {}
    for model, contexts in (("short", ["base 10K"]), ("", ["base 1M", "YaRN"])):
        for context, name in ((c, n) for c in contexts for n in ("a", "b")):
            for length in (256, 8192) if context == "YaRN" else (256,):
                cells[Cell(f"{name} (short)" if model else name, context, "ruler", "vt", length)] = planned[length]
    with Store.open(tmp_path / "staged", {"config": settings}, cells=cells) as store:
        for cell, n in cells.items():
            for i in range(n or 0):
                right = i % 10 < (9 if cell.model.startswith("b") else 4)
                score = {"score": float(right)}
                store.append(cell, sample(i, score, prompt=f"{cell.length} {i}", finish_reason="length"))
        store.finish()
    return Store.read(tmp_path / "staged")


def test_models_under_contexts_of_their_own(tmp_path: Path) -> None:
    """The drop is against the model's own first context, the test against the context's own first model."""
    table = table5(staged(tmp_path))
    assert row(table, "a", "YaRN")["RULER 1/13 256"].drop == pytest.approx(0.0)
    assert row(table, "b (short)", "base 10K")["RULER 1/13 256"].marks == "▲"
    assert row(table, "b", "base 1M")["RULER 1/13 256"].marks == "▲"
    assert row(table, "b", "YaRN")["RULER 1/13 256"].marks == "▲"
    assert row(table, "b", "YaRN")["RULER 1/13 8K"].marks == "", "ten samples cannot show it"
    assert any("▲ above, ▼ below a (short) or a under" in line for line in table.caption)
    only = table5(staged(tmp_path), baseline="a")
    assert row(only, "b (short)", "base 10K")["RULER 1/13 256"].marks == "▲", "a is not planned there: a (short) stays"
    assert row(only, "b", "YaRN")["RULER 1/13 256"].marks == "▲"


def test_different_sample_counts_are_in_the_caption_and_in_the_intervals(tmp_path: Path) -> None:
    table = table5(staged(tmp_path), intervals=True)
    assert any("samples per task: 100 at 256; 10 at 8192" in line for line in table.caption)
    assert any("in brackets the 95% interval" in line for line in table.caption)
    wide, narrow = (row(table, "b", "YaRN")[f"RULER 1/13 {n}"] for n in ("8K", "256"))
    for entry, n in ((narrow, 100), (wide, 10)):
        expected = stats.wilson(0.9 * n, n)
        assert entry.interval == pytest.approx((100 * expected.low, 100 * expected.high))
        assert entry.parenthesis == f"[{100 * expected.low:.1f}, {100 * expected.high:.1f}]"


def test_answers_that_are_cut_everywhere_are_listed_by_task(tmp_path: Path) -> None:
    (line,) = [x for x in table5(staged(tmp_path)).caption if "token budget" in x]
    assert line.endswith("more than 1% of samples: vt up to 100% (in 8 of 8 cells).")


def test_a_missing_task_blocks_the_average_unless_asked_for(run: Path, tmp_path: Path) -> None:
    copy = write_run(tmp_path / "r", config(lengths=(4096, 8192)), skill=skill)
    with_missing(copy, Cell("gated", "8k", "ruler", "cwe", 4096))
    store = Store.read(copy)
    table = table5(store)
    assert row(table, "gated", "8k")["RULER 4K"].number == DASH
    assert row(table, "gated", "8k")["RULER 8K"].value is not None
    assert row(table, "gated", "YaRN")["RULER 4K"].drop is None
    assert "gated / 8k / cwe at 4096: no sample yet" in table.missing[0]
    assert any("gated / 8k / cwe at 4096" in line for line in table.caption)
    entry = row(table5(store, allow_partial=True), "gated", "8k")["RULER 4K"]
    others = [t for t in RULER_TASKS if t != "cwe"]
    means = [store.scores(Cell("gated", "8k", "ruler", t, 4096)).scores.mean() for t in others]
    assert value(entry) == pytest.approx(100 * np.mean(means))
    assert "†" in entry.marks


def test_a_partial_cell_is_printed_marked_and_in_the_caption(tmp_path: Path) -> None:
    run = write_run(tmp_path / "r", config(lengths=(4096,)), skill=skill)
    with_missing(run, Cell("gated", "8k", "ruler", "vt", 4096), keep=7)
    table = table5(Store.read(run))
    assert "†" in row(table, "gated", "8k")["RULER 4K"].marks
    assert any("gated / 8k / vt at 4096: 7 of 20 samples" in line for line in table.missing)


def test_a_failed_cell_shows_its_error_and_is_never_a_zero(tmp_path: Path) -> None:
    settings = config(lengths=(4096,), tasks=("vt",))
    cells = table5_cells(settings, 4)
    store = Store.open(tmp_path / "r", {"config": settings}, cells=cells)
    dead, undone = Cell("gated", "8k", "ruler", "vt", 4096), Cell("gated", "8k", "mmlu", "anatomy")
    for cell in cells:
        for i in range(4):
            if cell == undone:
                store.append(cell, sample(i, {"acc": math.nan if i == 2 else 1.0}))
            elif cell != dead:
                store.append(cell, answer(cell, i, 0.5))
    store.fail(dead, "out of memory: 12 GiB asked")
    store.finish()
    read = Store.read(tmp_path / "r")
    table = table5(read)
    assert row(table, "gated", "8k")["RULER 1/13 4K"].number == DASH
    assert row(table, "gated", "8k")["MMLU 2/57"].number == DASH
    text = "\n".join(table.missing)
    assert "out of memory: 12 GiB asked" in text
    assert "1 of 4 samples have no score" in text
    frame = cells_frame(read)
    assert frame.loc[frame.error != "", "score"].isna().all()
    assert (frame.error != "").sum() == 2


def test_fewer_than_thirteen_tasks_are_never_called_the_ruler_average(tmp_path: Path) -> None:
    run = write_run(tmp_path / "r", config(tasks=("niah_single_1", "vt")))
    table = table5(Store.read(run))
    assert table.columns[2].group == "RULER (2 of 13 tasks)"
    assert table.columns[2].short == "RULER 2/13 4K"
    assert "mean of 2 tasks (niah_single_1, vt)" in table.caption[0]
    assert all("RULER: mean of 13" not in line for line in table.caption)


def test_a_task_planned_at_some_lengths_only_blocks_the_others(tmp_path: Path) -> None:
    cells = {Cell("m", "c", "ruler", t, n): 1 for t, n in (("vt", 4096), ("cwe", 4096), ("vt", 8192))}
    with Store.open(tmp_path / "r", {}, cells=cells) as store:
        for cell in cells:
            store.append(cell, sample(0, {"score": 1.0}))
        table = table5(store)
    assert [e.number for e in table.rows[0][2:]] == ["100.00", DASH]
    assert "m / c / cwe at 8192: not in the plan" in table.missing[0]


def test_mmlu_is_the_mean_over_questions_with_the_mean_over_subjects_beside(tmp_path: Path) -> None:
    cells = {Cell("m", "c", "mmlu", "anatomy"): 3, Cell("m", "c", "mmlu", "virology"): 1}
    with Store.open(tmp_path / "r", {"config": {"benchmarks": [{"mmlu": {"shots": 5}}]}}, cells=cells) as store:
        for i in range(3):
            store.append(Cell("m", "c", "mmlu", "anatomy"), sample(i, {"acc": 1.0}))
        store.append(Cell("m", "c", "mmlu", "virology"), sample(0, {"acc": 0.0}))
        table = table5(store)
    assert [c.title for c in table.columns[2:]] == ["questions", "by subject"]
    assert [e.number for e in table.rows[0][2:]] == ["75.00", "50.00"]
    assert "5-shot" in table.caption[0]


def test_all_57_subjects_are_plain_mmlu(tmp_path: Path) -> None:
    cells = {Cell("m", "c", "mmlu", s): 1 for s in MMLU_SUBJECTS}
    with Store.open(tmp_path / "r", {}, cells=cells) as store:
        for cell in cells:
            store.append(cell, sample(0, {"acc": 1.0}))
        assert table5(store).columns[2].group == "MMLU"


def test_gsm8k_names_both_modes(run: Path) -> None:
    store = Store.read(run)
    fields = row(table5(store), "gated", "8k")
    scores = store.scores(Cell("gated", "8k", "gsm8k", "gsm8k"))
    assert value(fields["GSM8k strict"]) == 100 * scores.metrics["exact_match,strict-match"].mean()
    assert value(fields["GSM8k flexible"]) == 100 * scores.metrics["exact_match,flexible-extract"].mean()


def test_other_lm_eval_tasks_keep_their_metrics_and_their_scale(tmp_path: Path) -> None:
    cell = Cell("m", "c", "wikitext", "wikitext")
    two = Cell("m", "c", "hellaswag", "hellaswag")
    with Store.open(tmp_path / "r", {}, cells={cell: 2, two: 1}) as store:
        store.append(cell, sample(0, {"word_perplexity,none": 12.5}))
        store.append(cell, sample(1, {"word_perplexity,none": 10.5}))
        store.append(two, sample(0, {"acc,none": 1.0, "acc_norm,none": 0.0}))
        table = table5(store)
        frame = cells_frame(store)
    assert [(c.group, c.title) for c in table.columns[2:]] == [
        ("wikitext", "word_perplexity"),
        ("hellaswag", "acc"),
        ("hellaswag", "acc_norm"),
    ]
    assert table.columns[2].lower_is_better
    assert [e.number for e in table.rows[0][2:]] == ["11.50", "100.00", "0.00"]
    assert frame.loc[frame.task == "wikitext", "ci_low"].isna().all()
    assert frame.loc[frame.task == "hellaswag", "other_metrics"].item() == "acc_norm,none=0"


def test_best_is_by_printed_digits_and_needs_a_rival() -> None:
    columns = [Column(title="a"), Column(title="ppl", lower_is_better=True), Column(title="alone")]
    rows = [
        [Entry(value=90.001), Entry(value=3.0), Entry(value=1.0)],
        [Entry(value=90.004), Entry(value=2.0), Entry()],
        [Entry(value=89.99), Entry(value=2.5), Entry()],
        [Entry(value=-90.0), Entry(value=2.5), Entry()],
    ]
    marked = mark_best(rows, columns)
    assert [[e.best for e in r] for r in marked] == [
        [True, False, False],
        [True, True, False],
        [False, False, False],
        [False, False, False],
    ]


def test_best_is_among_the_rows_of_one_context_and_no_tie_of_most_rows() -> None:
    rows = [[Entry(value=v)] for v in (100.0, 100.0, 50.0, 70.0, 60.0, 60.0)]
    marked = mark_best(rows, [Column(title="a")], ["native"] * 3 + ["YaRN"] * 3)
    assert [r[0].best for r in marked] == [False, False, False, True, False, False]


def test_length_titles() -> None:
    assert [length_title(n) for n in (512, 1000, 4096, 131072, 1 << 20, 6144)] == [
        "512",
        "1000",
        "4K",
        "128K",
        "1M",
        "6K",
    ]


def test_the_caption_says_how_it_was_measured(tmp_path: Path) -> None:
    run = write_run(
        tmp_path / "r",
        config(lengths=(4096,)),
        options={"index": "fixed", "off": False},
        caption=["random weights: a smoke test"],
    )
    text = "\n".join(table5(Store.read(run)).caption)
    for words in (
        "20 samples per task and length",
        "profile nvidia",
        "answer prefix append",
        "official string-match",
        "Seed 42",
        "index fixed",
        "random weights: a smoke test",
        "GSM8k: 5-shot, 20 questions",
        "Answers cut by their token budget",
        "cwe at 4096",
    ):
        assert words in text, words
    assert "off" not in text.replace("official", "")


def test_the_caption_counts_the_samples_of_each_length_where_they_differ(tmp_path: Path) -> None:
    store = Store.open(
        tmp_path / "r",
        {"config": config(), "options": {"ruler answer_tokens": 16}},
        cells={Cell("m", "c", "ruler", "vt", n): k for n, k in ((256, 4), (512, 2), (1024, 2))},
    )
    for cell in store.cells:
        for i in range(store.planned(cell) or 0):
            store.append(cell, sample(i, {"score": 1.0}))
    store.close()
    text = "\n".join(table5(Store.read(tmp_path / "r")).caption)
    assert "samples per task: 4 at 256; 2 at 512 and 1024," in text
    assert "Divergences from upstream that were on: ruler answer_tokens 16." in text


def test_the_caption_leaves_out_capped_answers_up_to_one_percent(tmp_path: Path) -> None:
    cell = Cell("m", "c", "ruler", "cwe", 4096)
    for capped, listed in ((1, False), (2, True)):
        with Store.open(tmp_path / f"r{capped}", {}, cells={cell: 100}) as store:
            for i in range(100):
                store.append(cell, sample(i, {"score": 1.0}, finish_reason="length" if i < capped else "stop"))
            assert any("token budget" in line for line in table5(store).caption) is listed
            assert cells_frame(store).length_capped.item() == capped / 100


def test_a_significant_difference_is_marked_in_its_direction(tmp_path: Path) -> None:
    run = write_run(
        tmp_path / "r",
        config(lengths=(4096,)),
        n=60,
        skill=lambda c: {"baseline": 0.9, "gated": 0.4}[c.model] if c.context == "8k" else 0.5,
    )
    table = table5(Store.read(run))
    assert "▼" in row(table, "gated", "8k")["RULER 4K"].marks
    assert row(table, "gated", "YaRN")["RULER 4K"].marks == "", "an equal skill is no difference"
    assert row(table, "baseline", "8k")["RULER 4K"].marks == "", "the baseline is not compared with itself"
    other = table5(Store.read(run), baseline="gated")
    assert "▲" in row(other, "baseline", "8k")["RULER 4K"].marks
    with pytest.raises(GatedevalError, match="no model 'nobody'"):
        table5(Store.read(run), baseline="nobody")


def test_models_on_different_prompts_are_not_tested(tmp_path: Path) -> None:
    cells: dict[Cell, int | None] = {Cell(m, "c", "ruler", "vt", 4096): 30 for m in ("a", "b")}
    with Store.open(tmp_path / "r", {}, cells=cells) as store:
        for cell in cells:
            for i in range(30):
                store.append(cell, sample(i, {"score": float(cell.model == "b")}, prompt=f"{cell.model} {i}"))
        table = table5(store)
    assert all(e.marks == "" for r in table.rows for e in r)
    assert any(line.startswith("Not tested") and "asked different things" in line for line in table.caption)


def test_intervals_of_cells_and_averages(run: Path) -> None:
    store = Store.read(run)
    frame = cells_frame(store)
    binary = frame[(frame.task == "niah_single_1") & (frame.length == 4096) & (frame.model == "gated")].iloc[0]
    expected = stats.wilson(round(binary.score / 5), 20)
    assert (binary.ci_low, binary.ci_high) == pytest.approx((100 * expected.low, 100 * expected.high))
    assert set(frame.ci_method) == {"wilson", "bca"}
    assert ((frame.ci_low <= frame.score) & (frame.score <= frame.ci_high)).all()
    cells = [Cell("gated", "8k", "ruler", t, 4096) for t in RULER_TASKS]
    average = task_mean(store, cells)
    assert average.interval.method == "stratified bootstrap"
    assert 100 * average.interval.low < average.value < 100 * average.interval.high
    assert question_mean(store, [Cell("gated", "8k", "gsm8k", "gsm8k")]).interval.method == "wilson"


def test_the_tidy_frame_has_one_row_a_cell_in_reading_order(run: Path) -> None:
    store = Store.read(run)
    frame = cells_frame(store)
    assert list(frame.columns[:7]) == ["model", "context", "benchmark", "task", "length", "samples", "score"]
    assert len(frame) == len(store.cells)
    assert not frame.duplicated(["model", "context", "benchmark", "task", "length"]).any()
    assert frame.score.between(0, 100).all()
    assert list(frame.length[:14].unique()) == [4096, 8192]


def test_the_samples_frame_has_one_row_a_sample(run: Path) -> None:
    frame = samples_frame(Store.read(run))
    assert len(frame) == 20 * len(Store.read(run).cells)
    mean = frame[(frame.model == "gated") & (frame.context == "8k") & (frame.task == "vt") & (frame.length == 4096)]
    tidy = cells_frame(Store.read(run)).set_index(["model", "context", "task", "length"]).score
    assert 100 * mean["score:score"].mean() == pytest.approx(tidy.loc["gated", "8k", "vt", 4096])
    assert {"references", "response", "hash", "finish_reason"} <= set(frame.columns)


def test_every_task_at_every_length(run: Path) -> None:
    table = tasks_table(Store.read(run))
    assert [c.title for c in table.columns] == [
        "context",
        "benchmark",
        "task",
        "model",
        "4K",
        "8K",
        "16K",
        "32K",
        "score",
    ]
    assert len(table.rows) == 2 * 2 * (13 + 2 + 1)
    for first, second in zip(table.rows[::2], table.rows[1::2], strict=True):
        assert [e.text for e in first[:3]] == [e.text for e in second[:3]]
        for a, b in zip(first[4:], second[4:], strict=True):
            if a.value is not None and b.value is not None:
                assert a.best is (round(a.value, 2) > round(b.value, 2))


def test_the_papers_table_5_beside_ours(run: Path) -> None:
    paper = load_reference("paper")
    table = table5(Store.read(run), reference=paper)
    fields = row(table, "paper: baseline", "YaRN")
    assert [fields[f"RULER {n}K"].number for n in (4, 8, 16, 32, 64, 128)] == [
        "82.90",
        "71.52",
        "61.23",
        "37.94",
        "37.51",
        "31.65",
    ]
    assert [fields[f"RULER {n}K"].parenthesis for n in (4, 8, 16, 32, 64)] == [
        "(−6.0)",
        "(−14.4)",
        "(−21.9)",
        "(−41.6)",
        "",
    ]
    gate = row(table, "paper: SDPA gate", "YaRN")
    assert (gate["RULER 128K"].number, gate["RULER 32K"].parenthesis) == ("58.82", "(−6.9)")
    assert row(table, "paper: SDPA gate", "32k")["RULER 64K"].number == DASH
    assert not any(e.best for r in table.rows[4:] for e in r), "ours are compared with ours"
    assert any("arXiv 2505.06708" in line for line in table.caption)
    assert len(table.frame) == len(cells_frame(Store.read(run))) + 20
    assert table.frame.score.iloc[-1] == 58.82


def test_an_unknown_reference_and_a_wrong_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(GatedevalError, match="no reference 'nobody'"):
        load_reference("nobody")
    wrong = tmp_path / "x.csv"
    pd.DataFrame({"model": ["a"]}).to_csv(wrong, index=False)
    with pytest.raises(GatedevalError, match="has no column context"):
        load_reference(str(wrong))


def test_an_empty_run_is_a_table_of_dashes(tmp_path: Path) -> None:
    settings: dict[str, Any] = config(lengths=(4096,), tasks=("vt",))
    Store.open(tmp_path / "r", {"config": settings}, cells=table5_cells(settings)).finish()
    table = table5(Store.read(tmp_path / "r"))
    assert len(table.rows) == 4
    assert all(e.number == DASH for r in table.rows for e in r[2:])
    assert samples_frame(Store.read(tmp_path / "r")).empty
    assert cells_frame(Store.read(tmp_path / "r")).score.isna().all()

"""Runs beside one another: listing, merging, rebuilding, and importing another harness's predictions."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness import stats
from harness.export import export_run
from harness.store import Store, import_predictions, list_runs, merge, rebuild
from harness.tables import cells_frame, delta_table
from harness.tables.compare import compare
from harness.types import Cell, GatedevalError
from tests.support.sample_runs import config, sample, table5_cells, write_run

LENGTHS = (4096,)


def facts(*models: str) -> dict[str, Any]:
    return {"models": {m: {"fingerprint": f"print of {m}"} for m in models}, "versions": {"vllm": "1"}}


def one(path: Path, model: str, **more: Any) -> Path:
    skill = {"baseline": 0.5, "gated": 0.8}[model]
    return write_run(path, config(models=(model,), lengths=LENGTHS), skill=lambda c: skill, **{**facts(model), **more})


def test_a_baseline_of_last_month_compared_today(tmp_path: Path) -> None:
    merged = merge(one(tmp_path / "a", "baseline"), one(tmp_path / "b", "gated"), tmp_path / "both")
    together = write_run(
        tmp_path / "t",
        config(lengths=LENGTHS),
        **facts("baseline", "gated"),
        skill=lambda c: {"baseline": 0.5, "gated": 0.8}[c.model],
    )
    for style in ("table5", "tasks", "delta"):
        assert export_run(merged, style, "csv") == export_run(together, style, "csv")
    manifest = Store.read(merged).manifest
    assert manifest["state"] == "complete"
    assert manifest["name"] == "both"
    assert [m["path"] for m in manifest["merged"]] == ["a", "b"]
    assert set(manifest["models"]) == {"baseline", "gated"}


def test_runs_on_different_samples_are_not_merged(tmp_path: Path) -> None:
    a, b = one(tmp_path / "a", "baseline"), tmp_path / "b"
    settings = config(models=("gated",), lengths=LENGTHS)
    cells = table5_cells(settings, 2)
    with Store.open(b, {"config": settings, **facts("gated")}, cells=cells) as store:
        for cell in cells:
            for i in range(2):
                store.append(cell, sample(i, {"score": 1.0}, prompt="another seed"))
    with pytest.raises(GatedevalError, match=r"asked different things: niah_single_1 at 4096, 2 of 2 .* first is '0'"):
        merge(a, b, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_runs_with_nothing_in_common_are_not_merged(tmp_path: Path) -> None:
    a = one(tmp_path / "a", "baseline")
    Store.open(tmp_path / "b", {}, cells={Cell("m", "c", "hellaswag", "hellaswag"): 1}).finish()
    with pytest.raises(GatedevalError, match="no sample in common"):
        merge(a, tmp_path / "b", tmp_path / "out")


def test_one_label_for_two_models_is_refused(tmp_path: Path) -> None:
    a = one(tmp_path / "a", "gated")
    b = one(tmp_path / "b", "gated", models={"gated": {"fingerprint": "other weights"}})
    with pytest.raises(GatedevalError, match="both runs have a model 'gated', with other weights"):
        merge(a, b, tmp_path / "out")


def test_one_label_for_two_settings_is_refused(tmp_path: Path) -> None:
    a, b = one(tmp_path / "a", "baseline"), one(tmp_path / "b", "gated")
    manifest = json.loads((b / "run.json").read_text())
    manifest["config"]["contexts"][1]["yarn"]["factor"] = 8.0
    (b / "run.json").write_text(json.dumps(manifest))
    with pytest.raises(GatedevalError, match="the context 'YaRN' is another setting"):
        merge(a, b, tmp_path / "out")


def test_two_halves_of_one_run_join(tmp_path: Path) -> None:
    whole = one(tmp_path / "whole", "gated")
    halves = []
    for name, keep in (("a", slice(0, 10)), ("b", slice(8, 20))):
        half = one(tmp_path / name, "gated")
        for file in (half / "samples").iterdir():
            file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[keep]))
        halves.append(half)
    merged = merge(*halves, tmp_path / "m")
    assert export_run(merged, "tasks", "csv") == export_run(whole, "tasks", "csv")
    assert Store.read(merged).manifest["state"] == "complete"


def test_a_run_is_not_merged_with_itself(tmp_path: Path) -> None:
    run = one(tmp_path / "a", "baseline")
    with pytest.raises(GatedevalError, match="cannot be merged with itself"):
        merge(run, tmp_path / "a" / ".." / "a", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_runs_that_contradict_each_other_are_refused_unless_one_wins(tmp_path: Path) -> None:
    """The same model and samples, other answers: joined without a word, the run would have the scores of neither."""
    settings = config(models=("baseline",), lengths=LENGTHS)
    runs = [
        write_run(tmp_path / name, settings, **facts("baseline"), skill=lambda c, skill=skill: skill)
        for name, skill in (("a", 0.9), ("b", 0.1))
    ]
    with pytest.raises(GatedevalError, match=r"different answers of baseline to the same samples.*--prefer first"):
        merge(*runs, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    for run, prefer in zip(runs, ("first", "second"), strict=True):
        joined = merge(*runs, tmp_path / prefer, prefer=prefer)  # type: ignore[arg-type]
        assert export_run(joined, "tasks", "csv") == export_run(run, "tasks", "csv")


def test_merging_over_a_run_is_refused(tmp_path: Path) -> None:
    a, b = one(tmp_path / "a", "baseline"), one(tmp_path / "b", "gated")
    with pytest.raises(GatedevalError, match="already"):
        merge(a, b, a)


def test_what_differs_between_merged_runs_is_in_the_caption(tmp_path: Path) -> None:
    a, b = one(tmp_path / "a", "baseline"), one(tmp_path / "b", "gated", versions={"vllm": "2"})
    assert "whose versions differs: vllm 1 / 2" in export_run(merge(a, b, tmp_path / "m")).replace("\n  ", " ")


def test_listing_runs(tmp_path: Path) -> None:
    assert list_runs(tmp_path / "nowhere") == []
    one(tmp_path / "done", "gated")
    (tmp_path / "not-a-run").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("{")
    killed = "import sys, os; from pathlib import Path; from harness.store import Store\n"
    killed += "Store.open(Path(sys.argv[1]), {}, cells={}); os._exit(9)"
    subprocess.run([sys.executable, "-c", killed, str(tmp_path / "killed")], check=False)
    open_run = Store.open(tmp_path / "open", {}, cells={Cell("m", "c", "ruler", "vt"): 1})
    runs = {run["name"]: run for run in list_runs(tmp_path)}
    assert {name: run["state"] for name, run in runs.items()} == {
        "done": "complete",
        "broken": "damaged",
        "killed": "interrupted",
        "open": "running",
    }
    assert runs["done"]["samples"] == 20 * len(Store.read(tmp_path / "done").cells)
    assert runs["done"]["models"] == ["gated"]
    open_run.append(Cell("m", "c", "ruler", "vt"), sample(0, {"score": 1.0}))  # listing dropped no lock
    with pytest.raises(GatedevalError, match="already open"):
        Store.open(tmp_path / "open", {}, cells={})
    open_run.close()


def test_runs_are_listed_by_the_instant_they_started_whatever_their_offsets(tmp_path: Path) -> None:
    starts = {
        "third": "2026-11-30T23:30:00-0500",  # 04:30 UTC on the next day: as text it would come first
        "second": "2026-12-01T09:00:00+05:30",  # 03:30 UTC
        "first": "2026-12-01T03:00:00+00:00",
        "never": "",
    }
    for name, start in starts.items():
        one(tmp_path / name, "gated", start=start)
        file = tmp_path / name / "run.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "start": start}))
    assert [run["name"] for run in list_runs(tmp_path)] == ["third", "second", "first", "never"]


def test_a_merged_run_started_when_the_first_of_the_two_did(tmp_path: Path) -> None:
    a = one(tmp_path / "a", "baseline", start="2026-12-01T09:00:00+05:30")
    b = one(tmp_path / "b", "gated", start="2026-12-01T03:40:00+00:00")
    assert Store.read(merge(b, a, tmp_path / "m")).manifest["start"] == "2026-12-01T09:00:00+05:30"


def test_merged_runs_of_different_arithmetic_say_so(tmp_path: Path) -> None:
    runs = []
    for model, eager in (("baseline", True), ("gated", False)):
        path = one(tmp_path / model, model)
        with Store.open(path, Store.read(path).manifest, cells=Store.read(path).cells) as store:
            key = store.record_arithmetic({"enforce_eager": eager, "device": "cpu"})
            for cell in store.cells:
                for s in list(store.samples(cell)):
                    store.append(cell, dataclasses.replace(s, arithmetic=key))
            store.finish()
        runs.append(path)
    merged = merge(*runs, tmp_path / "m")
    caption = " ".join(export_run(merged).split())
    total = sum(len(list(Store.read(merged).samples(cell))) for cell in Store.read(merged).cells)
    assert "merged from two runs whose arithmetic differs: enforce_eager true / false" in caption
    assert f"{total // 2:,} of {total:,} answers were computed under other arithmetic than the rest" in caption


def test_rebuild_after_samples_were_removed(tmp_path: Path) -> None:
    """The run says what is there: fewer samples, state incomplete, no traceback."""
    run = one(tmp_path / "r", "gated")
    files = sorted((run / "samples").iterdir())
    files[0].unlink()
    files[1].write_bytes(b"".join(files[1].read_bytes().splitlines(keepends=True)[:5]))
    rebuild(run)
    frame = cells_frame(Store.read(run))
    assert sorted(frame.samples)[:2] == [0, 5]
    assert Store.read(run).manifest["state"] == "incomplete"
    for file in files[1:]:
        file.unlink()
    (run / "samples").rmdir()
    rebuild(run)
    assert cells_frame(Store.read(run)).samples.sum() == 0
    assert export_run(run, allow_partial=True)


def test_derived_files_can_always_be_rebuilt(tmp_path: Path) -> None:
    run = one(tmp_path / "r", "gated")
    derived = (run / "cells.csv").read_bytes()
    manifest = Store.read(run).manifest
    (run / "cells.csv").unlink()
    (run / "samples" / ".x.1.tmp").write_text("left by a kill")
    assert [p.name for p in rebuild(run)] == ["cells.csv", "run.json"]
    assert (run / "cells.csv").read_bytes() == derived
    assert not (run / "samples" / ".x.1.tmp").exists()
    again = Store.read(run).manifest
    assert {k: again[k] for k in ("state", "start", "end", "sessions")} == {
        k: manifest[k] for k in ("state", "start", "end", "sessions")
    }


# ------------------------------------------------------------------------------------------- imported predictions


@pytest.fixture(scope="module")
def predictions(shared: Path) -> Path:
    return next((shared / "data" / "ruler_preds").glob("*predictions.csv.gz"))


def test_imported_predictions_score_as_stated(predictions: Path, tmp_path: Path) -> None:
    stated = json.loads(
        predictions.with_name(predictions.name.replace("predictions.csv.gz", "metrics.json")).read_text()
    )
    run = import_predictions(predictions, tmp_path / "r", model="llama", length=4096)
    frame = cells_frame(Store.read(run)).set_index("task")
    assert len(frame) == 13
    assert (frame.samples == 500).all()
    for task, scores in stated.items():
        assert round(float(frame.loc[task, "score"]), 2) == scores["string_match"], task
    average = sum(s["string_match"] for s in stated.values()) / 13
    assert f"{average:.2f}" in export_run(run)
    for task in ("niah_single_1", "qa_2"):
        expected = stats.wilson(round(stated[task]["string_match"] * 5), 500)
        assert frame.loc[task, "ci_low"] == pytest.approx(100 * expected.low)
        assert frame.loc[task, "ci_high"] == pytest.approx(100 * expected.high)
    before = (run / "samples").stat().st_mtime_ns
    import_predictions(predictions, run, model="llama", length=4096)
    assert (run / "samples").stat().st_mtime_ns == before, "importing twice adds nothing"
    assert sum(len(f.read_text().splitlines()) for f in (run / "samples").iterdir()) == 6500


def test_imports_that_cannot_be_meant_are_one_error_each(tmp_path: Path) -> None:
    rows = [{"task": "vt", "references": ["A"], "prediction": text} for text in ("A", "b")]
    first, second, empty = (tmp_path / name for name in ("one.jsonl", "two.jsonl", "none.jsonl"))
    first.write_text("".join(json.dumps(row) + "\n" for row in rows))
    second.write_text(json.dumps(rows[0]) + "\n")
    empty.write_text("")
    run = import_predictions(first, tmp_path / "r", length=4096)
    before = export_run(run)
    for file, target, length, message in (
        (empty, "e", 4096, "no rows"),
        (first, "n", -1, "length -1"),
        (tmp_path / "nowhere.jsonl", "x", 0, "no file"),
        (second, "r", 4096, "another run"),
        (first, "r", 8192, "another run"),
    ):
        with pytest.raises(GatedevalError, match=message):
            import_predictions(file, tmp_path / target, length=length)
        assert target == "r" or not (tmp_path / target).exists()
    assert export_run(import_predictions(first, run, length=4096)) == before, "the same file again changes nothing"


def test_a_degraded_copy_is_found_worse_exactly_where_it_was_degraded(predictions: Path, tmp_path: Path) -> None:
    """12 answers of one task spoiled and 3 mended: McNemar 0.035 there, and nothing anywhere else."""
    run = import_predictions(predictions, tmp_path / "a", model="llama", length=4096)
    store = Store.read(run)
    cells: dict[Cell, int | None] = dict.fromkeys(store.cells, 500)
    manifest = {**store.manifest, "config": {**store.manifest["config"], "models": [{"label": "degraded"}]}}
    copies = {Cell("degraded", c.context, c.benchmark, c.task, c.length): c for c in cells}
    with Store.open(tmp_path / "b", manifest, cells=dict.fromkeys(copies, 500)) as copy:
        for cell, source in copies.items():
            spoiled = mended = 0
            for s in store.samples(source):
                right = s.scores["score"] == 1.0
                if cell.task == "qa_2" and right and spoiled < 12:
                    s, spoiled = sample_like(s, 0.0), spoiled + 1
                elif cell.task == "qa_2" and not right and mended < 3:
                    s, mended = sample_like(s, 1.0), mended + 1
                copy.append(cell, s)
    both = merge(run, tmp_path / "b", tmp_path / "m")
    frame = delta_table(Store.read(both), "llama", "degraded").frame.set_index("task")
    row = frame.loc["qa_2"]
    assert (row.gained, row.lost, row.test) == (3, 12, "McNemar")
    assert round(row.p, 3) == 0.035
    assert row.difference == pytest.approx(-1.8)
    assert row.ci_low < -1.8 < row.ci_high < 0
    others = frame.drop(index=["qa_2", "average"])
    assert (others.difference == 0).all()
    assert (others.p == 1).all()
    assert frame.loc["average", "difference"] == pytest.approx(-1.8 / 13)
    text = compare(both, "llama", "degraded", listed=15)
    assert "15 samples are scored differently (" in text
    assert text.count("- as given / qa_2 at 4K, sample ") == 15
    assert "0 gained" not in text.split("RULER at 4K")[1].split("\n")[0]


def sample_like(s: Any, score: float) -> Any:
    from dataclasses import replace

    return replace(s, scores={"score": score}, hash=s.hash + "x")

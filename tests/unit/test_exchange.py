"""A run in other people's tools: each tool's own reader gets our numbers, samples and files back."""

from __future__ import annotations

import json
import math
import os
import struct
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner

from harness.commands.main import cli
from harness.exchange import TOOLS, export_to
from harness.store import Store
from harness.tables import Entry, table5
from harness.types import Cell, GatedevalError
from tests.support.sample_runs import config, sample, table5_cells, write_run

LENGTHS = (4096, 8192, 16384)
SKILL = {"baseline": 0.6, "gated": 0.85}


def client(name: str) -> ModuleType:
    """The tool's own package; the test is skipped without it, and fails where extras must be there (CI)."""
    if os.environ.get("GATEDEVAL_REQUIRE_EXTRAS") == "1":
        __import__(name)
    return pytest.importorskip(name)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """RULER at three lengths, MMLU and GSM8k for two models under two contexts; 16K only under the longer one."""
    return write_run(
        tmp_path_factory.mktemp("runs") / "long context",
        config(lengths=LENGTHS),
        n=6,
        skill=lambda c: SKILL[c.model] - 0.2 * (c.context == "YaRN"),
        models={m: {"gate": "none", "parameters": 7, "max_lengths": {"8k": 8192, "YaRN": 32768}} for m in SKILL},
        versions={"torch": "2.13.0"},
    )


@pytest.fixture(scope="module")
def expected(run: Path) -> dict[tuple[str, str], dict[str, Entry]]:
    """(model, context) -> column -> entry of Table 5: the numbers that every tool must show."""
    table = table5(Store.read(run), intervals=True)
    rows: dict[tuple[str, str], dict[str, Entry]] = {}
    for model, context, *entries in table.rows:
        named = zip(table.columns[2:], entries, strict=True)
        rows[model.number, context.number] = {c.name: e for c, e in named if e.value is not None}
    assert len(rows) == 4
    return rows


# ------------------------------------------------------------------------------------------------- Inspect


@pytest.fixture(scope="module")
def inspect_logs(run: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], dict[Any, Any]]:
    """What `export --to inspect` wrote, and (model, context, task) -> the log as Inspect reads it."""
    log = client("inspect_ai.log")
    folder = tmp_path_factory.mktemp("inspect")
    files = export_to(run, "inspect", str(folder))
    assert sorted(files) == sorted(str(p) for p in folder.iterdir())
    logs = {}
    for info in log.list_eval_logs(str(folder)):
        read = log.read_eval_log(info)
        logs[read.eval.model, read.eval.task_args["context.label"], read.eval.task] = read
    return files, logs


def test_inspect_lists_one_log_for_every_number_of_table_5(inspect_logs: Any, expected: Any) -> None:
    files, logs = inspect_logs
    assert len(files) == len(logs) == 2 * (2 + 2) + 2 * (3 + 2)  # lengths, MMLU and GSM8k under either context
    seen = 0
    for (model, context), entries in expected.items():
        for column, entry in entries.items():
            if column == "MMLU 2/57 by subject" or column == "GSM8k flexible":
                continue
            task = {"MMLU 2/57": "mmlu", "GSM8k strict": "gsm8k"}.get(column)
            length = {"RULER 4K": 4096, "RULER 8K": 8192, "RULER 16K": 16384}.get(column)
            read = logs[model, context, task or f"ruler_{length}"]
            metrics = read.results.scores[0].metrics
            assert metrics["mean"].value == pytest.approx(entry.value / 100, abs=1e-12)
            assert metrics["mean low"].value == pytest.approx(entry.interval[0] / 100, abs=1e-12)
            assert metrics["mean high"].value == pytest.approx(entry.interval[1] / 100, abs=1e-12)
            assert read.status == "success"
            seen += 1
    assert seen == len(logs)


def test_inspect_has_the_samples_behind_each_number(inspect_logs: Any, run: Path) -> None:
    _, logs = inspect_logs
    store = Store.read(run)
    read = logs["gated", "YaRN", "ruler_16384"]
    assert len(read.samples) == read.results.total_samples == 13 * 6
    assert len({s.id for s in read.samples}) == 13 * 6
    task_means = {m.name: m.value for m in read.results.scores[0].metrics.values() if m.group == "task"}
    assert len(task_means) == 13
    for task, mean in task_means.items():
        cell = Cell("gated", "YaRN", "ruler", task, 16384)
        ours = {f"{task} {s.id}": s for s in store.samples(cell)}
        theirs = {s.id: s for s in read.samples if s.metadata["task"] == task}
        assert ours.keys() == theirs.keys()
        for id, s in ours.items():
            there = theirs[id]
            assert there.scores["score"].value == s.scores["score"]
            assert (there.target, there.output.completion) == (s.references, s.response)
            assert there.output.stop_reason == ("max_tokens" if s.finish_reason == "length" else "stop")
            assert there.metadata["hash"] == s.hash
            assert there.model_usage["gated"].input_tokens == s.prompt_tokens
        assert mean == pytest.approx(sum(s.scores["score"] for s in ours.values()) / len(ours))


def test_inspect_has_both_metrics_of_gsm8k_and_both_means_of_mmlu(inspect_logs: Any, expected: Any) -> None:
    _, logs = inspect_logs
    entries = expected["baseline", "8k"]
    both = {s.name: s.metrics["mean"].value for s in logs["baseline", "8k", "gsm8k"].results.scores}
    assert both == {
        "exact_match,strict-match": pytest.approx(entries["GSM8k strict"].value / 100),
        "exact_match,flexible-extract": pytest.approx(entries["GSM8k flexible"].value / 100),
    }
    mmlu = logs["baseline", "8k", "mmlu"].results.scores
    assert [s.name for s in mmlu] == ["acc"]
    assert mmlu[0].metrics["by subject"].value == pytest.approx(entries["MMLU 2/57 by subject"].value / 100)


def test_a_second_export_to_inspect_writes_the_same_files(inspect_logs: Any, run: Path) -> None:
    files, _ = inspect_logs
    assert export_to(run, "inspect", str(Path(files[0]).parent)) == files
    assert len(list(Path(files[0]).parent.iterdir())) == len(files)


def one_cell(path: Path, samples: list[Any], planned: int | None = None, benchmark: str = "words") -> Path:
    """A run of one cell."""
    cell = Cell("m", "c", benchmark, benchmark)
    settings = {
        "models": [{"label": "m", "path": "m"}],
        "contexts": [{"label": "c", "max_length": 100}],
        "benchmarks": [{"lm_eval": benchmark}],
    }
    with Store.open(path, {"config": settings}, cells={cell: planned}) as store:
        for s in samples:
            store.append(cell, s)
        store.finish()
    return path


def test_inspect_shows_a_choice_by_its_letter(tmp_path: Path) -> None:
    log = client("inspect_ai.log")
    asked = sample(0, {"acc": 1.0}, finish_reason="choose", options=[" car", " milk"])
    extra = {**asked.extra, "prompt": {"head": "Which?", "tail": ""}}
    asked = replace(asked, references=["1"], response="1", extra=extra)
    [file] = export_to(one_cell(tmp_path / "run", [asked]), "inspect")
    assert Path(file).parent == tmp_path / "run" / "inspect"
    [there] = log.read_eval_log(file).samples
    assert (there.input, there.choices, there.target) == ("Which?", ["car", "milk"], ["B"])
    assert there.scores["acc"].answer == there.output.completion == "B"


def test_an_answer_cut_inside_a_character_is_exported(tmp_path: Path) -> None:
    """A lone surrogate has no UTF-8 form: Inspect gets its escape."""
    log = client("inspect_ai.log")
    cut = replace(sample(0, {"acc": 1.0}), response="a \ud835 42", references=["é \ud835"], finish_reason="length")
    [file] = export_to(one_cell(tmp_path / "run", [cut]), "inspect")
    [there] = log.read_eval_log(file).samples
    assert (there.output.completion, there.target) == (
        "a \N{REPLACEMENT CHARACTER} 42",
        ["é \N{REPLACEMENT CHARACTER}"],
    )
    assert there.output.stop_reason == "max_tokens"


def test_one_log_with_several_lengths_has_no_id_twice(tmp_path: Path) -> None:
    log = client("inspect_ai.log")
    cells = {Cell("m", "c", "words", "words", length): 1 for length in (256, 512)}
    with Store.open(tmp_path / "run", {"config": {}}, cells=cells) as store:
        for cell in cells:
            store.append(cell, sample(0, {"acc": cell.length / 512}))
        store.finish()
    [file] = export_to(tmp_path / "run", "inspect")
    read = log.read_eval_log(file)
    assert {s.id: s.scores["acc"].value for s in read.samples} == {"words 256 0": 0.5, "words 512 0": 1.0}
    tasks = {m.name: m.value for m in read.results.scores[0].metrics.values() if m.group == "task"}
    assert tasks == {"words 256": 0.5, "words 512": 1.0}


def test_a_perplexity_keeps_its_scale(tmp_path: Path) -> None:
    """And one sample, whose interval is as wide as can be, is not taken for a perplexity."""
    log = client("inspect_ai.log")
    [file] = export_to(
        one_cell(tmp_path / "ppl", [sample(i, {"word_perplexity": 10.0 + i}) for i in range(3)]), "inspect"
    )
    [score] = log.read_eval_log(file).results.scores
    assert {k: m.value for k, m in score.metrics.items()} == {"mean": 11.0}
    [file] = export_to(one_cell(tmp_path / "one", [sample(0, {"f1": 0.25})]), "inspect")
    [score] = log.read_eval_log(file).results.scores
    assert score.metrics["mean"].value == 0.25


def test_inspect_gets_no_mean_of_an_unfinished_or_failed_cell(tmp_path: Path) -> None:
    log = client("inspect_ai.log")
    unfinished = one_cell(tmp_path / "a", [sample(0, {"acc": 1.0})], planned=3)
    [file] = export_to(unfinished, "inspect")
    read = log.read_eval_log(file)
    assert (read.status, read.results.total_samples, read.results.completed_samples) == ("cancelled", 3, 1)
    path = tmp_path / "b"
    cells = {Cell("m", "c", b, b): 1 for b in ("words", "broken")}
    with Store.open(path, {"config": {}}, cells=cells) as store:
        store.append(Cell("m", "c", "words", "words"), sample(0, {"acc": 1.0}))
        store.append(Cell("m", "c", "broken", "broken"), sample(0, {"acc": math.nan}))
        store.fail(Cell("m", "c", "broken", "broken"), "the engine was lost")
        store.finish()
    logs = {read.eval.task: read for read in map(log.read_eval_log, export_to(path, "inspect"))}
    assert logs["words"].status == "success"
    assert logs["broken"].status == "error"
    assert "the engine was lost" in logs["broken"].error.message
    assert logs["broken"].results.scores == []
    assert math.isnan(logs["broken"].samples[0].scores["acc"].value)


# ------------------------------------------------------------------------------------------------- model cards


def test_a_model_card_is_read_back_by_the_hubs_client(run: Path, expected: Any, tmp_path: Path) -> None:
    from huggingface_hub import ModelCard

    files = export_to(run, "hub", str(tmp_path))
    assert [Path(f).parent.name for f in files] == ["baseline", "gated"]
    first = [Path(f).read_bytes() for f in files]
    for file in files:
        card = ModelCard.load(file)
        model = card.data.model_name
        found = {(r.dataset_config, r.metric_name): r for r in card.data.eval_results}
        count = 0
        for (of, context), entries in expected.items():
            for column, entry in entries.items() if of == model else ():
                at = {"RULER 4K": ", 4096 tokens", "RULER 8K": ", 8192 tokens", "RULER 16K": ", 16384 tokens"}
                result = found[context + at.get(column, ""), column]
                assert result.metric_value == round(entry.value, 2)
                assert result.metric_args["interval_95"] == [round(bound, 2) for bound in entry.interval]
                length = result.dataset_args.get("length")
                assert (length is not None) == column.startswith("RULER")
                assert length is None or str(length) in result.dataset_config
                count += 1
        assert count == len(found) == len(card.data.eval_results)
        assert "Reading:" in card.text  # the caption that says how it was measured
    assert export_to(run, "hub", str(tmp_path)) == files
    assert [Path(f).read_bytes() for f in files] == first


def test_two_models_whose_cards_would_be_one_file_are_refused(tmp_path: Path) -> None:
    cells = {Cell(m, "c", "words", "words"): 1 for m in ("a b", "A/b")}
    with Store.open(tmp_path / "run", {"config": {}}, cells=cells) as store:
        for cell in cells:
            store.append(cell, sample(0, {"acc": 1.0}))
        store.finish()
    with pytest.raises(GatedevalError, match="share the card"):
        export_to(tmp_path / "run", "hub")


# ------------------------------------------------------------------------------------------------- MLflow


def test_mlflows_file_store_is_read_back(
    run: Path, expected: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = client("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    for _ in range(2):  # a second export adds nothing
        export_to(run, "mlflow", str(tmp_path / "ml runs"), project="table 5")
    reader = mlflow.MlflowClient(tracking_uri=(tmp_path / "ml runs").as_uri())
    experiment = reader.get_experiment_by_name("table 5")
    runs = {r.info.run_name: r for r in reader.search_runs([experiment.experiment_id])}
    assert len(reader.search_runs([experiment.experiment_id])) == len(runs) == 5
    parent = runs["long context"]
    artifacts = {a.path for a in reader.list_artifacts(parent.info.run_id)}
    assert {"report.html", "run.json", "table5.md", "table5.csv", "table5.json", "table5.tex"} <= artifacts
    assert parent.data.params["versions.torch"] == "2.13.0"
    for (model, context), entries in expected.items():
        row = runs[f"{model} / {context}"]
        assert row.data.tags["mlflow.parentRunId"] == parent.info.run_id
        assert (row.data.params["model.label"], row.data.params["context.max_length"]) == (
            model, {"8k": "8192", "YaRN": "32768"}[context],
        )  # fmt: skip
        metrics = row.data.metrics
        assert metrics["score/ruler/4096"] == entries["RULER 4K"].value
        assert (metrics["low/mmlu/questions"], metrics["high/mmlu/questions"]) == entries["MMLU 2/57"].interval
        assert metrics["score/gsm8k/flexible"] == entries["GSM8k flexible"].value
        assert len([k for k in metrics if k.startswith("task/ruler/8192/")]) == 13
        history = {m.step: m.value for m in reader.get_metric_history(row.info.run_id, "curve/ruler")}
        assert history == {
            length: entries[name].value
            for length, name in zip(LENGTHS, ("RULER 4K", "RULER 8K", "RULER 16K"), strict=True)
            if name in entries
        }
        assert len(reader.get_metric_history(row.info.run_id, "curve/ruler")) == len(history)


def test_an_mlflow_that_cannot_be_reached_is_one_error_with_the_remedy(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client("mlflow")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    for address in ("http://127.0.0.1:9", "ftp://nowhere"):
        result = CliRunner().invoke(cli, ["export", str(run), "--to", "mlflow", "-o", address])
        assert result.exit_code == 2
        [line] = [line for line in result.stderr.splitlines() if line.startswith("gatedeval:")]
        assert f"MLflow at {address} refuses" in line
        assert "name a folder or a server's address with -o" in line


# ------------------------------------------------------------------------------------------------- Weights & Biases


def wandb_records(file: Path) -> Iterator[Any]:
    """The records of an offline run: LevelDB's log format (blocks of 32 KiB), a Record of W&B's own protocol each."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, parts = file.read_bytes(), 7, b""
    assert data[:4] == b":W&B"
    while at < len(data):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + 7])
        parts, at = parts + data[at + 7 : at + 7 + size], at + 7 + size
        if kind in (1, 4):  # whole, or the last part
            record = Record()
            record.ParseFromString(parts)
            parts = b""
            yield record


@pytest.fixture
def wandb_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """W&B without an account, and with its caches in a temporary folder."""
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("DATA", "CACHE", "CONFIG", "ARTIFACT"):
        monkeypatch.setenv(f"WANDB_{name}_DIR", str(tmp_path / name))
    return tmp_path


def test_the_offline_runs_of_wandb_are_read_back(run: Path, expected: Any, wandb_home: Path) -> None:
    client("wandb")
    folders = [Path(p) for p in export_to(run, "wandb", str(wandb_home / "out"), project="table5")]
    assert len(folders) == 5
    assert all(folder.parent == wandb_home / "out" / "wandb" for folder in folders)
    found: dict[str, tuple[Any, list[Any]]] = {}
    for folder in folders:
        [file] = folder.glob("*.wandb")
        records = list(wandb_records(file))
        started = next(r.run for r in records if r.WhichOneof("record_type") == "run")
        assert (started.project, started.run_group) == ("table5", "long context")
        found[started.display_name] = started, records
    for (model, context), entries in expected.items():
        started, records = found[f"{model} / {context}"]
        settings = {u.key: json.loads(u.value_json) for u in started.config.update}
        assert (settings["model.label"], settings["context.rope_theta"]) == (model, 1e6)
        summary = {
            "/".join([u.key, *u.nested_key]).strip("/"): json.loads(u.value_json)
            for r in records if r.WhichOneof("record_type") == "summary" for u in r.summary.update
        }  # fmt: skip
        assert summary["score/ruler/4096"] == entries["RULER 4K"].value
        assert (summary["low/gsm8k/strict"], summary["high/gsm8k/strict"]) == entries["GSM8k strict"].interval
        curve = {}
        for r in (r for r in records if r.WhichOneof("record_type") == "history"):
            row = {"/".join([i.key, *i.nested_key]).strip("/"): json.loads(i.value_json) for i in r.history.item}
            curve[row["length"]] = row["curve/ruler"]
        assert curve == {
            length: entries[name].value
            for length, name in zip(LENGTHS, ("RULER 4K", "RULER 8K", "RULER 16K"), strict=True)
            if name in entries
        }
    _, records = found["long context"]
    [artifact] = [
        r.artifact for r in records if r.WhichOneof("record_type") == "artifact" and r.artifact.type == "evaluation"
    ]
    names = {entry.path for entry in artifact.manifest.contents}
    assert {"report.html", "run.json", "table5.md", "table5.json", "tasks.csv"} <= names
    assert list(folders[-1].rglob("*.html"))  # the report, as a page of the run


def test_wandb_without_an_account_is_one_error_with_both_remedies(run: Path, wandb_home: Path) -> None:
    client("wandb")
    result = CliRunner().invoke(cli, ["export", str(run), "--to", "wandb"])
    assert result.exit_code == 2
    [line] = [line for line in result.stderr.splitlines() if line.startswith("gatedeval:")]
    assert "wandb login" in line
    assert "-o" in line


# ------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(("tool", "package"), [("inspect", "inspect_ai"), ("wandb", "wandb"), ("mlflow", "mlflow")])
def test_a_client_that_is_not_installed_is_named_with_the_command(
    run: Path, tool: str, package: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    result = CliRunner().invoke(cli, ["export", str(run), "--to", tool, "-o", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert f"pip install 'gatedeval[{tool}]'" in result.stderr
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_exported_is_one_error(run: Path, tmp_path: Path) -> None:
    with pytest.raises(GatedevalError, match="did you mean 'mlflow'"):
        export_to(run, "mlflo")
    with pytest.raises(GatedevalError, match="--project goes with --to wandb and --to mlflow, not with hub"):
        export_to(run, "hub", project="x")
    with pytest.raises(GatedevalError, match="no run at"):
        export_to(tmp_path / "nowhere", "hub")
    blocked = tmp_path / "file"
    blocked.write_text("")
    for tool in TOOLS:
        if tool != "hub":
            client({"inspect": "inspect_ai"}.get(tool, tool))
        with pytest.raises(GatedevalError, match="cannot create the folder"):
            export_to(run, tool, str(blocked))
    settings = config(lengths=(4096,))
    Store.open(tmp_path / "empty", {"config": settings}, cells=table5_cells(settings)).close()
    with pytest.raises(GatedevalError, match="has no number to export yet"):
        export_to(tmp_path / "empty", "hub")

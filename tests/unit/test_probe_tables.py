"""What tables, report, figures and lists show of a run's probes."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from harness.export import FORMATS, export_run
from harness.figures import save_figures
from harness.report import write_report
from harness.store import Store, interruption_message, list_runs, merge, rebuild
from harness.store.manifest import start_session
from harness.store.probes import Probes
from harness.tables.layout import DASH
from harness.tables.probe import probe_table
from harness.tables.reference import DIRECTORY, load_probe_reference
from harness.tables.sinks import changes
from harness.types import Cell, GatedevalError
from tests.support.probed_runs import probed_run, probes_alone, record


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return probed_run(tmp_path_factory.mktemp("probed") / "run")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return probes_alone(tmp_path_factory.mktemp("probed") / "alone")


def _rows(text: str) -> list[list[str]]:
    return [[f.strip() for f in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")][2:]


# ------------------------------------------------------------------------------------------------- the probe table


def test_the_config_s_section_table_chooses_orders_and_renames_probes(tmp_path: Path) -> None:
    table = {"models": ["gated", "baseline"], "contexts": ["YaRN"], "lengths": ["4K"], "rename": {"gated": "G"}}
    path = probed_run(tmp_path / "run", table=table)
    rows = _rows(export_run(path, "probe"))
    assert [row[:4] for row in rows] == [["G", "headwise", "YaRN", "4K"], ["baseline", "none", "YaRN", "4K"]]
    given = _rows(export_run(path, "probe", lengths=(8192,), contexts=("8k",), models=("baseline",)))
    assert [row[:4] for row in given] == [["baseline", "none", "8k", "8K"]]
    short = export_run(path, "probe", caption="short")
    assert "text: essays" in short
    assert "residual stream" not in short
    assert "residual stream" in export_run(path, "probe")


def test_lengths_of_the_benchmarks_alone_hide_no_probe_but_a_length_of_no_probe_is_refused(tmp_path: Path) -> None:
    path = probed_run(tmp_path / "run")
    with Store.open(path, Store.read(path).manifest, cells=Store.read(path).cells) as store:
        store.update_manifest(probes=[p for p in store.manifest["probes"] if p["length"] == 4096])
        store.update_manifest(config={**store.manifest["config"], "table": {"lengths": [8192]}})
        store.finish()
    assert {row[3] for row in _rows(export_run(path, "probe"))} == {"4K"}
    with pytest.raises(GatedevalError, match="no probe has the length 8192; the run's have 4096"):
        export_run(path, "probe", lengths=(8192,))
    with pytest.raises(GatedevalError, match="no model 'x' in this run"):
        export_run(path, "probe", models=("x",))


def test_names_given_twice_are_refused_in_the_words_of_a_config(run: Path) -> None:
    with pytest.raises(GatedevalError, match=r"^table.models: names 'gated' twice$"):
        export_run(run, "probe", models=("gated", "gated"))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, DASH),
        (12.345, "12.35"),
        (999.994, "999.99"),
        (12345.6, "12346"),
        (4.2e11, "4.20e11"),
        (1e300, "1.00e300"),
    ],
)
def test_perplexities_of_every_size(tmp_path: Path, value: float | None, text: str) -> None:
    with Store.open(tmp_path, {"name": "p", "models": {}}, cells={}) as store:
        store.finish()
    Probes(tmp_path).add(record(perplexity=value), {})
    assert _rows(export_run(tmp_path, "probe"))[0][9] == text
    assert text.replace(DASH, "--") in export_run(tmp_path, "probe", "latex")
    assert json.loads(export_run(tmp_path, "probe", "json"))["rows"][0]["PPL"]["value"] == value


def test_table_4_of_the_paper_stands_below_the_run_s_rows(run: Path) -> None:
    rows = _rows(export_run(run, "probe", reference="paper"))
    assert len(rows) == 8 + 7
    names = [row[0] for row in rows[8:]]
    assert names[:2] == ["paper: baseline", "paper: SDPA elementwise"]
    published = dict(zip(names, rows[8:], strict=True))
    # arXiv 2505.06708, Table 4
    assert published["paper: baseline"][4:10] == ["0.467", DASH, "1053", DASH, DASH, "6.026"]
    assert published["paper: SDPA elementwise"][4:10] == ["0.048", DASH, "94", "0.116", DASH, "5.761"]
    assert published["paper: SDPA headwise"][4:10] == ["0.073", DASH, "98", "0.172", DASH, "5.792"]
    assert published["paper: SDPA elementwise, NS-sigmoid"][4:10] == ["0.451", DASH, "892", "0.653", DASH, "5.900"]
    text = export_run(run, "probe", reference="paper")
    assert "15B mixture-of-experts" in " ".join(text.split())
    for fmt in FORMATS:
        assert "nan" not in export_run(run, "probe", fmt, reference="paper").lower()
    tidy = list(csv.DictReader(io.StringIO(export_run(run, "probe", "csv", reference="paper"))))
    assert [float(r["first_token_attention"]) for r in tidy[8:10]] == [0.467, 0.048]
    assert tidy[8]["gate_mean"] == ""


def test_the_reference_files_agree_where_both_have_a_number() -> None:
    """Mean gate and F-Attn rank the gated variants alike, as section 4.2 says."""
    rows = load_probe_reference("paper").rows()[1:]
    by_gate = sorted(rows, key=lambda r: r["gate_mean"])
    assert [r["first_token_attention"] for r in by_gate] == sorted(r["first_token_attention"] for r in rows)
    assert (DIRECTORY / "README.md").read_text().count("gated_attention_table4.csv") >= 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "cannot be read as CSV"),
        ("model,gate\na,b\n", "has no column first_token_attention"),
        ("model,gate,first_token_attention,largest_activation,gate_mean,perplexity,source\n", "has no row"),
        (
            "model,gate,first_token_attention,largest_activation,gate_mean,perplexity,source\na,b,high,1,2,3,c\n",
            "column first_token_attention has something that is no number",
        ),
    ],
)
def test_a_reference_that_is_none_is_refused(run: Path, tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "r.csv").write_text(text)
    with pytest.raises(GatedevalError, match=words):
        export_run(run, "probe", reference=str(tmp_path / "r.csv"))


def test_probes_that_are_not_made_yet_are_named(tmp_path: Path) -> None:
    path = probed_run(tmp_path / "run")
    (path / "probe/gated-YaRN-8192.npz").unlink()
    table = probe_table(Store.read(path))
    assert len(table.rows) == 7
    assert table.missing == ["Missing: 1 of 8 probes: gated / YaRN at 8K."]
    assert table.missing[0] in table.caption
    rebuild(path)
    assert Store.read(path).manifest["state"] == "incomplete"
    message = interruption_message(path, "SIGTERM", "again")
    assert "and 7 of 8 probes are finished and kept in" in message
    assert re.search(r"\d+ of \d+ samples and 7", message)


# ------------------------------------------------------------------------------------------------- probes alone


def test_a_run_of_probes_alone_is_shown_by_its_probe_table(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert export_run(alone) == export_run(alone, "probe")
    assert f"{alone} has 8 probes and no benchmark: this is the table of --style probe" in capsys.readouterr().err
    with pytest.raises(GatedevalError, match="has 8 probes and no benchmark: use --style probe, not table5"):
        export_run(alone, "table5")
    [listed] = list_runs(alone.parent)[-1:]
    assert (listed["probes"], listed["models"]) == (8, ["baseline", "gated"])
    assert "interrupted by SIGTERM: 8 of 8 probes are finished" in interruption_message(alone, "SIGTERM", "again")
    page = write_report(alone, alone.parent / "alone.html").read_text()
    assert "8 probes" in page
    assert 'id="probe"' in page
    assert 'id="comparison"' not in page
    assert 'id="samples"' not in page
    assert page.count('id="config"') == 1


# ------------------------------------------------------------------------------------------------- beside the scores


def test_the_change_under_yarn_beside_first_token_attention(run: Path) -> None:
    found = changes(Store.read(run))
    assert [(c.model, c.base, c.context, c.lengths, c.own, c.extended, c.first, c.probed) for c in found] == [
        ("baseline", "8k", "YaRN", (4096, 8192), 100.0, 0.0, 0.4, 8192),
        ("gated", "8k", "YaRN", (4096, 8192), 100.0, 100.0, 0.05, 8192),
    ]
    text = export_run(run, "sinks")
    assert [row[-2:] for row in _rows(text)] == [["−100.00", "4K to 8K"], ["+0.00", "4K to 8K"]]
    assert "2 models: this proves nothing about sinks or gates" in " ".join(text.split())
    for fmt in FORMATS:
        assert "nan" not in export_run(run, "sinks", fmt).lower()
    rows = list(csv.DictReader(io.StringIO(export_run(run, "sinks", "csv"))))
    assert [float(r["change"]) for r in rows] == [-100.0, 0.0]
    renamed = export_run(run, "sinks", rename={"YaRN": "Y", "gated": "G"}, digits=0)
    assert [row[0] for row in _rows(renamed)] == ["baseline", "G"]
    assert [row[3] for row in _rows(renamed)] == ["Y", "Y"]


def test_a_merged_run_has_the_probes_of_both(tmp_path: Path) -> None:
    first, second = probed_run(tmp_path / "a"), probed_run(tmp_path / "b")
    manifest = Store.read(second).manifest
    with Store.open(second, manifest, cells=Store.read(second).cells) as store:
        store.update_manifest(probes=[p for p in manifest["probes"] if p["model"] == "gated"])
        store.finish()
    with Store.open(first, Store.read(first).manifest, cells=Store.read(first).cells) as store:
        store.update_manifest(probes=[p for p in manifest["probes"] if p["model"] == "baseline"])
        store.finish()
    merged = merge(first, second, tmp_path / "both")
    assert Store.read(merged).manifest["state"] == "complete"
    assert _rows(export_run(merged, "probe")) == _rows(export_run(probed_run(tmp_path / "whole"), "probe"))
    assert [c.model for c in changes(Store.read(merged))] == ["baseline", "gated"]


def test_a_model_without_a_probe_or_without_scores_has_no_change(tmp_path: Path) -> None:
    path = probed_run(tmp_path / "run")
    for context, length in (("YaRN", 8192), ("8k", 4096)):
        Store.read(path).samples_path(Cell("baseline", context, "ruler", "niah_single_1", length)).unlink()
    assert [c.model for c in changes(Store.read(path))] == ["gated"]


def test_figures_and_report_show_every_picture(run: Path, tmp_path: Path) -> None:
    files = {f.name for f in save_figures(run, tmp_path / "figures", ["svg"])}
    expected = {f"probe_{what}_{c}.svg" for what in ("first_token", "activations", "gates") for c in ("8k", "yarn")}
    expected |= {f"probe_maps_{m}_{c}.svg" for m in ("baseline", "gated") for c in ("8k", "yarn")}
    assert expected | {"probe_change_against_first_token.svg"} <= files
    page = write_report(run, tmp_path / "report.html").read_text()
    section = page[page.index('<section id="probe">') : page.index('<section id="pairs">')]
    assert section.count("<svg") == 2 + 2 * 3 + 4 + 1  # keys; pictures of two contexts; maps; changes
    assert "this proves nothing about sinks or gates" in section
    assert "baseline: 0.200, 0.333, 0.467, 0.600; gated: 0.025" in section, "the numbers in words"
    images = re.findall(r'href="([^"]{0,30})', section)
    assert any(address.startswith("data:image/png;base64,") for address in images), "maps keep their pixels"
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids)), "ids are unique in the page"


# ------------------------------------------------------------------------------------------------- runs


def test_other_probes_or_another_table_make_no_stored_answer_stale(tmp_path: Path) -> None:
    path = probed_run(tmp_path / "run")
    old = Store.read(path)
    assert not start_session(path, old.manifest, old.cells)["unverified"]

    def unverified(**changes: Any) -> list[str]:
        config = {**old.manifest["config"], **changes}
        return start_session(path, {**old.manifest, "config": config}, old.cells)["unverified"]

    assert not unverified(probe={"lengths": [512]}, table={"digits": 1})
    assert len(unverified(seed=7)) == len(old.cells)

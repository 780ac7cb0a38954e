"""Arms: several checkpoints of one recipe as one row of tables, comparisons, reports, and what is refused."""

from __future__ import annotations

import csv
import io
import json
import statistics
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from harness import stats
from harness.commands.main import cli
from harness.config import from_dict, load, to_dict
from harness.exchange.results import Results
from harness.export import FORMATS, export_run, render
from harness.report import write_report
from harness.report.folder import compare_arms, runs_of
from harness.store import Store, merge
from harness.tables import delta_table, lengths_table, table5, tasks_table
from harness.tables.compare import compare
from harness.tables.curves import curves
from harness.tables.training import trainings
from harness.tables.training_table import training_table
from harness.tables.view import viewed
from harness.types import Cell, GatedevalError
from tests.support.arm_runs import entries, skill_of, write_arms
from tests.support.formats import validator
from tests.support.sample_runs import answer


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three checkpoints of each of two recipes. No test may change it."""
    return write_arms(tmp_path_factory.mktemp("arms") / "run")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds of two recipes at three steps."""
    return write_arms(tmp_path_factory.mktemp("steps") / "run", entries(2, (1000, 2000, 4000)), n=6)


def document(run: Path, **options: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(export_run(run, fmt="json", **options))
    return found


# ------------------------------------------------------------------------------------------- rows


def test_a_row_is_the_mean_over_checkpoints_with_their_spread(run: Path) -> None:
    by_arm, single = document(run), document(run, arms="off")
    assert [(r["model"], r["context"], r["checkpoints"]) for r in by_arm["rows"]] == [
        ("base", "8k", "3"), ("gate", "8k", "3"), ("base", "YaRN", "3"), ("gate", "YaRN", "3"),
    ]  # fmt: skip
    columns = [c["name"] for c in by_arm["columns"] if c["score"]]
    assert len(columns) == 6
    for row in by_arm["rows"]:
        own = [r for r in single["rows"] if r["model"].startswith(row["model"]) and r["context"] == row["context"]]
        for name in columns:
            values = [r[name]["value"] for r in own]
            assert row[name]["value"] == pytest.approx(statistics.mean(values))
            assert row[name]["spread"] == pytest.approx(statistics.stdev(values))
            assert row[name]["checkpoints"] == pytest.approx(values)


def test_checkpoints_below_their_arm_change_no_number_and_no_mark(run: Path) -> None:
    rows, expanded = document(run)["rows"], document(run, arms="expanded")["rows"]
    assert [r["model"] for r in expanded[:4]] == ["base", "base-s1", "base-s2", "base-s3"]
    assert [r["checkpoints"] for r in expanded[:4]] == ["3", "of base", "of base", "of base"]
    assert [r for r in expanded if r["checkpoints"] == "3"] == rows
    assert not any(f["best"] or f["marks"] for r in expanded if "of" in r["checkpoints"] for f in list(r.values())[3:])
    plain = {(r["model"], r["context"]): r for r in document(run, arms="off")["rows"]}
    for row in expanded[1:4]:
        assert [f["value"] for f in list(row.values())[3:]] == [
            f["value"] for f in list(plain[row["model"], row["context"]].values())[2:]
        ]


def test_without_arms_nothing_is_different(tmp_path: Path) -> None:
    """`arms: off` is the table of a run whose models are in no arm, byte for byte."""
    models = [{k: v for k, v in entry.items() if k != "arm"} for entry in entries(1)]
    run, same = write_arms(tmp_path / "a" / "run", entries(1)), write_arms(tmp_path / "b" / "run", models)
    for style in ("table5", "tasks", "delta", "lengths"):
        for fmt in ("md", "json"):
            assert export_run(run, style, fmt, arms="off") == export_run(same, style, fmt)
    assert "checkpoints" not in export_run(same, fmt="json")


def test_every_format_has_arms(run: Path, trained: Path) -> None:
    tables = [table5(Store.read(run)), tasks_table(Store.read(run)), delta_table(Store.read(run))]
    for table in [*tables, lengths_table(Store.read(run)), training_table(Store.read(trained))]:
        for fmt in FORMATS:
            text = render(table, fmt)
            assert "gate" in text or (table.style, fmt) == ("delta", "csv")
            assert "nan" not in text.lower()
        validator("table").validate(json.loads(render(table, "json")))
    validator("run").validate(json.loads((trained / "run.json").read_text()))
    assert "8.1" in export_run(run, digits=1)
    assert "±" in export_run(run)
    assert r"\ensuremath{\pm}" in export_run(run, fmt="latex")
    assert r"\ensuremath{\pm}" in export_run(run, fmt="latex", intervals=True)
    assert "checkpoints" in export_run(run, transpose=True).splitlines()[2]
    rows = list(csv.DictReader(io.StringIO(export_run(run, fmt="csv", arms="expanded"))))
    first = next(r for r in rows if r["model"] == "base")
    assert (first["checkpoints"], first["samples"]) == ("3", "12")
    own = [float(r["score"]) for r in rows if r["model"] != "base" and r["model"].startswith("base")
           and all(r[k] == first[k] for k in ("context", "task", "length"))]  # fmt: skip
    assert float(first["sd"]) == pytest.approx(statistics.stdev(own), abs=1e-3)
    samples = {r["model"] for r in csv.DictReader(io.StringIO(export_run(run, "samples", "csv", models=("gate",))))}
    assert samples == {"gate-s1", "gate-s2", "gate-s3"}


def test_arms_have_names_like_models(run: Path) -> None:
    shown = document(run, models=("gate", "base"), rename={"gate": "SDPA gate", "base-s1": "first"}, arms="expanded")
    assert [r["model"] for r in shown["rows"]][:1] == ["SDPA gate"]
    text = export_run(run, rename={"gate": "SDPA gate"}, models=("gate",))
    assert "Arm SDPA gate: mean over 3 checkpoints (gate-s1, gate-s2, gate-s3)" in text.replace("\n  ", " ")
    assert "base  " not in text.splitlines()[2]
    only = document(run, models=("gate-s2",), arms="expanded")["rows"]
    assert {r["model"] for r in only} == {"gate-s2"}


def test_an_arm_with_a_missing_checkpoint_has_no_number(run: Path, tmp_path: Path) -> None:
    models = entries(2)
    models[3]["contexts"] = ["8k"]  # gate-s2 is not run under YaRN

    def plan(path: Path, drop: str) -> Path:
        write_arms(path, models)
        manifest = json.loads((path / "run.json").read_text())
        manifest["cells"] = [c for c in manifest["cells"] if (c["model"], c["context"]) != ("gate-s2", "YaRN")]
        (path / "run.json").write_text(json.dumps(manifest))
        for file in (path / "samples").glob(drop):
            file.unlink()
        return path

    path = plan(tmp_path / "run", "base-s2__8k__ruler__vt__4096.jsonl")
    text = export_run(path).replace("\n  ", " ")
    assert "base / 8k / vt at 4096: base-s2: no sample yet" in text
    assert "gate / YaRN / vt at 4096: gate-s2: not in the plan" in text
    rows = {(r["model"], r["context"]): r for r in document(path)["rows"]}
    assert rows["base", "8k"]["RULER 2/13 4K"]["value"] is None
    assert rows["gate", "YaRN"]["RULER 2/13 4K"]["value"] is None
    assert rows["gate", "8k"]["RULER 2/13 4K"]["value"] is not None


def test_an_arm_is_over_the_samples_that_all_checkpoints_have(tmp_path: Path) -> None:
    path = write_arms(tmp_path / "run", entries(2))
    file = path / "samples" / "gate-s2__8k__gsm8k__gsm8k.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:5]) + lines[5][:20])  # killed in the middle of the sixth sample
    store, _ = viewed(Store.read(path))
    cell = Cell("gate", "8k", "gsm8k", "gsm8k")
    assert store.scores(cell).ids == ["0", "1", "2", "3", "4"]
    row = next(r for r in document(path)["rows"] if (r["model"], r["context"]) == ("gate", "8k"))
    assert row["GSM8k strict"]["marks"] == "†"
    own = [answer(Cell(f"gate-s{i}", "8k", "gsm8k", "gsm8k"), j, skill_of(Cell(f"gate-s{i}", "", "", ""))).scores
           for i in (1, 2) for j in range(5)]  # fmt: skip
    mean = statistics.mean(s["exact_match,strict-match"] for s in own)
    assert row["GSM8k strict"]["value"] == pytest.approx(100 * mean)


# ------------------------------------------------------------------------------------------- comparisons


def test_files_are_compared_by_sample_over_the_means_of_checkpoints(run: Path) -> None:
    line = next(line for line in _lines(run) if line["task"] == "vt" and line["length"] == "4096")
    store = Store.read(run)
    means = {
        arm: sum(store.scores(Cell(f"{arm}-s{i}", "8k", "ruler", "vt", 4096)).scores for i in (1, 2, 3)) / 3
        for arm in ("base", "gate")
    }
    differences = stats.paired_differences([means["base"]], [means["gate"]])
    assert float(line["p"]) == pytest.approx(stats.paired_p(differences)[0], abs=1e-4)
    assert float(line["ci_low"]) == pytest.approx(100 * stats.paired_interval(differences).low, abs=1e-3)
    assert line["infer"] == "files"


def _lines(run: Path, **options: Any) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(export_run(run, "delta", "csv", **options))))


def test_recipes_are_compared_over_checkpoints(run: Path) -> None:
    line = next(line for line in _lines(run, infer="recipe") if line["task"] == "average" and line["length"] == "4096")
    single = document(run, arms="off")["rows"]
    base, gate = (
        [r["RULER 2/13 4K"]["value"] / 100 for r in single if r["model"].startswith(arm) and r["context"] == "8k"]
        for arm in ("base", "gate")
    )
    found = stats.welch(base, gate)
    assert float(line["p"]) == pytest.approx(found.p, abs=1e-4)
    assert float(line["difference"]) == pytest.approx(100 * found.difference, abs=1e-3)
    assert float(line["ci_low"]) == pytest.approx(100 * stats.welch_interval(base, gate).low, abs=1e-3)
    assert float(line["hierarchical_low"]) < float(line["ci_low"])
    assert (line["test"], line["infer"], line["checkpoints_baseline"]) == ("Welch t", "recipe", "3")
    assert float(line["sd_candidate"]) == pytest.approx(100 * statistics.stdev(gate), abs=1e-3)


def test_the_caption_says_what_a_comparison_is_about(run: Path) -> None:
    files, recipe = (export_run(run, infer=infer).replace("\n  ", " ") for infer in ("files", "recipe"))
    assert "Comparisons are about these checkpoints" in files
    assert "Comparisons are about the recipes" in recipe
    assert "(3 against 3 checkpoints: 0.1)" in recipe
    assert "Welch t test, Holm over 10 comparisons" in recipe
    assert "(Student's t over an arm's checkpoints; where these have equal means, by sample" in recipe
    assert "Comparisons are about the recipes" in export_run(run, infer="recipe", caption="short").replace("\n  ", " ")
    row = document(run, infer="recipe")["rows"][0]["RULER 2/13 4K"]
    curve = curves(viewed(Store.read(run), infer="recipe")[0])[0]
    assert (curve.model, curve.lows[0], curve.highs[0]) == ("base", *map(pytest.approx, row["interval"]))
    low, high, _ = stats.arm_interval([v / 100 for v in row["checkpoints"]])
    assert row["interval"] == pytest.approx([100 * low, 100 * high])


def test_a_seed_effect_alone_is_a_difference_of_files_and_not_of_recipes(tmp_path: Path) -> None:
    """Two seeds an arm, both of gate lucky: by sample the files differ, and the recipes need not."""
    lucky = {"base-s1": 0.2, "base-s2": 0.5, "gate-s1": 0.6, "gate-s2": 0.9}
    path = write_arms(tmp_path / "run", entries(2), n=40, skill=lambda c: lucky[c.model])
    files, recipe = (document(path, infer=infer)["rows"][1]["RULER 2/13 4K"]["marks"] for infer in ("files", "recipe"))
    assert (files, recipe) == ("▲", "")


def test_large_differences_of_five_checkpoints_are_shown(tmp_path: Path) -> None:
    path = write_arms(tmp_path / "run", entries(5), n=16, skill=lambda c: skill_of(c, gain=0.35, spread=0.02))
    text = compare(path, infer="recipe", listed=0)
    assert "gate is better" in text
    assert "tests over checkpoints" in text
    assert "would it hold for other trainings on other samples?" in text
    assert " ± " in text
    assert "(5 checkpoints)" in text


def test_single_checkpoints_can_be_compared_as_before(run: Path) -> None:
    text = compare(run, "base-s1", "gate-s2", listed=0)
    assert text.startswith("gate-s2 against base-s1")
    assert "recipe" not in text
    table = delta_table(Store.read(run))
    assert [c.title for c in table.columns[4:6]] == ["base", "gate"]
    assert "minus base-s1" in export_run(run, "delta", baseline="base-s1", candidate="gate-s1").replace("\n  ", " ")


def test_a_rerun_of_arms_is_recognised(run: Path) -> None:
    assert "rerun: base +0.00 (0 of 24 samples scored otherwise)" in compare(run, rerun=run, listed=0)


# ------------------------------------------------------------------------------------------- refusals


def test_one_checkpoint_bears_no_claim_about_its_recipe(tmp_path: Path) -> None:
    path = write_arms(tmp_path / "run", entries(1))
    for command in (["table"], ["compare"], ["table", "--style", "delta"]):
        found = CliRunner().invoke(cli, [command[0], str(path), *command[1:], "--infer", "recipe"])
        assert found.exit_code == 2
        assert found.output.count("\n") == 1
        assert (
            "infer: recipe needs two checkpoints or more in every arm, and 'base' (and 'gate') has one" in found.output
        )
    assert "1" in [r["checkpoints"] for r in document(path)["rows"]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"infer": "recipe", "arms": "off"}, "arms: off takes them apart"),
        (
            {"models": ("gate-s1",)},
            "'gate-s1' is a checkpoint of the arm 'gate'; --arms expanded or --arms off shows it",
        ),
        ({"models": ("gate",), "arms": "off"}, "it is an arm, and arms: off shows its checkpoints alone"),
        ({"models": ("gat",)}, "did you mean 'gate'"),
        ({"steps": "all"}, "--steps: no checkpoint of this run has a `step`"),
        ({"baseline": "base-s1"}, "it is a checkpoint of an arm: --arms off takes arms apart"),
        ({"style": "training"}, "no arm of this run has checkpoints at two training steps"),
        ({"rename": {"gate": "base"}}, "two rows would be called 'base'"),
        ({"rename": {"gate": "gate-s1"}, "arms": "expanded"}, "two rows would be called 'gate-s1'"),
    ],
)
def test_what_does_not_fit_is_one_line(run: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(GatedevalError, match=message.replace("(", r"\(")) as error:
        export_run(run, **options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"infer": "recipe", "arms": "off"}, "table.infer: recipe compares arms, and arms: off takes them apart"),
        (
            {"models": ["gate-s1"]},
            "no model 'gate-s1' has a row with arms: rows, steps: last; there are 'base', 'gate'",
        ),
        ({"models": ["gate"], "arms": "off"}, "no model 'gate' has a row with arms: off"),
        ({"rename": {"gate": "base"}}, "table.rename: two would be called 'base'"),
        ({"rename": {"gate": "gate-s1"}}, "table.rename: two would be called 'gate-s1'"),
        ({"rename": {"gat": "SDPA"}}, "table.rename: no model or context 'gat'; did you mean 'gate'?"),
    ],
)
def test_a_table_that_cannot_be_shown_is_told_before_the_run(table: dict[str, Any], message: str) -> None:
    with pytest.raises(GatedevalError) as error:
        from_dict({"name": "seeds", "models": entries(2), "benchmarks": ["gsm8k"], "table": table})
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_copies_are_no_trainings(tmp_path: Path) -> None:
    known = {e["label"]: {"fingerprint": e["label"].removesuffix("2").removesuffix("1")} for e in entries(2)}
    path = write_arms(tmp_path / "run", entries(2), models=known)
    assert export_run(path)
    with pytest.raises(GatedevalError, match="'base-s1' and 'base-s2' of the arm 'base' have the same weights"):
        export_run(path, infer="recipe")


def test_options_without_arms_are_refused(tmp_path: Path) -> None:
    path = write_arms(tmp_path / "run", [{"label": "a-s1", "path": "a"}, {"label": "b-s1", "path": "b"}])
    with pytest.raises(GatedevalError, match="--arms: no model of this run is in an arm"):
        export_run(path, arms="expanded")


def test_checkpoints_that_were_asked_different_things_are_no_arm(tmp_path: Path) -> None:
    path = write_arms(tmp_path / "run", entries(2))
    file = path / "samples" / "gate-s2__8k__gsm8k__gsm8k.jsonl"
    file.write_text(file.read_text().replace("gsm8k gsm8k 0 3", "another prompt"))
    with pytest.raises(GatedevalError, match=r"gate-s1 and gate-s2 are in one arm, but were asked different things"):
        export_run(path)
    assert export_run(path, arms="off")


CONFIG = """name: arms
models:
  - {label: g1, arm: gate, step: 10, path: a/b}
  - {label: g2, arm: gate, path: a/b}
  - {label: gate, arm: base, path: a/c}
  - {label: q, step: 3, path: a/c}
benchmarks: [gsm8k]
table: {infer: recipe}
"""


def test_a_config_is_told_all_that_is_wrong_with_its_arms(tmp_path: Path) -> None:
    file = tmp_path / "arms.yaml"
    file.write_text(CONFIG)
    with pytest.raises(GatedevalError) as error:
        load(file)
    for line in (
        "arms.yaml:3: models 'g1', arm: 'gate' is also the label of a model",
        "arms.yaml:4: models 'g2', arm: 'g2' is the same checkpoint as 'g1'",
        "arms.yaml:4: models 'g2': 'g1' of the arm 'gate' has a step; give 'g2' one too",
        "arms.yaml:6: models 'q', step: a training step is a point on an arm's curve; add arm: NAME, or drop it",
        "arms.yaml:8: table.infer: recipe needs two checkpoints or more in every arm",
    ):
        assert line in str(error.value)


def test_an_arm_is_not_in_the_config_of_models_without_one() -> None:
    plain = {"name": "x", "models": [{"label": "a", "path": "o/a"}], "benchmarks": ["gsm8k"]}
    written = to_dict(from_dict(plain))
    assert not {"arm", "step"} & written["models"][0].keys()
    assert not {"arms", "steps", "infer"} & written["table"].keys()
    arm = {**plain, "models": [{"label": "a", "path": "o/a", "arm": "A", "step": 1000}], "table": {"arms": "off"}}
    assert from_dict(to_dict(from_dict(arm))) == from_dict(arm)
    assert to_dict(from_dict(arm))["models"][0]["step"] == 1000


# ------------------------------------------------------------------------------------------- training steps


def test_a_row_is_about_the_last_step_that_all_arms_have(trained: Path, tmp_path: Path) -> None:
    rows = document(trained)["rows"]
    assert {r["checkpoints"] for r in rows} == {"2 at step 4000"}
    assert "those at step 4000; 4 at other steps are left out" in export_run(trained).replace("\n  ", " ")
    assert {r["checkpoints"] for r in document(trained, steps="all")["rows"]} == {"6"}
    with pytest.raises(GatedevalError, match="steps of one training"):
        export_run(trained, steps="all", infer="recipe")
    models = [e for e in entries(2, (1000, 2000)) if (e["arm"], e["step"]) != ("base", 2000)]
    assert {r["checkpoints"] for r in document(write_arms(tmp_path / "run", models))["rows"]} == {"2 at step 1000"}


def test_curves_over_training_and_the_area_between(trained: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(export_run(trained, "training", "csv"))))
    own = [r for r in rows if (r["context"], r["score_of"]) == ("8k", "RULER 2/13 4K")]
    heights = {}
    for arm in ("base", "gate"):
        points = {int(r["step"]): r for r in own if r["arm"] == arm and r["step"]}
        assert list(points) == [1000, 2000, 4000]
        single = {
            r["model"]: r["RULER 2/13 4K"]["value"]
            for r in document(trained, arms="off")["rows"]
            if r["context"] == "8k"
        }
        for step, point in points.items():
            values = [single[f"{arm}-s{seed}-{step}"] for seed in (1, 2)]
            assert float(point["score"]) == pytest.approx(statistics.mean(values), abs=1e-3)
            assert float(point["sd"]) == pytest.approx(statistics.stdev(values), abs=1e-3)
        a, b, c = (float(points[step]["score"]) for step in (1000, 2000, 4000))
        heights[arm] = ((a + b) / 2 * 1000 + (b + c) / 2 * 2000) / 3000
    area = next(r for r in own if not r["step"])
    assert float(area["difference"]) == pytest.approx(heights["gate"] - heights["base"], abs=1e-3)
    assert float(area["difference_low"]) < float(area["difference"]) < float(area["difference_high"])
    assert 0 < float(area["p_adjusted"]) <= 1
    some = list(csv.DictReader(io.StringIO(export_run(trained, "training", "csv", contexts=("8k",), lengths=(4096,)))))
    assert [r for r in some if r["score_of"] == "RULER 2/13 4K"] == own, "what is shown changes no number"


def test_nothing_is_claimed_about_recipes_over_training(trained: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(export_run(trained, "training", "csv", infer="recipe"))))
    area = next(r for r in rows if not r["step"])
    assert area["difference"]
    assert not area["difference_low"]
    text = export_run(trained, "training", infer="recipe").replace("\n  ", " ")
    assert "mean over training has no interval: which checkpoints are of one training is not known" in text
    apart, view = viewed(Store.read(trained), arms="off")
    with pytest.raises(GatedevalError, match="arms: off takes arms apart"):
        trainings(apart, view)


def test_figures_and_report_have_the_curves(trained: Path, run: Path, tmp_path: Path) -> None:
    found = CliRunner().invoke(cli, ["figures", str(trained), "-o", str(tmp_path), "-f", "svg"])
    assert found.exit_code == 0, found.output
    svg = (tmp_path / "training_8k.svg").read_text()
    assert "training step" in svg
    assert "mean difference" in svg
    assert (tmp_path / "ruler_tasks_gate_8k.svg").is_file()
    page = write_report(trained, tmp_path / "report.html").read_text()
    assert 'id="training"' in page
    assert page.count('<tr class="checkpoint">') == 8
    assert "show the checkpoints of gate" in page
    assert "2 checkpoints at step 4000" in page
    plain = write_report(run, tmp_path / "plain.html").read_text()
    assert 'id="training"' not in plain


# ------------------------------------------------------------------------------------------- beside others


def test_seeds_of_two_runs_make_one_arm(run: Path, tmp_path: Path) -> None:
    known = {e["label"]: {"fingerprint": f"print of {e['label']}"} for e in entries()}

    def part(name: str, seeds: tuple[str, ...], **change: Any) -> Path:
        own = [{**e, **change} for e in entries() if e["label"].endswith(seeds)]
        return write_arms(tmp_path / name, own, models={e["label"]: known[e["label"]] for e in own})

    joined = merge(part("a", ("s1",)), part("b", ("s2", "s3")), tmp_path / "both")
    assert [r["checkpoints"] for r in document(joined)["rows"]] == ["3"] * 4
    values = [[f["value"] for f in list(r.values())[3:]] for r in document(joined)["rows"]]
    expected = [[f["value"] for f in list(r.values())[3:]] for r in document(run)["rows"]]
    for ours, theirs in zip(values, expected, strict=True):
        assert ours == pytest.approx(theirs)
    other = part("other", ("s1",), arm="another")
    with pytest.raises(GatedevalError, match="the model 'base-s1' is in the arm 'base' at step None in"):
        merge(tmp_path / "a", other, tmp_path / "x")
    without = write_arms(tmp_path / "without", [{k: v for k, v in e.items() if k != "arm"} for e in entries(1)])
    kept = merge(without, tmp_path / "a", tmp_path / "y")
    assert {m["arm"] for m in Store.read(kept).manifest["config"]["models"]} == {"base", "gate"}
    named = write_arms(tmp_path / "named", [{"label": "gate", "path": "g"}], skill=lambda c: 0.5)
    with pytest.raises(
        GatedevalError, match="'gate' is the arm of 'gate-s1' in one run, and the label of another model"
    ):
        merge(tmp_path / "a", named, tmp_path / "z")


def test_the_folder_page_has_arms_and_compares_them(run: Path) -> None:
    folder = runs_of(run)
    arms = {arm.model: arm for arm in folder[0].arms if arm.context == "8k"}
    assert len(arms["gate"].checkpoints) == 3
    row = next(r for r in document(run)["rows"] if (r["model"], r["context"]) == ("gate", "8k"))
    column = next(c for c in arms["gate"].scores if c.length == 4096)
    assert arms["gate"].scores[column] == pytest.approx(row["RULER 2/13 4K"]["value"], abs=1e-3)
    paired = compare_arms(folder, arms["base"], arms["gate"])
    ours = next(p.comparison for p in paired if p.title == column.name)
    line = next(line for line in _lines(run) if (line["task"], line["length"]) == ("average", "4096"))
    assert ours is not None
    assert ours.difference == pytest.approx(float(line["difference"]), abs=1e-3)
    assert compare_arms(folder, arms["base-s1"], arms["gate"])[0].comparison is not None


def test_other_tools_get_checkpoints_and_arms(run: Path) -> None:
    results = Results(Store.read(run))
    assert {row.model for row in results.rows} == {e["label"] for e in entries()}
    assert next(row.facts["model.arm"] for row in results.rows) == "base"
    assert [row.title for row in results.arms] == ["base / 8k", "gate / 8k", "base / YaRN", "gate / YaRN"]
    row = document(run)["rows"][0]["RULER 2/13 4K"]
    score = results.arms[0].scores[0]
    assert (score.value, score.spread) == (pytest.approx(row["value"]), pytest.approx(row["spread"]))
    assert results.arms[0].facts["model.checkpoints"] == "base-s1, base-s2, base-s3"


def test_the_report_shows_checkpoints_samples(run: Path, tmp_path: Path) -> None:
    page = write_report(run, tmp_path / "report.html").read_text()
    assert "Comparisons are about these checkpoints" in page
    assert '<td class="text">gate-s3</td>' in page, "facts are of checkpoints"
    assert table5(Store.read(run)).rows[0][0].text == "base"
    single = write_report(run, tmp_path / "two.html", baseline="base-s1", candidate="gate-s1").read_text()
    assert "between gate-s1 and base-s1" in single or "with base-s1" in single
    recipe = write_report(run, tmp_path / "recipe.html", infer="recipe").read_text()
    assert "with checkpoints as the unit" in recipe
    assert "Comparisons are about the recipes" in recipe

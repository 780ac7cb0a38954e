"""`dtype:` of one benchmark: every model answers it in that dtype, in an engine of its own where it is another one.

The engine of these tests answers by its dtype (`tests.support.fake_engine`): a wrong engine would give other answers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from click.testing import CliRunner

from harness.cluster.connection import Cluster
from harness.commands.main import cli
from harness.config import Config, ContextSetting, Model, from_dict, load, to_dict
from harness.config.cluster import ClusterOptions
from harness.cost.devices import GIB, Devices
from harness.exchange import export_to
from harness.exchange.results import Results
from harness.formats.documents import Run
from harness.report.facts import facts_of
from harness.run import runner
from harness.run.costs import Costs
from harness.run.costs_text import memory_text
from harness.run.engines import deciding
from harness.run.pacing import Pace
from harness.run.plan import Plan, build
from harness.run.plan_cluster import render_cluster
from harness.run.plan_text import render
from harness.run.progress import Progress
from harness.run.session import Tally
from harness.store import Store, merge
from harness.store.rounds import Rounds
from harness.tables import table5
from harness.tables.compare import compare
from harness.tables.definitions import definition_lines
from harness.tables.dtypes import in_16_bits
from harness.types import Cell, GatedevalError
from tests.support import ROOT
from tests.support.cluster_runs import ENGINE
from tests.support.fake_engine import Cut, CutEngine, InlineProducer
from tests.support.sample_runs import sample
from tests.support.thread_backend import ThreadBackend

RULER = {"ruler": ["fwe"], "lengths": [512, 1024], "samples": 3}
OTHER = {"ruler": ["niah_single_1"], "lengths": [512], "samples": 3}
CHOICE = {"lm_eval": "demo_choice", "shots": 0, "samples": 3}
ROOMY = Devices(kind="cpu", memory=256.0 * GIB, cores=2)


class Noted(CutEngine):
    """Notes which engines start, and says in which dtype it computes, as vLLM's does."""

    log: ClassVar[list[tuple[str, str]]] = []
    alive: ClassVar[set[str]] = set()
    together: ClassVar[int] = 0
    refused: ClassVar[str] = ""

    def __init__(self, model: Model, contexts: Sequence[ContextSetting], options: Any) -> None:
        super().__init__(model, contexts, options)
        dtype, self.label = self.model[2], model.label
        if dtype == self.refused:
            from harness.engine.requests import EngineError

            raise EngineError(f"{dtype} is not supported on this device")
        Noted.log.append((model.label, dtype))
        Noted.alive.add(model.label)
        Noted.together = max(Noted.together, len(Noted.alive))
        self.facts |= {"dtype": f"torch.{dtype}", "device": "cpu", "arithmetic": {"device": "cpu", "dtype": dtype}}

    def close(self) -> None:
        Noted.alive.discard(self.label)


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "Prefetcher", InlineProducer)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    Noted.log, Noted.alive, Noted.together, Noted.refused, CutEngine.after = [], set(), 0, "", None


def config(tiny: Path, *benchmarks: dict[str, Any], dtype: str = "bfloat16", **more: Any) -> Config:
    return from_dict(
        {
            "name": "dtypes",
            "models": [{"label": label, "path": str(tiny / label)} for label in ("baseline", "headwise")],
            "contexts": [{"label": "native", "max_length": 1024}, {"label": "raised", "rope_theta": 5e5}],
            "benchmarks": list(benchmarks),
            "data": str(ROOT / "tasks/demo/data"),
            "engine": {"dtype": dtype},
            **more,
        }
    )


def run(made: Config | Plan, path: Path, **more: Any) -> Tally:
    plan = made if isinstance(made, Plan) else build(made)
    plan.check()
    state, tally = runner.run(plan, path, progress=Progress(plan, quiet=True), engine_factory=Noted, **more)
    assert state == "complete"
    return tally


def samples_of(path: Path, *benchmarks: str) -> dict[str, tuple[Any, ...]]:
    """Cell and sample -> hash, answer and scores, of some benchmarks or tasks."""
    store = Store.read(path)
    return {
        f"{cell.key} {s.id}": (s.hash, s.response, s.scores, s.extra["prompt_hash"])
        for cell in store.cells
        if cell.benchmark in benchmarks or cell.task in benchmarks
        for s in store.samples(cell)
    }


# ------------------------------------------------------------------------------------------------ config


def test_every_kind_of_entry_takes_a_dtype_and_the_resolved_config_keeps_it(tiny: Path) -> None:
    entries = [{**RULER, "dtype": "float32"}, {"mmlu": {"dtype": "float16"}}, {"gsm8k": {}, "dtype": "auto"}, CHOICE]
    made = config(tiny, *entries)
    assert [b.dtype for b in made.benchmarks] == ["float32", "float16", "auto", None]
    plain = to_dict(made)
    assert from_dict(plain) == made
    assert [e.get("dtype") for e in plain["benchmarks"]] == ["float32", None, None, None]
    assert [plain["benchmarks"][i][k].get("dtype") for i, k in ((1, "mmlu"), (2, "gsm8k"))] == ["float16", "auto"]
    assert "dtype" not in plain["benchmarks"][3], "an entry without the key is written as before there was one"


def test_it_can_be_set_and_is_refused_by_line_or_option(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    text = "name: n\nmodels: [{label: m, path: org/m}]\nbenchmarks:\n  - {ruler: all, lengths: [4K]}\n  - {mmlu: all}\n"
    file.write_text(text)
    made = load(file, ["benchmarks.0.dtype=float32", "benchmarks.mmlu.dtype=bfloat16"])
    assert [b.dtype for b in made.benchmarks] == ["float32", "bfloat16"]
    with pytest.raises(GatedevalError, match=r"option benchmarks\.1\.dtype.*mmlu.*'float32'"):
        load(file, ["benchmarks.1.dtype=float64"])
    file.write_text(text.replace("{mmlu: all}", "{mmlu: all, dtype: float64}"))
    done = CliRunner().invoke(cli, ["plan", str(file)])
    assert done.exit_code == 2
    assert f"{file}:5: benchmarks 'mmlu', dtype: " in done.output
    assert "'float32'" in done.output
    assert len(done.output.strip().splitlines()) == 1
    file.write_text(text)
    with pytest.raises(GatedevalError, match=r"is asked for twice.*keep one \(for both dtypes: name each model twice"):
        load(file, ["benchmarks=[mmlu, {mmlu: {dtype: auto}}]"])


# ------------------------------------------------------------------------------------------------ plan


def test_a_plan_has_an_engine_for_each_model_and_dtype(tiny: Path) -> None:
    two = [{**OTHER, "dtype": "float32"}, {**CHOICE, "dtype": "float32", "contexts": ["native"]}]
    plan = build(config(tiny, RULER, *two))
    assert list(plan.engines) == ["baseline", "baseline in float32", "headwise", "headwise in float32"]
    assert [p.dtype for p in plan.engines.values()] == ["bfloat16", "float32"] * 2
    for cell in plan.cells:
        other = cell.task != "fwe"
        assert plan.engine(cell) == cell.model + " in float32" * other
        assert plan.dtype(cell) == ("float32" if other else "bfloat16")
    assert len(plan.of("baseline in float32", "native")) == 2
    assert [c.task for c in plan.of("baseline in float32", "raised")] == ["niah_single_1"]
    text = render(plan)
    assert "baseline in float32: an engine for ruler, demo_choice, beside baseline's own in bfloat16" in text
    rows = [line.split("  ")[0] for line in text.splitlines()]
    assert rows.count("headwise in float32") == 3
    weights = {label: memory.weights for (label, _), memory in plan.memory.items()}
    assert weights["baseline in float32"] == 2 * weights["baseline"]
    assert sum(line.startswith("baseline in float32 ") for line in memory_text(Costs(plan))) == 2
    assert "headwise in float32" in render_cluster(Costs(plan), ClusterOptions(engines=4))


@pytest.mark.parametrize(
    ("own", "asked", "same"),
    [("float32", "float32", True), ("auto", "float32", True), ("float32", "auto", True), ("auto", "auto", True),
     ("auto", "bfloat16", False), ("bfloat16", "auto", False), ("bfloat16", "float32", False)],
)  # fmt: skip
def test_the_same_dtype_is_the_same_engine_and_the_same_hash(tiny: Path, own: str, asked: str, same: bool) -> None:
    """The tiny checkpoints are stored in float32, so `auto` is float32."""
    plan = build(config(tiny, {**RULER, "dtype": asked}, dtype=own))
    assert {plan.engine(c) == c.model for c in plan.cells} == {same}
    assert {plan.dtype(c) for c in plan.cells} == {own if same else asked}
    assert bool(plan.in_dtype) is not same


def test_a_benchmarks_dtype_goes_before_the_models_and_that_before_the_engines(tiny: Path) -> None:
    models = [{"label": "baseline", "path": str(tiny / "baseline"), "dtype": "float16"}]
    plan = build(config(tiny, OTHER, {**RULER, "dtype": "float32"}, models=models))
    assert {c.task: plan.dtype(c) for c in plan.cells} == {"niah_single_1": "float16", "fwe": "float32"}


def test_a_label_that_an_engine_has_is_refused(tiny: Path) -> None:
    models = [{"label": name, "path": str(tiny / "baseline")} for name in ("a", "a in float32")]
    plan = build(config(tiny, RULER, {**OTHER, "dtype": "float32"}, models=models))
    assert plan.refusals[0] == (
        "model 'a in float32' has the name of the engine that answers ruler of model 'a'; give it another label"
    )


def test_what_does_not_fit_is_refused_for_the_dtype_that_does_not(tiny: Path) -> None:
    weights = build(config(tiny, RULER)).memory["baseline", "native"].weights
    devices = Devices(kind="gpu", memory=1.6 * weights / 0.92, count=1, name="GPU")
    both = build(config(tiny, RULER, {**OTHER, "dtype": "float32"}), devices=devices)
    assert any("model 'baseline in float32': its weights take" in r for r in both.refusals)
    assert any("choose a dtype of fewer bytes (the benchmark's dtype, engine.quantization)" in r for r in both.refusals)
    assert not any("model 'baseline':" in r for r in both.refusals)
    # a dtype that nothing runs in needs no room
    only = build(config(tiny, {**RULER, "dtype": "bfloat16"}, dtype="float32"), devices=devices)
    assert not any("its weights take" in r for r in only.refusals)


# ------------------------------------------------------------------------------------------------ run


@pytest.fixture(scope="module")
def finished(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """RULER and an lm-eval task in two dtypes each: `mixed`, and the two runs with `engine.dtype`: `16`, `32`."""
    root = tmp_path_factory.mktemp("dtypes")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "Prefetcher", InlineProducer)
        patch.setattr(os, "fsync", lambda descriptor: None)
        for name, dtype in (("16", "bfloat16"), ("32", "float32")):
            run(config(tiny, RULER, OTHER, CHOICE, dtype=dtype), root / name)
        Noted.log = []
        run(config(tiny, RULER, *({**e, "dtype": "float32"} for e in (OTHER, CHOICE))), root / "mixed")
        (root / "log").write_text(json.dumps(Noted.log))
    return root


def test_samples_have_the_hashes_and_answers_of_runs_in_one_dtype(finished: Path) -> None:
    in_16, in_32 = samples_of(finished / "mixed", "fwe"), samples_of(finished / "mixed", "niah_single_1", "demo_choice")
    assert (len(in_16), len(in_32)) == (24, 24)
    assert in_16 == samples_of(finished / "16", "fwe")
    assert in_32 == samples_of(finished / "32", "niah_single_1", "demo_choice")
    assert in_32.keys() == samples_of(finished / "16", "niah_single_1", "demo_choice").keys()
    others = samples_of(finished / "16", "niah_single_1", "demo_choice")
    assert all(in_32[key][0] != others[key][0] and in_32[key][3] == others[key][3] for key in in_32)


def test_each_engine_starts_once_one_after_the_other(finished: Path) -> None:
    assert json.loads((finished / "log").read_text()) == [
        ["baseline", "bfloat16"],
        ["baseline in float32", "float32"],
        ["headwise", "bfloat16"],
        ["headwise in float32", "float32"],
    ]


def test_the_manifest_says_what_each_engine_reported(finished: Path) -> None:
    manifest = json.loads((finished / "mixed/run.json").read_text())
    Run.model_validate(manifest)
    for label in ("baseline", "headwise"):
        entry = manifest["models"][label]
        assert entry["engine"]["dtype"] == "torch.bfloat16"
        assert {dtype: e["dtype"] for dtype, e in entry["other_engines"].items()} == {"float32": "torch.float32"}
        assert entry["engine"]["prompt_tokens"] > entry["other_engines"]["float32"]["prompt_tokens"] > 0
    assert list(manifest["models"]) == ["baseline", "headwise"]
    assert set(manifest["cost"]["models"]) == {n + e for n in ("baseline", "headwise") for e in ("", " in float32")}
    keys = {name: entry["key"]["dtype"] for name, entry in manifest["cost"]["models"].items()}
    assert keys["baseline in float32"] == "float32"


def test_a_row_per_model_and_the_caption_says_what_ran_in_which_dtype(finished: Path) -> None:
    table = table5(Store.read(finished / "mixed"))
    assert [str(row[0].text) for row in table.rows] == ["baseline", "headwise"] * 2
    parts = "RULER (niah_single_1) at 512 and demo_choice in float32"
    [line] = [line for line in table.caption if line.startswith("Model baseline: ")]
    assert line == f"Model baseline: no gate; 1,312,128 parameters; bfloat16; {parts}."
    assert any("24 of 48 answers were computed under other arithmetic than the rest: dtype" in c for c in table.caption)
    assert any(c.startswith("Hardware: CPU") for c in table.caption)
    alone = table5(Store.read(finished / "32"))
    assert "Model baseline: no gate; 1,312,128 parameters; float32." in alone.caption


def test_report_and_other_tools_get_the_dtypes_of_a_row(finished: Path) -> None:
    store = Store.read(finished / "mixed")
    row = Results(store).rows[0]
    assert row.facts["model.ran_in"] == "bfloat16; RULER (niah_single_1) at 512 and demo_choice in float32"
    assert facts_of(store).models[0].dtype == row.facts["model.ran_in"]
    assert "model.ran_in" not in Results(Store.read(finished / "32")).rows[0].facts


@pytest.mark.slow
def test_a_log_of_inspect_has_the_dtype_of_its_own_answers(finished: Path, tmp_path: Path) -> None:
    log = pytest.importorskip("inspect_ai.log")
    specs = [log.read_eval_log(file).eval for file in export_to(finished / "mixed", "inspect", str(tmp_path / "logs"))]
    assert {spec.task: spec.model_args["model.ran_in"] for spec in specs} == {
        "ruler_512": "bfloat16, float32",
        "ruler_1024": "bfloat16",
        "demo_choice": "float32",
    }


def test_a_table_of_probes_names_the_models_own_dtype(finished: Path) -> None:
    lines = definition_lines(Store.read(finished / "mixed"), ["baseline"], [], probes=True)
    assert lines[0].endswith("parameters; bfloat16.")


def test_the_same_command_asks_nothing_and_starts_nothing(finished: Path, tiny: Path) -> None:
    made = config(tiny, RULER, *({**e, "dtype": "float32"} for e in (OTHER, CHOICE)))
    before = samples_of(finished / "mixed", "fwe", "niah_single_1", "demo_choice")
    engines = json.loads((finished / "mixed/run.json").read_text())["models"]["baseline"]
    tally = run(made, finished / "mixed")
    assert (tally.asked, tally.reused, Noted.log) == (0, 48, [])
    assert samples_of(finished / "mixed", "fwe", "niah_single_1", "demo_choice") == before
    assert json.loads((finished / "mixed/run.json").read_text())["models"]["baseline"] == engines


def test_the_same_dtype_written_in_an_entry_finds_an_older_runs_samples(tiny: Path, tmp_path: Path) -> None:
    run(config(tiny, RULER, CHOICE, dtype="auto"), tmp_path / "run")
    before, Noted.log = samples_of(tmp_path / "run", "fwe", "demo_choice"), []
    tally = run(config(tiny, RULER, {**CHOICE, "dtype": "float32"}, dtype="auto"), tmp_path / "run")
    assert (tally.asked, tally.reused, Noted.log) == (0, len(before), [])
    assert samples_of(tmp_path / "run", "fwe", "demo_choice") == before


def test_a_dtype_that_is_added_asks_that_benchmark_alone_and_one_engine_serves_two_spellings(
    tiny: Path, tmp_path: Path
) -> None:
    run(config(tiny, RULER, OTHER, CHOICE), tmp_path / "run")
    Noted.log = []
    made = config(tiny, RULER, {**OTHER, "dtype": "auto"}, {**CHOICE, "dtype": "float32"})
    tally = run(made, tmp_path / "run")
    assert (tally.asked, tally.reused) == (24, 24)
    assert Noted.log == [("baseline in float32", "float32"), ("headwise in float32", "float32")]
    # `auto` and `float32` are one dtype of these checkpoints: the answers are those of a run with either
    run(config(tiny, OTHER, CHOICE, dtype="float32"), tmp_path / "32")
    assert samples_of(tmp_path / "run", "demo_choice") == samples_of(tmp_path / "32", "demo_choice")
    run(config(tiny, OTHER, dtype="auto"), tmp_path / "auto")
    assert samples_of(tmp_path / "run", "niah_single_1") == samples_of(tmp_path / "auto", "niah_single_1")
    # and back: what the first session answered is found
    assert run(config(tiny, RULER, OTHER, CHOICE), tmp_path / "run").asked == 0
    text = "\n".join(definition_lines(Store.read(tmp_path / "run"), ["baseline"], []))
    assert "bfloat16." in text
    assert "float32" not in text, "answers that do not count are not described"


def test_where_every_benchmark_has_another_dtype_the_models_own_never_starts(tiny: Path, tmp_path: Path) -> None:
    run(config(tiny, {**RULER, "dtype": "float32"}), tmp_path / "run")
    assert Noted.log == [("baseline in float32", "float32"), ("headwise in float32", "float32")]
    lines = definition_lines(Store.read(tmp_path / "run"), ["baseline"], [])
    assert lines[0].endswith("parameters; float32.")
    assert lines[1].startswith("Hardware: CPU")


def test_a_dtype_that_the_device_has_not_fails_its_cells_alone(tiny: Path, tmp_path: Path) -> None:
    Noted.refused = "float16"
    plan = build(config(tiny, RULER, {**CHOICE, "dtype": "float16"}))
    state, tally = runner.run(plan, tmp_path / "r", progress=Progress(plan, quiet=True), engine_factory=Noted)
    assert state == "incomplete"
    assert {key.split("__")[2] for key in tally.failed} == {"demo%5fchoice"}
    store = Store.read(tmp_path / "r")
    assert set(store.failures.values()) == {"float16 is not supported on this device"}
    assert len(samples_of(tmp_path / "r", "fwe")) == 24


@pytest.mark.slow
def test_killed_anywhere_it_goes_on(finished: Path, tiny: Path, tmp_path: Path) -> None:
    made = config(tiny, RULER, *({**e, "dtype": "float32"} for e in (OTHER, CHOICE)))
    whole = samples_of(finished / "mixed", "fwe", "niah_single_1", "demo_choice")
    for after in (0, 11, 12, 13, 24, 40):
        CutEngine.after = after
        with pytest.raises(Cut):
            run(made, tmp_path / str(after))
        CutEngine.after = None
        assert run(made, tmp_path / str(after)).asked == 48 - after
        assert samples_of(tmp_path / str(after), "fwe", "niah_single_1", "demo_choice") == whole


def test_runs_in_one_dtype_merge_and_are_compared_with_the_warnings(finished: Path, tiny: Path, tmp_path: Path) -> None:
    run(config(tiny, OTHER, dtype="float32"), tmp_path / "needles")
    merge(finished / "mixed", tmp_path / "needles", tmp_path / "merged")
    merged = samples_of(tmp_path / "merged", "niah_single_1")
    assert merged == samples_of(finished / "mixed", "niah_single_1")
    store = Store.read(finished / "mixed")
    assert in_16_bits(store)
    assert "Answers in 16-bit precision can change" in compare(store.path, "baseline", "headwise")
    assert not in_16_bits(Store.read(finished / "32"))
    with pytest.raises(GatedevalError, match="different answers"):  # one dtype against the other
        merge(finished / "16", finished / "32", tmp_path / "both")


# ------------------------------------------------------------------------------------------------ rounds, cluster


def rule(**more: Any) -> dict[str, Any]:
    return {
        "ruler": ["niah_single_1", "niah_single_2"],
        "lengths": [512],
        "answer_tokens": 24,
        "profile": "fair",
        **more,
    }


@pytest.mark.slow
def test_precisions_of_both_engines_are_reached(tiny: Path, tmp_path: Path) -> None:
    samples = {"precision": 9.0, "at_least": 10, "at_most": 60}
    entries = [rule(samples=samples), {"lm_eval": "demo_choice", "shots": 0, "samples": samples, "dtype": "float32"}]
    contexts = [{"label": "native", "max_length": 1024}]
    run(config(tiny, *entries, contexts=contexts), tmp_path / "mixed")
    for benchmark, entry, dtype in (("ruler", entries[0], "bfloat16"), ("demo_choice", entries[1], "float32")):
        alone = {k: v for k, v in entry.items() if k != "dtype"}
        run(config(tiny, alone, dtype=dtype, contexts=contexts), tmp_path / dtype)
        assert samples_of(tmp_path / "mixed", benchmark) == samples_of(tmp_path / dtype, benchmark)
    found = [Rounds.from_dict(e) for e in Store.read(tmp_path / "mixed").manifest["rounds"]]
    assert all(entry.ended for entry in found)
    assert max(len(entry.samples) for entry in found) > 1, "more than the first round"


DECIDE: dict[str, Any] = {
    "decide": {"candidate": "headwise", "baseline": "baseline", "margin": 8.0},
    "contexts": [{"label": "native", "max_length": 1024}],
}


def test_which_engines_a_decision_is_about(tiny: Path) -> None:
    decided = {**rule(samples={"at_least": 10, "at_most": 60}), "dtype": "float32"}
    one = build(config(tiny, decided, **DECIDE))
    assert deciding(one) == ["baseline in float32", "headwise in float32"]
    both = build(config(tiny, decided, {**CHOICE, "samples": {"at_least": 10}}, **DECIDE), devices=ROOMY)
    assert deciding(both) == ["baseline in float32", "headwise in float32", "baseline", "headwise"]
    assert "decide: the engines of both models run at the same time" in render(both)


@pytest.mark.slow
def test_a_decision_keeps_the_engines_of_its_benchmarks(tiny: Path, tmp_path: Path) -> None:
    decided = rule(samples={"at_least": 10, "at_most": 60})
    plain = {**RULER, "profile": "fair"}
    plan = build(config(tiny, plain, {**decided, "dtype": "float32"}, **DECIDE), devices=ROOMY)
    assert deciding(plan) == ["baseline in float32", "headwise in float32"]
    run(plan, tmp_path / "mixed")
    assert len(Noted.log) == 4, "no engine starts twice"
    assert Noted.together == 2
    assert not Noted.alive
    run(build(config(tiny, decided, dtype="float32", **DECIDE), devices=ROOMY), tmp_path / "32")
    needles = ("niah_single_1", "niah_single_2")
    assert samples_of(tmp_path / "mixed", *needles) == samples_of(tmp_path / "32", *needles)


def test_paces_are_those_of_the_engine() -> None:
    seen = {"context": "c", "benchmark": "b", "task": "t", "length": 0, "samples": 10, "seconds": 20.0}
    cost = {"models": {"m": {"starts": [1.0], "observations": [seen]}, "m in float32": {"starts": [9.0]}}}
    cell = Cell("m", "c", "b", "t")
    assert Pace(cost).sample(cell) == 2.0
    assert Pace(cost, lambda cell: "m in float32").sample(cell) == 0.0
    assert Pace(cost).start("m in float32") == 9.0


def test_on_a_cluster_the_engines_are_answered_at_once(finished: Path, tiny: Path, tmp_path: Path) -> None:
    made = build(config(tiny, RULER, *({**e, "dtype": "float32"} for e in (OTHER, CHOICE))))
    backend = ThreadBackend(3, engine=ENGINE)
    models = [(planned.model, planned.checkpoint) for planned in made.models.values()]
    with Cluster(lambda: backend, models) as cluster:
        state, _ = runner.run(made, tmp_path / "run", progress=Progress(made, quiet=True), cluster=cluster)
    assert state == "complete"
    names = ("fwe", "niah_single_1", "demo_choice")
    assert samples_of(tmp_path / "run", *names) == samples_of(finished / "mixed", *names)
    [session] = Store.read(tmp_path / "run").manifest["sessions"]
    answers = {name: sum(e["answers"] for e in entries) for name, entries in session["engines"].items()}
    assert answers == {"baseline": 12, "baseline in float32": 12, "headwise": 12, "headwise in float32": 12}


# ------------------------------------------------------------------------------------------------ words


@pytest.mark.parametrize(
    ("in_32", "said"),
    [
        ([("mmlu", "anatomy", 0), ("mmlu", "virology", 0)], "MMLU in float32"),
        ([("mmlu", "anatomy", 0)], "MMLU (anatomy) in float32"),
        ([("ruler", "vt", 4096), ("ruler", "fwe", 4096)], "RULER at 4096 in float32"),
        ([("ruler", "vt", 4096), ("ruler", "vt", 8192)], "RULER (vt) at 4096 and 8192 in float32"),
    ],
)
def test_which_part_of_a_benchmark_had_another_dtype(tmp_path: Path, in_32: list[Any], said: str) -> None:
    every = [("mmlu", t, 0) for t in ("anatomy", "virology")] + [("gsm8k", "gsm8k", 0)]
    every += [("ruler", t, n) for t in ("vt", "fwe") for n in (4096, 8192)]
    cells = {Cell("m", "c", *place): 1 for place in every}
    facts = {"m": {"parameters": 5, "engine": {"dtype": "torch.bfloat16"}}}
    known = {name: {"dtype": name} for name in ("bfloat16", "float32")}
    manifest = {"config": {"models": [{"label": "m"}]}, "models": facts, "arithmetic": known}
    with Store.open(tmp_path / "r", manifest, cells=cells) as store:
        for cell in cells:
            key = "float32" if (cell.benchmark, cell.task, cell.length) in in_32 else "bfloat16"
            store.append(cell, replace(sample(0, {"score": 1.0}), arithmetic=key))
    assert definition_lines(Store.read(tmp_path / "r"), ["m"], []) == [f"Model m: 5 parameters; bfloat16; {said}."]

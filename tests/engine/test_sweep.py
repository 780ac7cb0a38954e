"""`gatedeval sweep`: its settings, its refusals, its maps, and one engine for all of it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from harness.figures.sweep import sweep_svg
from harness.models.bpe import save_tokenizer, train_bpe
from harness.report import report
from harness.run import sweep
from harness.run.plan import build as build_plan
from harness.run.runner import run as run_plan
from harness.store import Store
from harness.tables.sweep import axes, panels, render
from harness.text import read_length
from harness.types import Cell, GatedevalError
from tests.checkpoints import families
from tests.support import ROOT
from tests.support.engines import altered
from tests.support.in_process import gatedeval, vllm_in_this_process
from tests.support.sample_runs import sample


def config(tiny: Path, **given: Any) -> Any:
    wanted: dict[str, Any] = {
        "bases": [1e4, 5e4], "factors": [1.0, 2.0], "lengths": [512, 1024], "tasks": ["niah_single_1"],
        "samples": 1, "original": 256,
    }  # fmt: skip
    return sweep.build([str(tiny / "headwise")], **{**wanted, **given})


def test_every_base_has_every_factor(tiny: Path) -> None:
    made = config(tiny, factors=[1.0, 2.0, 4.0])
    assert [(c.rope_theta, c.yarn.factor if c.yarn else 1, c.max_length) for c in made.contexts] == [
        (None, 1, 1024),
        (1e4, 1, 1024), (1e4, 2, 512), (1e4, 4, 1024),
        (5e4, 1, 1024), (5e4, 2, 512), (5e4, 4, 1024),
    ]  # fmt: skip
    assert all(c.yarn is None or c.yarn.original_max_position_embeddings == 256 for c in made.contexts)
    assert [c.label for c in made.contexts][:3] == ["native", "base 1e4", "base 1e4 YaRN 2"]
    assert made.name == "sweep-headwise"


def test_a_length_out_of_reach_is_no_cell(tiny: Path) -> None:
    cells = build_plan(config(tiny)).cells
    assert Cell("headwise", "base 1e4 YaRN 2", "ruler", "niah_single_1", 512) in cells
    assert Cell("headwise", "base 1e4 YaRN 2", "ruler", "niah_single_1", 1024) not in cells
    assert Cell("headwise", "base 1e4", "ruler", "niah_single_1", 1024) in cells


def test_native_keeps_its_own_limit(tiny: Path) -> None:
    """2,048 positions: within them no more than the longest length is asked of the engine, beyond them they stand."""
    assert config(tiny).contexts[0].max_length == 1024
    assert config(tiny, lengths=[512, 8192]).contexts[0].max_length is None
    cells = build_plan(config(tiny, lengths=[512, 8192])).cells
    assert {c.length for c in cells if c.context == "native"} == {512}
    assert {c.length for c in cells if c.context == "base 1e4"} == {512, 8192}


def test_without_bases_the_checkpoint_s_own_is_stretched(tiny: Path) -> None:
    made = config(tiny, bases=[None], factors=[1.0, 2.0, 4.0])
    assert [(c.label, c.rope_theta) for c in made.contexts] == [
        ("native", None), ("own base YaRN 2", None), ("own base YaRN 4", None),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"original": None}, "--yarn-factor needs --original"),
        ({"bases": [None], "factors": [1.0]}, "nothing to sweep"),
        ({"factors": [2.0, 3.0], "lengths": [512, 1024]}, "no setting reaches 1024 .*= 768; add a --yarn-factor of 4"),
        ({"tasks": ["niah_singel_1"]}, "did you mean 'niah_single_1'"),
        ({"overrides": ["engine.enforce_eagr=true"]}, "enforce_eager"),
    ],
)  # fmt: skip
def test_refusals(tiny: Path, given: dict[str, Any], message: str) -> None:
    with pytest.raises(GatedevalError, match=message):
        config(tiny, **given)


def test_models_by_path_and_by_label(tiny: Path) -> None:
    assert sweep.models(["a/b", "gate=c/d"], "auto") == [
        {"label": "b", "path": "a/b", "dtype": "auto"}, {"label": "gate", "path": "c/d", "dtype": "auto"},
    ]  # fmt: skip
    with pytest.raises(GatedevalError, match="two models are called 'b'"):
        sweep.models(["a/b", "c/b"], "auto")
    with pytest.raises(GatedevalError, match="no directory"):
        config(tiny / "nowhere")


@pytest.mark.parametrize(
    ("read", "text", "values"),
    [
        (sweep.a_base, "1e6, 50000,1e4", [1e4, 5e4, 1e6]),
        (read_length, "8K,1024", [1024, 8192]),
        (sweep.a_factor, "4,1,1.5", [1.0, 1.5, 4.0]),
    ],
)
def test_lists(read: Any, text: str, values: list[float]) -> None:
    assert sweep.parse_list(text, "--x", read) == values


@pytest.mark.parametrize(
    ("read", "text"),
    [(sweep.a_base, "1e4,...,1e7"), (sweep.a_base, "1"), (sweep.a_base, "inf"), (sweep.a_factor, "0.5"),
     (sweep.a_factor, "nan"), (read_length, "4.5K"), (read_length, "0"), (read_length, "-8"),
     (sweep.a_base, "1e4,,1e5"), (sweep.a_base, "1e4,10000")],
)  # fmt: skip
def test_lists_that_are_refused(read: Any, text: str) -> None:
    with pytest.raises(GatedevalError, match="--x"):
        sweep.parse_list(text, "--x", read)


@pytest.mark.parametrize(
    ("value", "text"),
    [(1e4, "1e4"), (5e4, "5e4"), (1e7, "1e7"), (123456.0, "123456"), (1.5, "1.5"), (8.0, "8"), (500.0, "500"),
     (1.25e6, "1250000"), (10000.5, "10000.5")],
)  # fmt: skip
def test_numbers_are_named_exactly(value: float, text: str) -> None:
    assert sweep.number_text(value) == text
    assert float(text) == value


# --- the maps --------------------------------------------------------------------------------------------------------


def made_up(tiny: Path, path: Path, skip: str = "", native: bool = True) -> Store:
    """A finished sweep with known scores: right answers out of ten by base, factor and length."""
    from harness.config import to_dict

    made = config(tiny, factors=[1.0, 2.0, 4.0], samples=10, native=native)
    plan = build_plan(made)
    with Store.open(path, {"config": to_dict(made)}, cells=dict(plan.cells)) as store:
        for cell in plan.cells:
            right = {"native": 1, "base 1e4": 2, "base 5e4": 3}.get(cell.context, 5 + ("5e4" in cell.context))
            for i in range(0 if skip and skip in cell.key else 10):
                store.append(cell, sample(i, {"score": float(i < right - cell.length // 1024)}))
        store.finish()
    return Store.read(path)


def test_panels(tiny: Path, tmp_path: Path) -> None:
    short, long = panels(made_up(tiny, tmp_path / "run"))
    assert (short.length, long.length, short.model) == (512, 1024, "headwise")
    assert (short.bases, short.factors) == (["1e4", "5e4"], ["1", "2", "4"])
    assert short.values.tolist() == [[20, 50, 50], [30, 60, 60]]
    assert (short.native, long.native) == (10, 0)
    assert long.values[:, [0, 2]].tolist() == [[10, 40], [20, 50]]
    assert [math.isnan(v) for v in long.values[:, 1]] == [True, True]  # YaRN 2 x 256 does not reach 1,024
    assert 25 < short.half_width < 35  # 5 of 10: Wilson's interval is 24 to 76


def test_text(tiny: Path, tmp_path: Path) -> None:
    text = render(made_up(tiny, tmp_path / "run"))
    assert "headwise, 1K (native: 0.0)" in text
    rows = [line.split() for line in text.splitlines()]
    assert ["5e4", "30.0", "60.0*", "60.0*"] in rows
    assert ["5e4", "20.0", "\u2013", "50.0*"] in rows
    assert "does not reach the length" in text
    assert "10 samples a field" in text


def test_what_is_owed_is_no_dash_and_no_zero(tiny: Path, tmp_path: Path) -> None:
    text = render(made_up(tiny, tmp_path / "run", skip="5e4 YaRN 4".replace(" ", "%20")))
    assert ["5e4", "30.0", "60.0*", "?"] in [line.split() for line in text.splitlines()]
    assert "?: not finished or failed" in text


def test_svg(tiny: Path, tmp_path: Path) -> None:
    store = made_up(tiny, tmp_path / "run")
    image = sweep_svg(store)
    root = ElementTree.fromstring(image)
    words = ["".join(t.itertext()) for t in root.iter("{http://www.w3.org/2000/svg}text")]
    assert [w for w in words if w.endswith("*")] == ["60.0*", "60.0*", "50.0*"]
    assert words.count("\u2013") == 2
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    assert all(0 <= float(t.attrib["x"]) <= width for t in root.iter() if "x" in t.attrib)
    assert all(0 <= float(t.attrib["y"]) <= height for t in root.iter() if "y" in t.attrib)
    assert image == sweep_svg(Store.read(tmp_path / "run"))
    page = report(store)
    assert 'id="sweep"' in page
    assert root.attrib["aria-label"] in page, "the report shows the same map"
    assert all(f">{word}</text>" in page for word in ("60.0*", "\u2013", "YaRN factor"))


@pytest.mark.parametrize(
    "contexts",
    [
        [{"label": "native"}],
        [{"label": "native"}, {"label": "a", "rope_theta": 1e6}, {"label": "b", "rope_theta": 1e6, "yarn": {
            "factor": 4, "original_max_position_embeddings": 32768}}],  # a Table 5 run
        [{"label": "a", "rope_theta": 1e4}, {"label": "b", "rope_theta": 1e5}, {"label": "c", "linear": 4}],
        [{"label": "a", "rope_theta": 1e4}, {"label": "b", "rope_theta": 1e5}, {"label": "c", "rope_theta": 1e5,
         "yarn": {"factor": 4, "original_max_position_embeddings": 32768}}],  # a hole in the grid
    ],
)  # fmt: skip
def test_a_run_that_is_no_sweep(tmp_path: Path, contexts: list[dict[str, Any]]) -> None:
    with Store.open(tmp_path / "run", {"config": {"contexts": contexts}}, cells={}) as store:
        store.finish()
        assert not axes(store).labels
        assert sweep_svg(store) == ""
        assert "is no sweep" in render(store)


# --- with an engine --------------------------------------------------------------------------------------------------


@pytest.mark.engine
def test_one_engine_for_all_settings(tiny: Path, tmp_path: Path) -> None:
    from harness.engine.engine import Engine

    starts = Engine.starts
    made = config(tiny, lengths=[512], samples=2, dtype="float32", bases=[1e2, 1e4], factors=[1.0, 4.0],
                  overrides=["engine.enforce_eager=true"])  # fmt: skip
    with vllm_in_this_process():
        state, tally = run_plan(build_plan(made), tmp_path / "run")
    assert (state, tally.asked, Engine.starts - starts) == ("complete", 10, 1)
    store = Store.read(tmp_path / "run")
    said = {c.context: [s.response for s in store.samples(c)] for c in store.cells}
    assert said["native"] == said["base 1e4"]  # the checkpoint's own base under another name
    others = [said[c] for c in ("base 1e4", "base 1e4 YaRN 4", "base 100", "base 100 YaRN 4")]
    assert all(a != b for i, a in enumerate(others) for b in others[i + 1 :])  # each setting took effect
    [panel] = panels(store)
    assert panel.planned.all()
    # the same again starts no engine; with one base more, only what is new would be asked
    assert run_plan(build_plan(made), tmp_path / "run")[1].reused == 10
    assert Engine.starts - starts == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rope-theta", "1e4,x", "--lengths", "512"], "--rope-theta '1e4,x': 'x' should be a RoPE base"),
        (["--yarn-factor", "2", "--lengths", "512"], "--yarn-factor needs --original N"),
        (["--rope-theta", "1e5", "--lengths", "512", "--task", "qa_1", "--data", "."], "squad"),
    ],
)
def test_bad_input_is_one_message_and_exit_code_2(tiny: Path, arguments: list[str], message: str) -> None:
    result = gatedeval("sweep", tiny / "baseline", *arguments, cwd=tiny)
    assert result.returncode == 2, result.stderr
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def of_family(family: str, directory: Path) -> Path:
    """A random checkpoint of `family` for 1,024 tokens, with a tokenizer of 512 entries for RULER's prompts."""
    words = (ROOT / "tasks/ruler/protocol.json").read_text(encoding="utf-8").split("\\n")
    families.write(family, directory / "own", lambda d: save_tokenizer(train_bpe(words, 512), d))
    return altered(directory / "own", directory / family, max_position_embeddings=1024)


OF_FAMILIES = ["--rope-theta", "1e4,1e6", "--yarn-factor", "1,2", "--original", "1024", "--lengths", "1024,2048"]


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.parametrize(("family", "starts"), [("qwen3_next", 1), ("afmoe", 1), ("laguna", 5)])
def test_gates_that_vllm_computes_itself_are_swept(tmp_path: Path, family: str, starts: int) -> None:
    """Every setting takes effect; where vLLM's table cannot be replaced, each setting has an engine of its own."""
    from harness.engine.engine import Engine

    before = Engine.starts
    model = of_family(family, tmp_path)
    out = tmp_path / "run"
    arguments = [model, *OF_FAMILIES, "--samples", "2", "-o", out]
    done = gatedeval("sweep", *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert Engine.starts - before == starts
    store = Store.read(out)
    assert {c.context: c.length for c in store.cells if c.length == 1024}.keys() == {
        "native", "base 1e4", "base 1e4 YaRN 2", "base 1e6", "base 1e6 YaRN 2"
    }  # fmt: skip
    said = {(c.context, c.length): [s.response for s in store.samples(c)] for c in store.cells}
    at = {context: responses for (context, length), responses in said.items() if length == 1024}
    own = "base 1e4" if family != "laguna" else None  # Laguna's own base is 5e5
    if own is not None:
        assert at["native"] == at[own]
    changed = [at[c] for c in ("base 1e4", "base 1e4 YaRN 2", "base 1e6", "base 1e6 YaRN 2")]
    assert all(a != b for i, a in enumerate(changed) for b in changed[i + 1 :])
    assert f"{family}, 2K" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "words"),
    [
        ("step3p5", "vLLM's class for 'step3p5' reads rope keys of its own"),
        ("llama", "elementwise_attn_output_gate is set"),
    ],
)
def test_a_family_that_cannot_be_swept_is_refused_in_one_line(tmp_path: Path, family: str, words: str) -> None:
    model = of_family(family, tmp_path)
    if family == "llama":
        model = altered(model, tmp_path / "flagged", elementwise_attn_output_gate=True)
    done = gatedeval("sweep", model, *OF_FAMILIES, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert words in done.stderr.splitlines()[-1]
    assert len(done.stderr.splitlines()) == 1

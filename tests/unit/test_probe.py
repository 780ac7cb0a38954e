"""The probe's pure parts: which rows, estimates from sampled rows, histograms, storage, config, table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.config import load
from harness.config.probing import ProbeOptions
from harness.probe.histogram import BINS, LOWEST, OCTAVE, share_below
from harness.probe.refusals import why_not
from harness.probe.results import combine
from harness.probe.rows import RowSample, choose_rows
from harness.store.probes import Probes
from harness.types import GatedevalError


def test_all_rows_of_a_short_text_and_two_of_every_stratum_of_a_long_one() -> None:
    short = choose_rows(4096)
    assert short.exact
    assert short.positions.tolist() == list(range(1, 4096))
    assert choose_rows(10, first_query=True).positions[0] == 0
    long = choose_rows(131_072)
    assert not long.exact
    assert long.positions[:64].tolist() == list(range(1, 65))
    assert (np.diff(long.positions) > 0).all()
    assert long.sizes.sum() == 131_071
    assert np.bincount(long.stratum)[1:].tolist() == [2] * 512
    assert RowSample.from_plain(json.loads(json.dumps(long.to_plain()))).positions.tolist() == long.positions.tolist()
    with pytest.raises(ValueError, match="at least 2 tokens"):
        choose_rows(1)


def test_the_interval_of_an_estimate_contains_the_mean_of_all_rows_as_often_as_it_says() -> None:
    """A quantity that falls with the position, with noise: as attention on the first token does."""
    length, trials = 20_000, 300
    generator = np.random.default_rng(0)
    position = np.arange(1, length)
    values = 1 / np.log(position + 2) + 0.1 * generator.standard_normal(length - 1)
    inside = 0
    for seed in range(trials):
        rows = choose_rows(length, seed=seed)
        mean, error = rows.estimate(values[rows.positions - 1])
        inside += abs(mean - values.mean()) <= 1.96 * error
    assert 0.92 <= inside / trials <= 0.98


def test_an_estimate_from_all_rows_is_the_mean_and_has_no_error() -> None:
    values = np.random.default_rng(1).random((99, 2, 3))
    mean, error = choose_rows(100).estimate(values)
    assert mean == pytest.approx(values.mean(axis=0))
    assert (error == 0).all()


def test_the_share_below_a_threshold_in_the_logarithmic_histogram() -> None:
    values = np.abs(np.random.default_rng(2).standard_normal(100_000))
    bins = np.clip(((np.log2(values) - LOWEST) * OCTAVE).astype(int), 0, BINS - 1)
    histogram = np.bincount(bins, minlength=BINS)
    for threshold in (1e-3, 1e-2, 0.5):
        assert share_below(histogram, threshold) == pytest.approx((values < threshold).mean(), abs=1e-3)
    assert share_below(histogram, 1e9) == 1
    assert share_below(histogram, 0) == 0
    assert share_below(np.zeros(BINS), 1) == 0


def _rank(rank: int, first: list[list[list[float]]], losses: list[float]) -> dict[str, Any]:
    values = np.array(first, dtype=np.float32)
    sent = [values.tobytes(), list(values.shape)]
    histogram = np.zeros(BINS)
    histogram[-1] = 4
    small = {"below": [1, 0], "count": 4, "histogram": histogram.tolist()}
    return {
        "rank": rank, "measures": {"first": sent, "entropy": sent, "distance": sent}, "hidden": [[5.0, 1, 2]],
        "final": [3.0, 0, 1], "before": [small], "after": [], "gates": [], "first_gate": None, "maps": [],
        "losses": np.array(losses, dtype=np.float32).tobytes(),
    }  # fmt: skip


def test_heads_of_two_ranks_are_joined_in_the_ranks_order_and_nan_is_refused() -> None:
    from harness.probe.plan import ProbePlan

    plan = ProbePlan((7, 8, 9), choose_rows(3))
    second, first = _rank(1, [[[0.5], [0.7]]], []), _rank(0, [[[0.1], [0.3]]], [1.0, 2.0])
    result = combine(plan, [second, first])
    assert result.first.head == pytest.approx(np.array([[0.2, 0.6]]))
    assert result.sink_rate == 0.5
    assert result.small_before == pytest.approx(np.array([[0.25, 0.0]]))
    assert result.losses.tolist() == [1.0, 2.0]
    assert result.perplexity == pytest.approx(np.exp(1.5))
    assert [(a, b) for a, b, _ in result.perplexity_by_position()] == [(1, 2), (2, 3)]
    assert result.activations.tolist() == [3.0]
    with pytest.raises(ValueError, match="not finite"):
        combine(plan, [_rank(0, [[[float("nan")], [0.3]]], [])])


def _record(**changes: Any) -> dict[str, Any]:
    record = {
        "model": "m", "context": "native", "length": 512, "tokens": 511, "hash": "h", "text": "essays", "gate": "none",
        "first_query": False, "rows": 511, "exact": True, "first_token_attention": 0.3, "sink_rate": 0.5,
        "first_token_attention_error": 0.0, "largest_activation": 1000.0, "gate_mean": None, "gate_low": None,
        "perplexity": 20.0, "small_before": [0.01, 0.0], "small_after": None, "small_scaled": None,
    }  # fmt: skip
    return record | changes


def test_a_torn_line_and_a_line_without_its_arrays_count_as_not_made(tmp_path: Path) -> None:
    store = Probes(tmp_path)
    assert store.records() == []
    store.add(_record(hash="one"), {"first": np.ones(2)})
    store.add(_record(hash="two", length=1024), {"first": np.zeros(2)})
    store.add(_record(hash="three"), {"first": np.full(2, 3.0)})  # the model's weights changed: the last line counts
    with (tmp_path / "probe/probes.jsonl").open("a") as file:
        file.write('{"model": "torn')
    assert [r["hash"] for r in Probes(tmp_path).records()] == ["three", "two"]
    assert Probes(tmp_path).arrays(store.records()[0])["first"].tolist() == [3, 3]
    (tmp_path / "probe/three.npz").unlink()
    assert "three" not in store.hashes()
    assert "one" in store.hashes()
    store.add(_record(hash="four", length=2048), {"first": np.ones(1)})  # the torn line is cut off, not joined
    assert [r["hash"] for r in store.records()] == ["one", "two", "four"]


def test_the_table_shows_the_probes_of_the_present_plan_under_its_labels(tmp_path: Path) -> None:
    """Another text was probed in between, and the model has another label now."""
    store = Probes(tmp_path)
    store.add(_record(hash="first"), {"first": np.ones(1)})
    store.add(_record(hash="other", text="other.txt"), {"first": np.ones(1)})
    store.add(_record(hash="gone", model="removed"), {"first": np.ones(1)})
    plan = [{"model": "renamed", "context": "native", "length": 512, "hash": "first"}]
    assert [(r["model"], r["hash"], r["text"]) for r in store.records(plan)] == [("renamed", "first", "essays")]
    assert store.records([]) == []


def test_a_line_that_is_torn_inside_a_character_and_arrays_without_content_are_no_probes(tmp_path: Path) -> None:
    store = Probes(tmp_path)
    store.add(_record(hash="one"), {"first": np.ones(1)})
    store.add(_record(hash="two", length=9), {"first": np.ones(1)})
    with (tmp_path / "probe/probes.jsonl").open("ab") as file:
        file.write(b'1\n{"model": "\xc3')
    (tmp_path / "probe/two.npz").write_bytes(b"")
    assert [r["hash"] for r in store.records()] == ["one"]


CONFIG = "name: p\nmodels: [{label: a, path: b}]\nprobe: {lengths: [512, 4096]}\n"


def _load(tmp_path: Path, text: str) -> Any:
    (tmp_path / "c.yaml").write_text(text)
    return load(tmp_path / "c.yaml", check_paths=False)


def test_a_config_of_probes_alone_needs_no_benchmarks(tmp_path: Path) -> None:
    from harness.config import from_dict, to_dict

    config = _load(tmp_path, CONFIG)
    assert config.probe == ProbeOptions(lengths=(512, 4096))
    assert config.benchmarks == ()
    assert from_dict(to_dict(config)) == config
    with pytest.raises(GatedevalError, match="benchmarks"):
        _load(tmp_path, CONFIG.partition("probe:")[0])


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("{lengths: [1]}", "at least 2 tokens"),
        ("{lengths: []}", "lengths"),
        ("{lengths: [512, 512]}", "given twice"),
        ("{maps: [[0]]}", "maps"),
        ("{map_length: 4096}", "map_length"),
        ("{texts: essays}", "texts"),
    ],
)
def test_a_wrong_probe_section_is_refused_with_its_line(tmp_path: Path, written: str, words: str) -> None:
    with pytest.raises(GatedevalError, match=words) as caught:
        _load(tmp_path, CONFIG.partition("probe:")[0] + f"probe: {written}\n")
    assert "c.yaml" in str(caught.value)
    assert "line 3" in str(caught.value) or ":3" in str(caught.value)


def test_a_text_file_is_found_beside_the_config_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the current directory first; the path stays as it was written there, because tables show it."""
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs/beside.txt").write_text("a text")
    (tmp_path / "here.txt").write_text("a text")
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path)

    def text(written: str) -> str:
        Path("configs/c.yaml").write_text(
            f"name: p\nmodels: [{{label: a, path: models}}]\nprobe:\n  lengths: [512]\n  text: {written}\n"
        )
        probe = load(Path("configs/c.yaml")).probe
        assert probe is not None
        return probe.text

    assert text("here.txt") == "here.txt"
    assert text("beside.txt") == "configs/beside.txt"
    assert text("ruler:niah_single_2") == "ruler:niah_single_2"
    for written, words in [
        ("gone.txt", "'gone.txt' is no file (looked in the current directory and in configs); give essays, ruler:TASK"),
        ("models", "'models' is a folder; give essays, ruler:TASK"),
        ("esays", "is no file (looked in the current directory and in configs); did you mean 'essays'?"),
    ]:
        with pytest.raises(GatedevalError) as caught:
            text(written)
        assert words in str(caught.value)
        assert str(caught.value).startswith("configs/c.yaml:5: probe.text: ")


def test_a_text_that_is_not_utf_8_is_refused_with_its_place(tmp_path: Path) -> None:
    from harness.data.files import read_text

    (tmp_path / "latin.txt").write_bytes("caf\u00e9 society".encode("latin-1"))
    with pytest.raises(GatedevalError, match=r"latin.txt: byte 4 is not UTF-8 text; save the file as UTF-8"):
        read_text(tmp_path / "latin.txt")


def test_the_table_in_every_format(tmp_path: Path) -> None:
    from harness.export import FORMATS, export_run
    from harness.store import Store

    with Store.open(tmp_path, {"name": "p", "models": {}}, cells={}) as run:
        run.finish()
    gated = {"gate": "headwise", "gate_mean": 0.41, "gate_low": 0.2, "small_after": [0.1, 0.02]}
    store = Probes(tmp_path)
    store.add(_record(), {})
    store.add(
        _record(model="g", hash="g", length=131_072, exact=False, first_token_attention_error=0.01, **gated,
                small_scaled=[0.03, 0.001]),
        {},
    )  # fmt: skip
    for fmt in FORMATS:
        text = export_run(tmp_path, "probe", fmt)
        assert "nan" not in text.lower(), fmt
        assert "headwise" in text
    markdown = export_run(tmp_path, "probe")
    assert "0.300 (±0.0196)" in markdown
    assert "| 128K" in markdown
    rows = json.loads(export_run(tmp_path, "probe", "json"))["cells"]
    assert rows[0]["gate_mean"] is None
    assert rows[1]["small_scaled_1e-2"] == 0.03


def test_essays_are_read_as_ruler_reads_them(tmp_path: Path) -> None:
    """One object, or a line of JSON for each essay; a line without text is refused with its place."""
    from harness.data.folder import DataFolder
    from harness.run.plan import Plan
    from harness.run.probe_plan import _text

    (tmp_path / "essays").mkdir()
    file = tmp_path / "essays/PaulGrahamEssays.json"
    plan = Plan(_load(tmp_path, CONFIG), DataFolder(tmp_path))
    file.write_text('{"text": "One."}\n{"text": "Two."}\n')
    assert _text(plan, "essays") == ("One. Two.", str(file))
    file.write_text('{"text": "One."}\n{"text": null}\n')
    with pytest.raises(GatedevalError, match="line 2"):
        _text(plan, "essays")


@pytest.mark.parametrize(
    ("config", "tensors", "words"),
    [
        ({"model_type": "deepseek_v3", "kv_lora_rank": 512}, (), "latent attention (MLA)"),
        ({"model_type": "gpt_oss"}, ("layers.0.self_attn.sinks",), "learned sink beside its keys (layers.0."),
        ({"model_type": "mimo_v2"}, ("model.layers.0.self_attn.attention_sink_bias",), "learned sink"),
        ({"model_type": "gemma3n_text", "num_kv_shared_layers": 15}, (), "another layer's keys"),
        ({"model_type": "mamba2"}, (), "no attention layers (model type 'mamba2')"),
        ({"model_type": "laguna", "num_attention_heads": 8, "num_attention_heads_per_layer": [8, 4]}, (), "4, 8)"),
        (
            {"model_type": "step3p5", "num_attention_heads": 4, "attention_other_setting": {"num_attention_heads": 6}},
            (),
            "different numbers of heads (model type 'step3p5'; 4, 6)",
        ),
    ],
)  # fmt: skip
def test_models_that_cannot_be_measured_are_named_from_their_files(
    config: dict[str, Any], tensors: tuple[str, ...], words: str
) -> None:
    said = why_not({"num_attention_heads": config.get("num_attention_heads", 4), **config}, tensors)
    assert said is not None
    assert words in said


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "qwen3", "num_attention_heads": 4},
        {"model_type": "gpt2", "n_head": 4},
        {"model_type": "minicpm3", "num_attention_heads": 4, "kv_lora_rank": 256},  # vLLM expands it into heads
        {"model_type": "gemma3_text", "num_attention_heads": 4, "num_kv_shared_layers": 0},
        {"model_type": "laguna", "num_attention_heads": 8, "num_attention_heads_per_layer": [8, 8]},
    ],
)
def test_models_that_nothing_speaks_against(config: dict[str, Any]) -> None:
    assert why_not(config, ("model.layers.0.self_attn.q_proj.weight",)) is None

"""Beneath every table: what each context setting and each model is, and which machine computed it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.export import export_run
from harness.store import Store
from harness.tables import table5
from harness.tables.definitions import definition_lines
from harness.types import Cell
from tests.support.sample_runs import config, write_run

ROPE = {"rope_type": "default", "rope_theta": 1000000.0}


def facts(gate: str, **more: Any) -> dict[str, Any]:
    engine = {"dtype": "bfloat16", "device": "cuda", "arithmetic": {"device": "NVIDIA H200", "dtype": "bfloat16"}}
    limits = {"8k": 8192, "YaRN": 32768}
    return {"gate": gate, "parameters": 1_352_413_184, "rope": ROPE, "max_lengths": limits, "engine": engine, **more}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(
        tmp_path_factory.mktemp("runs") / "r",
        config(tasks=("vt",), lengths=(4096, 16384)),
        models={"baseline": facts("none"), "gated": facts("headwise")},
        versions={"vllm": "0.32.0", "torch": "2.13.0"},
        hardware={"machine": "x86_64"},
    )


LINES = [
    "Context 8k: RoPE base 1,000,000; at most 8,192 tokens of prompt and answer.",
    "Context YaRN: RoPE base 1,000,000; YaRN factor 4 over 32,768 original tokens; at most 32,768 tokens of prompt and "
    "answer.",
    "Model baseline: no gate; 1.35B parameters; bfloat16.",
    "Model gated: headwise gate; 1.35B parameters; bfloat16.",
    "Hardware: NVIDIA H200; vLLM 0.32.0, torch 2.13.0.",
]


def test_what_each_row_means_stands_beneath_the_table(run: Path) -> None:
    caption = table5(Store.read(run)).caption
    at = caption.index(LINES[0])
    assert caption[at : at + 5] == LINES


@pytest.mark.parametrize("fmt", ["md", "html", "json", "latex"])
@pytest.mark.parametrize("style", ["table5", "tasks", "delta", "lengths"])
def test_in_every_style_and_format(run: Path, style: str, fmt: str) -> None:
    text = " ".join(export_run(run, style, fmt).split())
    for line in LINES:
        assert line in text


def test_only_rows_of_the_table_are_defined(run: Path) -> None:
    text = export_run(run, models=("gated",), contexts=("YaRN",), rename={"gated": "SDPA gate"})
    assert "Model SDPA gate: headwise gate" in text
    assert "Model baseline" not in text
    assert "Context 8k" not in text


def lines_of(tmp_path: Path, context: dict[str, Any], **models: dict[str, Any]) -> list[str]:
    cells: dict[Cell, int | None] = {Cell(m, "c", "ruler", "vt", 4096): 1 for m in models}
    settings = {"models": [{"label": m} for m in models], "contexts": [{"label": "c", **context}]}
    store = Store.open(tmp_path / "r", {"config": settings, "models": models}, cells=cells)
    store.close()
    return definition_lines(store, list(models), ["c"])


def test_the_native_context_has_the_checkpoints_own_base(tmp_path: Path) -> None:
    native = {"rope": ROPE, "max_lengths": {"c": 32768}}
    assert lines_of(tmp_path / "one", {}, a=native, b=native) == [
        "Context c: the checkpoint's own rotary encoding: RoPE base 1,000,000; at most 32,768 tokens of prompt and "
        "answer."
    ]
    other = {"rope": {"rope_theta": 10000.0}, "max_lengths": {"c": 4096}}
    assert lines_of(tmp_path / "two", {}, a=native, b=other) == [
        "Context c: the checkpoint's own rotary encoding: RoPE base 1,000,000 (a), or RoPE base 10,000 (b); at most "
        "4,096 to 32,768 tokens of prompt and answer."
    ]
    yarn = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6, "original_max_position_embeddings": 32768}
    assert lines_of(tmp_path / "three", {}, a={"rope": yarn}) == [
        "Context c: the checkpoint's own rotary encoding: RoPE base 1,000,000, yarn factor 4 over 32,768 "
        "original tokens."
    ]


@pytest.mark.parametrize(
    ("context", "words"),
    [
        ({"linear": 2.0}, "the checkpoint's own RoPE base; linear position interpolation, factor 2"),
        ({"dynamic": 4.0, "rope_theta": 1e4}, "RoPE base 10,000; dynamic NTK, factor 4"),
        (
            {"yarn": {"factor": 2.0, "original_max_position_embeddings": 4096, "beta_fast": 16.0, "beta_slow": 1.0,
                      "attention_factor": 1.0}, "rope_theta": 5e5},
            "RoPE base 500,000; YaRN factor 2 over 4,096 original tokens, beta_fast 16, beta_slow 1, attention "
            "factor 1",
        ),
    ],
)  # fmt: skip
def test_every_kind_of_scaling_is_named(tmp_path: Path, context: dict[str, Any], words: str) -> None:
    assert lines_of(tmp_path, context, a={"gate": "none"})[0] == f"Context c: {words}."


def test_a_fact_that_an_old_run_lacks_is_left_out(tmp_path: Path) -> None:
    assert lines_of(tmp_path / "none", {}, a={}) == []
    assert lines_of(tmp_path / "some", {"max_length": 256}, a={"gate": "elementwise", "engine": {"device": "cpu"}}) == [
        "Context c: the checkpoint's own rotary encoding; at most 256 tokens of prompt and answer.",
        "Model a: elementwise gate.",
        "Hardware: CPU.",
    ]
    imported = write_run(tmp_path / "imported", {**config(tasks=("vt",)), "contexts": [
        {"label": "as given", "max_length": 8192}]})  # fmt: skip
    assert "own rotary encoding" not in export_run(imported), "nothing is known of the checkpoint"


def test_ranks_and_dtype_are_those_that_ran(tmp_path: Path) -> None:
    lines = lines_of(
        tmp_path, {"rope_theta": 1e6}, a={"engine": {"device": "cuda", "dtype": "torch.float16", "ranks": 2}}
    )
    assert lines[1:] == ["Model a: float16.", "Hardware: cuda, 2 ranks."]

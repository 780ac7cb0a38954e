"""Where gate rows are: rows by hand, conversions to the bit, and layouts that nothing but the config can name."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from harness import config as harness_config
from harness.config import Model
from harness.models.checkpoint import inspect
from harness.models.convert import convert
from harness.models.layout import Layout
from harness.models.reference import load
from harness.run.plan_text import describe
from harness.types import Gate, GatedevalError, GateLayout
from tests.checkpoints import families, odd
from tests.support import ROOT
from tests.support.engines import altered
from tests.support.in_process import gatedeval
from tests.support.variants import random_checkpoint

LAYOUTS: tuple[GateLayout, ...] = ("per-group", "per-head", "separate")
IDS = torch.tensor([[(7 * i * i + 3 * i) % 512 for i in range(24)]])


def quiet(line: str) -> None:
    """What a conversion says, unheard."""


def packed(folder: Path, gate: Gate = "headwise", **config: Any) -> Path:
    """A random checkpoint in the released form: 4 heads, 2 KV heads, head_dim 32."""
    flags = {f"{gate}_attn_output_gate": True, "packed_rows": Layout(4, 2, 32, gate).q_rows}
    return random_checkpoint(folder, flags | config)


def logits(folder: Path, layout: GateLayout | None = None) -> torch.Tensor:
    with torch.inference_mode():
        return load(folder, layout)(IDS)


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Equal but for the order of a sum: a matrix product of reordered rows may differ in the last bit."""
    return bool((one - other).abs().max() < 1e-5)


def test_rows_by_hand() -> None:
    """4 query heads, 2 KV heads, head_dim 2: for each head its query rows, then its gate rows."""
    headwise = Layout(4, 2, 2, "headwise", "per-head")  # q0 q0 g0 q1 q1 g1 ...
    assert headwise.q_rows == 12
    assert headwise.query_rows.tolist() == [0, 1, 3, 4, 6, 7, 9, 10]
    assert headwise.gate_rows.tolist() == [2, 5, 8, 11]
    elementwise = Layout(4, 2, 2, "elementwise", "per-head")  # q0 q0 g0 g0 q1 q1 g1 g1 ...
    assert elementwise.query_rows.tolist() == [0, 1, 4, 5, 8, 9, 12, 13]
    assert elementwise.gate_rows.tolist() == [2, 3, 6, 7, 10, 11, 14, 15]
    assert [elementwise.shard("q", 2, 1)[i].tolist() for i in (0, 1)] == [[8, 9, 12, 13], [10, 11, 14, 15]]


def test_with_one_head_per_group_both_packings_are_one() -> None:
    for gate in ("headwise", "elementwise"):
        by_group, by_head = Layout(4, 4, 8, gate), Layout(4, 4, 8, gate, "per-head")  # type: ignore[arg-type]
        assert (by_group.query_rows == by_head.query_rows).all()
        assert (by_group.gate_rows == by_head.gate_rows).all()


@pytest.mark.parametrize("folder", ["b_headwise_gqa", "c_elementwise_gqa", "e_elementwise_mqa", "g_headwise_qkvbias"])
def test_there_and_back_gives_the_same_bytes(shared: Path, tmp_path: Path, folder: str) -> None:
    source = shared / "oracles" / folder
    for layout in ("per-head", "separate"):
        convert(source, tmp_path / layout, layout, say=quiet)  # type: ignore[arg-type]
        convert(tmp_path / layout, tmp_path / f"{layout}-back", "per-group", say=quiet)
        assert (tmp_path / f"{layout}-back/model.safetensors").read_bytes() == (
            source / "model.safetensors"
        ).read_bytes()
        old, new = (json.loads((f / "config.json").read_text()) for f in (source, tmp_path / f"{layout}-back"))
        assert new == old | {"architectures": ["GatedQwen3ForCausalLM"]}  # stock vLLM refuses it by name
    convert(tmp_path / "per-head", tmp_path / "across", "separate", say=quiet)
    across, apart = (tmp_path / name / "model.safetensors" for name in ("across", "separate"))
    assert across.read_bytes() == apart.read_bytes()


def test_the_rows_of_a_converted_checkpoint_are_where_its_layout_says(shared: Path, tmp_path: Path) -> None:
    """Counted here from head numbers, not with `Layout`: 4 heads of 32 in 2 groups."""
    name = "model.layers.1.self_attn.q_proj.weight"
    source = load_file(shared / "oracles/b_headwise_gqa/model.safetensors")[name]
    convert(shared / "oracles/b_headwise_gqa", tmp_path / "h", "per-head", say=quiet)
    convert(shared / "oracles/b_headwise_gqa", tmp_path / "s", "separate", say=quiet)
    per_head, apart = load_file(tmp_path / "h/model.safetensors"), load_file(tmp_path / "s/model.safetensors")
    for head in range(4):
        group, place = divmod(head, 2)
        queries = source[group * 66 + place * 32 : group * 66 + place * 32 + 32]
        gate = source[group * 66 + 64 + place]
        assert torch.equal(per_head[name][head * 33 : head * 33 + 32], queries)
        assert torch.equal(per_head[name][head * 33 + 32], gate)
        assert torch.equal(apart[name][head * 32 : head * 32 + 32], queries)
        assert torch.equal(apart[name.replace("q_proj", "gate_proj")][head], gate)


@pytest.mark.parametrize("gate", ["headwise", "elementwise"])
@pytest.mark.parametrize("biases", [False, True])
def test_every_layout_computes_the_same(tmp_path: Path, gate: Gate, biases: bool) -> None:
    more = {"qkv_bias": biases, "sdpa_norm": biases, "sandwich_norm": biases, "num_hidden_layers": 2}
    source = packed(tmp_path / "m", gate, **more)
    wanted = logits(source)
    for layout in LAYOUTS:
        convert(source, tmp_path / layout, layout, say=quiet)
        assert same(logits(tmp_path / layout), wanted), layout
        found = inspect(tmp_path / layout)
        assert found.variant.sdpa_norm is biases
        assert found.variant.sandwich_norm is biases
    assert inspect(tmp_path / "per-head").gate == gate
    assert gate in inspect(tmp_path / "separate").gate


def test_shards_stay_shards_and_other_files_come_along(tmp_path: Path) -> None:
    """A gate matrix in another file than its q_proj, bfloat16, an index, a tokenizer, code that would no longer fit."""
    convert(packed(tmp_path / "m", "elementwise", auto_map={"AutoModel": "m.M"}), tmp_path / "s", "separate", say=quiet)
    source = tmp_path / "s"
    tensors = {n: t.bfloat16() for n, t in load_file(source / "model.safetensors").items()}
    (source / "model.safetensors").unlink()
    parts = [{n: t for n, t in tensors.items() if ("gate_proj" in n) is second} for second in (False, True)]
    names = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    for name, part in zip(names, parts, strict=True):
        save_file(part, source / name, metadata={"format": "pt"})
    weight_map = {n: name for name, part in zip(names, parts, strict=True) for n in part}
    (source / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (source / "tokenizer_config.json").write_text("{}")
    (source / "modeling_m.py").write_text("")
    said: list[str] = []
    convert(source, tmp_path / "p", "per-head", say=said.append)
    assert said == [f"{names[0]} (1 of 2)", f"{names[1]} (2 of 2)"]
    assert sorted(f.name for f in (tmp_path / "p").iterdir()) == sorted(
        [*names, "config.json", "model.safetensors.index.json", "tokenizer_config.json"]
    )
    assert "auto_map" not in json.loads((tmp_path / "p/config.json").read_text())
    convert(tmp_path / "p", tmp_path / "back", "separate", say=quiet)
    back = {n: t for f in (tmp_path / "back").glob("*.safetensors") for n, t in load_file(f).items()}
    assert back.keys() == tensors.keys()
    assert all(torch.equal(back[n], tensors[n]) for n in tensors)


def test_a_mixture_of_experts_is_converted_too(tmp_path: Path) -> None:
    from tests.engine.test_moe import GATES, MOE

    source = random_checkpoint(tmp_path / "m", MOE | GATES["elementwise"])
    convert(source, tmp_path / "h", "per-head", say=quiet)
    assert inspect(tmp_path / "h").architecture == "GatedQwen3MoeForCausalLM"
    assert same(logits(tmp_path / "h"), logits(source))


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen3"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_that_only_the_config_names(shared: Path, tmp_path: Path, kind: str, layout: GateLayout) -> None:
    """As people add the paper's gate to their own code: the flag, and rows packed in one way or another."""
    convert(shared / "oracles/c_elementwise_gqa", tmp_path / "m", layout, say=quiet)
    theirs = {"model_type": kind, "architectures": ["TheirForCausalLM"], "elementwise_attn_output_gate": True}
    gone = dict.fromkeys(("gate_layout", "attn_gate", "use_qk_norm", "qkv_bias", "headwise_attn_output_gate"))
    source = altered(tmp_path / "m", tmp_path / "theirs", **gone, **theirs)
    if kind != "qwen3":
        with pytest.raises(GatedevalError, match=r"where its rows are: `gate_layout: per-group`.*q_proj\.weight \["):
            inspect(source)
    found = inspect(source, layout)
    assert found.architecture == "GatedQwen3ForCausalLM"
    assert found.evidence is not None
    assert f"gate_layout of the model's config entry: {layout}" in found.evidence
    assert "in model.safetensors" in found.evidence
    assert same(logits(source, layout), logits(tmp_path / "m"))
    assert found.fingerprint() != inspect(tmp_path / "m").fingerprint()
    if layout != "separate":
        other: GateLayout = "per-head" if layout == "per-group" else "per-group"
        assert inspect(source, other).fingerprint() != found.fingerprint()  # other rows: another model


@pytest.mark.parametrize("name", ["g_proj", "w_g"])
def test_other_names_of_the_gate_s_matrix(tmp_path: Path, name: str) -> None:
    convert(packed(tmp_path / "m"), tmp_path / "s", "separate", say=quiet)
    wanted = logits(tmp_path / "s")

    def renamed(tensors: dict[str, Any]) -> None:
        for old in [n for n in tensors if ".self_attn.gate_proj." in n]:
            tensors[old.replace("gate_proj", name)] = tensors.pop(old)

    source = odd.with_tensors(tmp_path / "s", renamed)
    assert same(logits(source), wanted)
    convert(source, tmp_path / "g", "per-group", say=quiet)
    assert same(logits(tmp_path / "g"), wanted)


@pytest.mark.slow
def test_an_olmo_with_w_g_is_named_and_refused(tmp_path: Path) -> None:
    source = families.write("olmo3", tmp_path / "m")
    odd.with_tensors(source, lambda t: t.update({"model.layers.0.self_attn.w_g.weight": torch.zeros(4, 64)}))
    with pytest.raises(GatedevalError, match=r"w_g\.weight \[4, 64\] in model\.safetensors is a separate gate matrix"):
        inspect(source)
    with pytest.raises(GatedevalError, match=r"the model type is 'olmo3'"):
        inspect(source, "separate")


@pytest.mark.parametrize(
    ("config", "layout", "words"),
    [
        ({}, "separate", r"no file holds model\.layers\.0\.self_attn\.gate_proj\.weight"),
        ({"elementwise_attn_output_gate": True, "headwise_attn_output_gate": False}, "per-head", "say elementwise"),
        ({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}, "per-head", "the model type is 'gpt2'"),
        ({"model_type": "llama", "hidden_act": "gelu"}, "per-head", "hidden_act is 'gelu'"),
        ({"model_type": "mistral", "sliding_window": 64}, "per-head", "sliding_window is 64"),
        ({"quantization_config": {"quant_method": "gptq"}}, "per-head", "quantised"),
        ({"gate_layout": "per-group"}, "per-head", "gate_layout is per-head, but config.json says per-group"),
        ({"gate_layout": "perhead"}, None, "there are per-group, per-head, separate; did you mean 'per-head'"),
        ({"gate_layout": ["per-head"]}, None, "there are per-group, per-head, separate"),
        ({"num_attention_heads": 3}, "per-head", "which the shapes do not fit"),
    ],
)
def test_layouts_that_cannot_be(tmp_path: Path, config: dict[str, Any], layout: Any, words: str) -> None:
    source = altered(packed(tmp_path / "m"), tmp_path / "n", **config)
    with pytest.raises(GatedevalError, match=words) as told:
        inspect(source, layout)
    assert "\n" not in str(told.value)


GATE = "model.layers.{}.self_attn.gate_proj.weight"
QUERY = "model.layers.{}.self_attn.q_proj.weight"


@pytest.mark.parametrize(
    ("layout", "change", "words"),
    [
        (
            "per-group",
            lambda t: t.update({QUERY.format(1): t[QUERY.format(1)][:128].clone()}),
            r"layers\.1\.self_attn\.q_proj\.weight in model\.safetensors has the shape \[128, 128\], but config",
        ),
        ("per-head", lambda t: t.update({QUERY.format(1): torch.zeros(256, 128)}), r"the shape \[256, 128\], but"),
        (
            "separate",
            lambda t: t.update({GATE.format(1): torch.zeros(128, 128)}),
            r"has the shape \[128, 128\], but model\.layers\.0\.self_attn\.gate_proj\.weight has \[4, 128\]",
        ),
        (
            "separate",
            lambda t: t.update({GATE.format(1).replace("gate_proj", "g_proj"): torch.zeros(4, 128)}),
            r"layers\.1\.self_attn\.g_proj\.weight and model\.layers\.1\.self_attn\.gate_proj\.weight are both",
        ),
        ("separate", lambda t: t.pop(GATE.format(1)), r"1 tensor\(s\) missing: model\.layers\.1\.self_attn\.gate_proj"),
        (
            "per-group",
            lambda t: t.update({GATE.format(0): torch.zeros(4, 128)}),
            r"1 tensor\(s\) not in the model: model\.layers\.0\.self_attn\.gate_proj\.weight",
        ),
    ],
)  # fmt: skip
def test_layers_that_do_not_belong_together(tmp_path: Path, layout: GateLayout, change: Any, words: str) -> None:
    """The first layer is sound. Of two gate matrices, a loader would keep the one that it reads last."""
    convert(packed(tmp_path / "m"), tmp_path / "n", layout, say=quiet)
    source = odd.with_tensors(tmp_path / "n", change)
    for refused in (inspect, lambda path: convert(path, tmp_path / "t", "per-head", say=quiet)):
        with pytest.raises(GatedevalError, match=words) as told:
            refused(source)
        assert "\n" not in str(told.value)
    assert not (tmp_path / "t").exists()


@pytest.mark.extended
def test_what_cannot_be_converted(shared: Path, tmp_path: Path) -> None:
    for source, words in (
        (shared / "oracles/a_baseline_gqa", "has no gate, so there is nothing to convert"),
        (shared / "oracles/variants/v1_value_elementwise", r"the gate is value \(G2\).*other gates stay separate"),
        (families.write("afmoe", tmp_path / "afmoe"), "vLLM's own class for 'afmoe' reads one layout only"),
        (families.write("olmo2", tmp_path / "olmo2"), "Olmo2ForCausalLM is none of the families"),
        (tmp_path, "does not exist"),
    ):
        with pytest.raises(GatedevalError, match=words):
            convert(source, tmp_path / "t", "per-head", say=quiet)
        assert not (tmp_path / "t").exists()
    with pytest.raises(GatedevalError, match="is not empty"):
        convert(packed(tmp_path / "m"), tmp_path / "afmoe", "per-head", say=quiet)


@pytest.mark.extended
def test_a_killed_conversion_leaves_no_checkpoint(tmp_path: Path) -> None:
    source = packed(tmp_path / "m")
    code = (
        "import os, signal, sys; from pathlib import Path; from harness.models.convert import convert;"
        "kill = lambda line: os.kill(os.getpid(), signal.SIGKILL);"
        "convert(Path(sys.argv[1]), Path(sys.argv[2]), 'per-head', say=kill)"
    )
    done = subprocess.run([sys.executable, "-c", code, source, tmp_path / "t"], cwd=ROOT, env=os.environ, check=False)
    assert done.returncode == -signal.SIGKILL
    assert not (tmp_path / "t").exists()
    convert(source, tmp_path / "t", "per-head", say=quiet)
    assert same(logits(tmp_path / "t"), logits(source))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m", "t"]


def test_the_commands(shared: Path, tmp_path: Path) -> None:
    source = shared / "oracles/b_headwise_gqa"
    done = gatedeval("convert", source, tmp_path / "h", "--layout", "per-head", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"{tmp_path / 'h'}\n"), done.stderr
    assert "model.safetensors (1 of 1)" in done.stderr
    said = describe(Model(label="m", path=str(tmp_path / "h")))
    assert "per head, in q_proj: [query | gate] of each head (model type qwen3; gate_layout in config.json" in said
    assert "q_proj.weight [132, 128]" in said
    again = gatedeval("convert", source, tmp_path / "h", "--layout", "per-head", cwd=tmp_path)
    assert again.returncode == 2
    assert again.stderr.count("\n") == 1
    wrong = gatedeval("convert", source, tmp_path / "x", "--layout", "per-row", cwd=tmp_path)
    assert wrong.returncode == 2
    contradiction = gatedeval("check", tmp_path / "h", "--gate-layout", "per-group", cwd=tmp_path)
    assert contradiction.returncode == 2
    assert "config.json says per-head" in contradiction.stderr


def test_a_config_names_the_layout(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    text = "name: c\nmodels: [{label: m, path: x, gate_layout: LAYOUT}]\nbenchmarks: [{mmlu: {}}]\n"
    file.write_text(text.replace("LAYOUT", "per-head"))
    config = harness_config.load(file, check_paths=False)
    assert config.models[0].gate_layout == "per-head"
    assert harness_config.from_dict(harness_config.to_dict(config)) == config
    file.write_text(text.replace("LAYOUT", "per-row"))
    with pytest.raises(GatedevalError, match=r"c\.yaml:2: models 'm', gate_layout"):
        harness_config.load(file, check_paths=False)
    file.write_text(text.replace(", gate_layout: LAYOUT", ""))
    plain = harness_config.to_dict(harness_config.load(file, check_paths=False))
    assert "gate_layout" not in plain["models"][0]  # a stored config has the same bytes as before


def test_numbers_of_experts_under_both_keys() -> None:
    from harness.models.layout import has_experts

    moe = {"model_type": "qwen3_moe", "decoder_sparse_step": 2, "mlp_only_layers": [3]}
    assert [has_experts(moe | {"num_experts": 4}, i) for i in range(6)] == [False, True, False, False, False, True]
    assert has_experts(moe | {"num_local_experts": 4}, 1)
    assert not has_experts(moe | {"model_type": "qwen3", "num_experts": 4}, 1)

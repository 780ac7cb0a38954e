"""Flags and shapes decide what a checkpoint is; a checkpoint whose flags and shapes disagree is refused."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from harness.config import Model
from harness.models.checkpoint import inspect
from harness.models.hub import resolve, tokenizer_path, tokenizer_sha256
from harness.types import GatedevalError
from tests.support.engines import altered


@pytest.mark.parametrize(("arm", "rows"), [("baseline", 128), ("headwise", 132), ("elementwise", 256)])
def test_what_it_is(tiny: Path, arm: str, rows: int) -> None:
    checkpoint = inspect(tiny / arm)
    assert checkpoint.gate == ("none" if arm == "baseline" else arm)
    assert checkpoint.layout is not None
    assert checkpoint.layout.q_rows == rows
    assert checkpoint.dtype == "float32"
    assert checkpoint.max_position_embeddings == 2048
    assert checkpoint.rope == {"rope_theta": 10000.0}
    assert checkpoint.parameters == sum(t.numel() for t in load_file(tiny / arm / "model.safetensors").values())


def test_flag_that_contradicts_the_shape(tiny: Path, tmp_path: Path) -> None:
    lying = altered(tiny / "headwise", tmp_path / "a", headwise_attn_output_gate=False)
    with pytest.raises(GatedevalError, match=r"flags say gate none.*q_proj has 132 rows, which is a headwise gate"):
        inspect(lying)
    lying = altered(
        tiny / "headwise", tmp_path / "b", headwise_attn_output_gate=False, elementwise_attn_output_gate=True
    )
    with pytest.raises(GatedevalError, match="flags say gate elementwise"):
        inspect(lying)
    lying = altered(tiny / "baseline", tmp_path / "c", headwise_attn_output_gate=True)
    with pytest.raises(GatedevalError, match="flags say gate headwise"):
        inspect(lying)


def test_both_flags_are_headwise(tiny: Path, tmp_path: Path) -> None:
    both = altered(tiny / "headwise", tmp_path / "m", elementwise_attn_output_gate=True)
    assert inspect(both).gate == "headwise"


def test_head_dim_may_be_left_out_of_the_config(tiny: Path, tmp_path: Path) -> None:
    checkpoint = inspect(altered(tiny / "headwise", tmp_path / "m", head_dim=None))
    assert checkpoint.config["head_dim"] == 32
    with pytest.raises(GatedevalError, match=r"k_proj has 64 rows, config.json says 2 KV heads of 64"):
        inspect(altered(tiny / "headwise", tmp_path / "n", head_dim=64))


def test_as_released_qwen2_type_with_remote_code_and_bin_weights(tiny: Path, tmp_path: Path) -> None:
    source = altered(
        tiny / "elementwise",
        tmp_path / "m",
        model_type="qwen2",
        architectures=["Qwen3ForCausalLM"],
        auto_map={"AutoModelForCausalLM": "modeling_qwen3.Qwen3ForCausalLM"},
    )
    torch.save(load_file(source / "model.safetensors"), source / "pytorch_model.bin")
    (source / "model.safetensors").unlink()
    checkpoint = inspect(source)
    assert checkpoint.gate == "elementwise"
    assert checkpoint.architecture == "GatedQwen3ForCausalLM"
    assert checkpoint.dtype == "float32"


class _Harmful:
    def __reduce__(self) -> tuple:
        return (Path.write_text, (Path("harmed"), "x"))


def test_bin_file_with_code_is_never_run(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source = altered(tiny / "baseline", tmp_path / "m")
    (source / "model.safetensors").unlink()
    torch.save({"weight": _Harmful()}, source / "pytorch_model.bin")
    with pytest.raises(GatedevalError, match="cannot be read as plain weights"):
        inspect(source)
    assert not (tmp_path / "harmed").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("model.layers.2.self_attn.k_norm.weight", "1 tensor.s. missing: model.layers.2.self_attn.k_norm.weight"),
        ("extra.weight", "1 tensor.s. not in the model: extra.weight"),
    ],
)
def test_every_tensor_must_be_there_and_no_other(tiny: Path, tmp_path: Path, name: str, message: str) -> None:
    def change(tensors: dict) -> dict:
        if tensors.pop(name, None) is None:
            tensors[name] = torch.zeros(1)
        return tensors

    with pytest.raises(GatedevalError, match=message):
        inspect(altered(tiny / "headwise", tmp_path / "m", change))


def test_broken_files_are_named(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(GatedevalError, match=r"config.json does not exist.*checkpoints below it: baseline"):
        inspect(tiny)
    broken = altered(tiny / "baseline", tmp_path / "json")
    (broken / "config.json").write_text("{")
    with pytest.raises(GatedevalError, match=r"config.json: not valid JSON"):
        inspect(broken)
    cut = altered(tiny / "baseline", tmp_path / "cut")
    data = (cut / "model.safetensors").read_bytes()
    (cut / "model.safetensors").write_bytes(data[: len(data) // 2])
    with pytest.raises(GatedevalError, match=r"model.safetensors: not a whole safetensors file"):
        inspect(cut)
    (cut / "model.safetensors").write_bytes(b"")
    with pytest.raises(GatedevalError, match=r"not a whole safetensors file"):
        inspect(cut)
    (cut / "model.safetensors").unlink()
    with pytest.raises(GatedevalError, match="no weights"):
        inspect(cut)


def test_a_shard_that_the_index_names_must_be_there(tiny: Path, tmp_path: Path) -> None:
    source = altered(tiny / "baseline", tmp_path / "m")
    index = {"weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (source / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(GatedevalError, match=r"names 1 file.s. that are not there: model-00002-of-00002"):
        inspect(source)


def test_fingerprint_follows_the_weights_and_the_config(tiny: Path, tmp_path: Path) -> None:
    first = inspect(tiny / "baseline").fingerprint()
    copy = altered(tiny / "baseline", tmp_path / "m")
    (copy / "config.json").write_bytes((tiny / "baseline/config.json").read_bytes())
    assert inspect(copy).fingerprint() == first
    tensors = load_file(copy / "model.safetensors")
    tensors["model.norm.weight"][0] += 1e-3
    save_file(tensors, copy / "model.safetensors")
    assert inspect(copy).fingerprint() != first


def test_where_the_tokenizer_is(tiny: Path, tmp_path: Path) -> None:
    model = Model(label="m", path=str(tiny), subfolder="baseline")
    assert tokenizer_path(model, resolve(model)) == tiny / "baseline"
    bare = altered(tiny / "baseline", tmp_path / "bare")
    digest = tokenizer_sha256(bare)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (bare / name).unlink()
    with pytest.raises(GatedevalError, match="no tokenizer in"):
        tokenizer_path(Model(label="m", path=str(bare)), bare)
    elsewhere = Model(label="m", path=str(bare), tokenizer=str(tiny / "headwise"))
    assert tokenizer_sha256(tokenizer_path(elsewhere, bare)) == digest


def test_paths_that_are_nothing() -> None:
    with pytest.raises(GatedevalError, match="does not exist"):
        resolve(Model(label="m", path="./nowhere/at/all"))
    with pytest.raises(GatedevalError, match=r"could not be fetched from the hub|cannot be reached"):
        resolve(Model(label="m", path="nobody/nothing-here"))


def test_hub_repository_with_a_subfolder_is_read_from_the_cache(tiny: Path, tmp_path: Path) -> None:
    """A hub cache as it looks after `org/name`'s subfolder was fetched; blobs are named by their sha256."""
    repo = tmp_path / "hub/models--org--name"
    snapshot, blobs = repo / "snapshots/abc/1B_gate", repo / "blobs"
    for folder in (snapshot, blobs, repo / "refs"):
        folder.mkdir(parents=True)
    (repo / "refs/main").write_text("abc")
    for file in (tiny / "headwise").iterdir():
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        (blobs / digest).write_bytes(file.read_bytes())
        (snapshot / file.name).symlink_to(blobs / digest)
    code = """
from harness.models.checkpoint import inspect
from harness.models.hub import file_sha256, resolve, tokenizer_path
from harness.config import Model
model = Model(label="m", path="org/name", subfolder="1B_gate")
directory = resolve(model)
checkpoint = inspect(directory)
print(checkpoint.gate, checkpoint.fingerprint(), tokenizer_path(model, directory) == directory)
weights = directory / "model.safetensors"
assert file_sha256(weights) == weights.resolve().name
"""
    env = {**os.environ, "HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["headwise", inspect(tiny / "headwise").fingerprint(), "True"]

"""Checkpoints with one fault each, as public bug reports describe them.

Every function takes a directory of a sound checkpoint (see `families.write`) and a target, and returns the target: a
copy with one thing changed.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.engines import altered


def with_tensors(directory: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """Change the tensors of a checkpoint in place."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(contiguous, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def without(source: Path, target: Path, *names: str) -> Path:
    """The named tensors are missing."""

    def drop(tensors: dict[str, Any]) -> None:
        for name in names:
            del tensors[name]

    return with_tensors(altered(source, target), drop)


def sharded(source: Path, target: Path, stale: str, *, in_index: bool = True) -> Path:
    """Two shards; tensor `stale` is in both, with other values in the second, and the index points at the first.

    `in_index` False: the second shard is not named by the index at all (a file that an older download left behind).
    """
    import torch
    from safetensors.torch import load_file, save_file

    altered(source, target)
    tensors = load_file(target / "model.safetensors")
    (target / "model.safetensors").unlink()
    names = sorted(tensors)
    first = {n: tensors[n] for n in names if n == stale or not in_index or names.index(n) % 2 == 0}
    second = {n: tensors[n] for n in names if n not in first} | {stale: torch.zeros_like(tensors[stale])}
    shards = {"model-00001-of-00002.safetensors": first, "model-00002-of-00002.safetensors": second}
    for file, part in shards.items():
        save_file({k: v.contiguous() for k, v in part.items()}, target / file, metadata={"format": "pt"})
    weight_map = {
        n: "model-00001-of-00002.safetensors" if n in first else "model-00002-of-00002.safetensors" for n in names
    }
    (target / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return target


def tied_but_different(source: Path, target: Path) -> Path:
    """config.json says that the embeddings are tied; the file has an output matrix of its own with other values."""
    return altered(source, target, tie_word_embeddings=True)


def wrapped(source: Path, target: Path) -> Path:
    """A multimodal wrapper's config: the language model's entries are in `text_config`."""
    shutil.copytree(source, target)
    facts = json.loads((target / "config.json").read_text())
    outer = {"model_type": "llava", "architectures": ["LlavaForConditionalGeneration"], "text_config": facts}
    (target / "config.json").write_text(json.dumps(outer))
    return target


def declared_yarn(source: Path, target: Path, factor: float, original: int) -> Path:
    """A checkpoint that declares YaRN itself; max_position_embeddings stays at the original length."""
    rope = {
        "rope_type": "yarn", "rope_theta": 10000.0, "factor": factor, "original_max_position_embeddings": original,
    }  # fmt: skip
    return altered(source, target, rope_parameters=rope, max_position_embeddings=original)


def quantised(source: Path, target: Path, method: str = "gptq") -> Path:
    """A checkpoint that declares a quantisation."""
    return altered(source, target, quantization_config={"quant_method": method, "bits": 4, "group_size": 32})


def unknown_type(source: Path, target: Path) -> Path:
    """A model type and architecture that no library knows."""
    return altered(source, target, model_type="telegraph", architectures=["TelegraphForCausalLM"])


def vocabulary_too_large(source: Path, target: Path) -> Path:
    """The tokenizer has one entry more than the embedding has rows."""
    altered(source, target)
    rows = json.loads((target / "config.json").read_text())["vocab_size"]
    tokenizer = json.loads((target / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    for id in range(len(vocabulary), rows):
        vocabulary[f"unused {id}"] = id
    vocabulary["beyond"] = rows
    (target / "tokenizer.json").write_text(json.dumps(tokenizer))
    return target


def without_tokenizer(source: Path, target: Path) -> Path:
    """No tokenizer file at all."""
    altered(source, target)
    for file in target.glob("tokenizer*"):
        file.unlink()
    return target


def not_a_number(source: Path, target: Path) -> Path:
    """One NaN in an output projection: every answer is empty, nothing fails by itself."""

    def poison(tensors: dict[str, Any]) -> None:
        tensors["model.layers.0.self_attn.o_proj.weight"][0, 0] = float("nan")

    return with_tensors(altered(source, target), poison)


def zeroed(source: Path, target: Path) -> Path:
    """Output matrix of zeros: every token is equally likely."""

    def zero(tensors: dict[str, Any]) -> None:
        for name in list(tensors):
            if name in ("lm_head.weight", "model.norm.weight"):
                tensors[name].zero_()

    return with_tensors(altered(source, target), zero)

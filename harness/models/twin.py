"""Checkpoints made here: a gated twin of any Llama- or Qwen-type model, and a tiny random pair for smoke tests.

A twin computes the same function as its source, to the bit: its gate weights are zero, so every gate is sigmoid(0) =
0.5, and its output projection is doubled. Both factors are powers of two, hence exact in float32 and bfloat16. What a
harness shows between source and twin is therefore the harness' own noise, and must be nothing.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.models.checkpoint import TOKENIZER_FILES, gate_flags, inspect, write_checkpoint
from harness.models.layout import Layout
from harness.types import Gate, GatedevalError

if TYPE_CHECKING:
    import torch

_KEPT = (
    "attention_bias",
    "bos_token_id",
    "eos_token_id",
    "head_dim",
    "hidden_act",
    "hidden_size",
    "intermediate_size",
    "max_position_embeddings",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "pad_token_id",
    "rms_norm_eps",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "tie_word_embeddings",
    "torch_dtype",
    "dtype",
    "vocab_size",
)


def make_twin(source: Path, target: Path, gate: Gate) -> None:
    """Write `target`: `source` in the released checkpoints' format, with a gate that changes nothing.

    `gate` "none" only rewrites the format (a Llama-type source becomes a Qwen3 without q/k norm).

    Raises:
        GatedevalError: `target` holds something, the source has a gate already or is of a family that has no twin.
    """
    config, tensors = _load(source)
    if target.exists() and any(target.iterdir()):
        raise GatedevalError(f"{target} is not empty; give a new directory")
    layout = Layout(config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"], gate)
    out = {
        name: _gated(name, tensor, layout)
        for name, tensor in tensors.items()
        if not name.endswith("rotary_emb.inv_freq")
    }
    if config.get("tie_word_embeddings"):
        out.pop("lm_head.weight", None)
    write_checkpoint(target, config | gate_flags(gate), out)
    for name in (*TOKENIZER_FILES, "merges.txt", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja"):
        if (source / name).exists():
            shutil.copyfile(source / name, target / name)
    inspect(target)


def _load(source: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """The source's config, in the Qwen3 vocabulary, and its tensors."""
    from safetensors.torch import load_file

    checkpoint = inspect(source)
    given = dict(checkpoint.config)
    if checkpoint.gate != "none":
        raise GatedevalError(f"{source} has a {checkpoint.gate} gate already; a twin is made of an ungated checkpoint")
    if given.get("model_type") not in ("llama", "qwen3") or given.get("mlp_bias"):
        raise GatedevalError(
            f"{source}: model_type {given.get('model_type')!r} has no gated twin (llama and qwen3 have)"
        )
    if given["model_type"] == "llama" and given.get("attention_bias"):
        raise GatedevalError(f"{source}: attention_bias is not supported in a twin")
    tensors: dict[str, torch.Tensor] = {}
    for file in checkpoint.weight_files:
        if file.suffix != ".safetensors":
            raise GatedevalError(f"{file}: a twin is made of safetensors files; convert the checkpoint first")
        tensors.update(load_file(file))
    config = {key: given[key] for key in _KEPT if key in given}
    config.setdefault("num_key_value_heads", config["num_attention_heads"])
    config.setdefault("head_dim", config["hidden_size"] // config["num_attention_heads"])
    config["use_qk_norm"] = any("q_norm" in name for name in tensors)
    config["qkv_bias"] = bool(given.get("qkv_bias"))
    return config, tensors


def _gated(name: str, tensor: torch.Tensor, layout: Layout) -> torch.Tensor:
    """One tensor of the twin: zero gate rows packed into q_proj, o_proj doubled, everything else as it was."""
    import torch

    if layout.gate == "none":
        return tensor
    if ".self_attn.q_proj." in name:
        packed = torch.zeros(layout.q_rows, *tensor.shape[1:], dtype=tensor.dtype)
        packed[torch.from_numpy(layout.query_rows)] = tensor
        return packed
    return tensor * 2 if name.endswith(".self_attn.o_proj.weight") else tensor


END = "<|end|>"
"""The token that ends a text, of every tokenizer made here."""


# --- a tiny random pair ----------------------------------------------------------------------------------------------

TINY_ARMS: dict[str, Gate] = {"baseline": "none", "headwise": "headwise", "elementwise": "elementwise"}
_TINY: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
    "use_qk_norm": True,
    "qkv_bias": False,
    "torch_dtype": "float32",
    "bos_token_id": None,
    "eos_token_id": 0,
}


def make_tiny(root: Path, seed: int = 0) -> list[Path]:
    """Write `root`/{baseline,headwise,elementwise}: random weights of the paper's architecture, one small tokenizer.

    For smoke tests of the whole path; their scores mean nothing. What is there already is left alone.
    """
    made = []
    for arm, gate in TINY_ARMS.items():
        target = root / arm
        if (target / "config.json").exists():
            continue
        tokenizer = _tiny_tokenizer()
        config = dict(_TINY, vocab_size=tokenizer.get_vocab_size(), **gate_flags(gate))
        layout = Layout(config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"], gate)
        write_checkpoint(target, config, _random_weights(config, layout, seed))
        save_tokenizer(tokenizer, target)
        inspect(target)
        made.append(target)
    return made


def _random_weights(config: dict[str, Any], layout: Layout, seed: int) -> dict[str, torch.Tensor]:
    """Normal weights, the same in every arm but for the gate rows, which come from a generator of their own."""
    import torch

    common, of_gate = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(seed + 1)
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads, kv = layout.num_heads * layout.head_dim, layout.num_kv_heads * layout.head_dim

    def normal(rows: int, columns: int, generator: torch.Generator = common) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator) * columns**-0.5

    tensors = {
        "model.embed_tokens.weight": normal(config["vocab_size"], hidden) * 4,
        "model.norm.weight": torch.ones(hidden),
    }
    for number in range(config["num_hidden_layers"]):
        at = f"model.layers.{number}."
        packed = torch.zeros(layout.q_rows, hidden)
        packed[torch.from_numpy(layout.query_rows)] = normal(heads, hidden)
        if layout.gate_dim:
            packed[torch.from_numpy(layout.gate_rows)] = normal(layout.num_heads * layout.gate_dim, hidden, of_gate)
        tensors |= {
            f"{at}self_attn.q_proj.weight": packed,
            f"{at}self_attn.k_proj.weight": normal(kv, hidden),
            f"{at}self_attn.v_proj.weight": normal(kv, hidden),
            f"{at}self_attn.o_proj.weight": normal(hidden, heads),
            f"{at}self_attn.q_norm.weight": torch.ones(layout.head_dim),
            f"{at}self_attn.k_norm.weight": torch.ones(layout.head_dim),
            f"{at}mlp.gate_proj.weight": normal(inner, hidden),
            f"{at}mlp.up_proj.weight": normal(inner, hidden),
            f"{at}mlp.down_proj.weight": normal(hidden, inner),
            f"{at}input_layernorm.weight": torch.ones(hidden),
            f"{at}post_attention_layernorm.weight": torch.ones(hidden),
        }
    return tensors


def _tiny_tokenizer() -> Any:
    """A byte-level BPE of 4,096 entries over English words, trained on the spot (a second)."""
    from wonderwords import RandomWord

    words = RandomWord()
    material = sorted(
        {w for kind in ("noun", "adjective", "verb") for w in words.filter(include_parts_of_speech=[kind])}
    )
    return train_bpe((form for word in material for form in (word, f" {word}")), 4096)


def train_bpe(texts: Iterable[str], size: int) -> Any:
    """A byte-level BPE (`tokenizers.Tokenizer`) of at most `size` entries, digits one by one; id 0 is END."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save_tokenizer(tokenizer: Any, target: Path) -> None:
    """Write the tokenizer's files beside a checkpoint."""
    tokenizer.save(str(target / "tokenizer.json"))
    facts = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "model_max_length": 2**20}
    (target / "tokenizer_config.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")

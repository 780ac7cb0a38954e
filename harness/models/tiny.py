"""Tiny checkpoints with random weights, one per gate, for smoke tests of the whole path. Their scores mean nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.config import Model
from harness.models.admission import admit
from harness.models.bpe import save_tokenizer, train_bpe
from harness.models.layout import Layout, gate_flags
from harness.models.writing import write_checkpoint
from harness.types import Gate, GatedevalError

if TYPE_CHECKING:
    import torch

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
    """Write `root`/{baseline,headwise,elementwise}: random weights of the paper's architecture and a small tokenizer.

    Folders that hold a config.json are left as they are, after a check that they are whole. Returns the folders that
    were written.

    Raises:
        GatedevalError: a folder holds a checkpoint that is damaged, or that has another gate than its name says.
    """
    written = []
    for arm, gate in TINY_ARMS.items():
        target = root / arm
        if (target / "config.json").exists():
            _check_whole(target, gate)
            continue
        tokenizer = _tiny_tokenizer()
        config = dict(_TINY, vocab_size=tokenizer.get_vocab_size(), **gate_flags(gate))
        write_checkpoint(target, config, random_weights(config, seed))
        save_tokenizer(tokenizer, target)
        written.append(target)
    return written


def _check_whole(target: Path, gate: Gate) -> None:
    try:
        found = admit(Model(label=target.name, path=str(target))).checkpoint
    except GatedevalError as error:
        raise GatedevalError(f"{error}. The folder {target} is damaged: remove it, then make it again") from error
    if found.gate != gate:
        raise GatedevalError(f"{target}: holds a checkpoint with gate {found.gate}; remove the folder, or name another")


def random_weights(config: Mapping[str, Any], seed: int) -> dict[str, torch.Tensor]:
    """Float32 tensors by name for a config.json with tied embeddings: norms are 1, matrices are normal.

    Models that differ only in their gate get equal weights: gate rows come from a second generator.
    """
    import torch

    layout = Layout.from_config(config)
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
    """A byte-level BPE of at most 4,096 entries, trained on English words (takes a second)."""
    from wonderwords import RandomWord

    lists = RandomWord()
    words = sorted({w for kind in ("noun", "adjective", "verb") for w in lists.filter(include_parts_of_speech=[kind])})
    return train_bpe((form for word in words for form in (word, f" {word}")), 4096)

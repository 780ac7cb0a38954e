"""Tiny random checkpoints of many model families, written by transformers, and transformers' own numbers for them.

Sizes: 2 layers (4 where layers alternate between full and sliding attention), hidden size 64, 4 query heads and 2
key/value heads of head_dim 32, 512 tokens of vocabulary, float32. Weights are drawn with a standard deviation of 0.2,
so that log-probabilities spread over several nats and a wrong rotary table moves them by more than 0.1.
"""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.checkpoints import step
from tests.support import ROOT

POSITIONS = 256
"""Native length of every family, tokens."""

_COMMON = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 512,
    "max_position_embeddings": POSITIONS,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": None,
    "tie_word_embeddings": False,
}
_DEFAULT = {"rope_type": "default", "rope_theta": 10000.0}
_LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
_SLIDING = {"num_hidden_layers": 4, "sliding_window": 64, "layer_types": ["sliding_attention", "full_attention"] * 2}
_GEMMA = {"query_pre_attn_scalar": 32, "tie_word_embeddings": True}  # vLLM's classes have no output matrix
_MOE = {
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "decoder_sparse_step": 1,
    "norm_topk_prob": True, "mlp_only_layers": [],
}  # fmt: skip

_LINEAR = {
    "num_hidden_layers": 4, "full_attention_interval": 2, "layer_types": ["linear_attention", "full_attention"] * 2,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 64, "linear_value_head_dim": 64,
    "linear_conv_kernel_dim": 4,
}  # fmt: skip
_FULL = {**_LINEAR, "layer_types": ["full_attention"] * 4, "full_attention_interval": 1}
_PARTIAL = {**_DEFAULT, "partial_rotary_factor": 0.5}
_MROPE = {**_PARTIAL, "mrope_section": [4, 2, 2], "mrope_interleaved": True}
_SHARED_EXPERT = {**_MOE, "shared_expert_intermediate_size": 64}

GATED: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_next": ("qwen3_next", {"rope_parameters": _PARTIAL, **_FULL, **_SHARED_EXPERT}),
    "qwen3_5": ("qwen3_5_text", {"rope_parameters": _MROPE, **_FULL}),
    "afmoe": (
        "afmoe",
        {
            "rope_parameters": _DEFAULT,
            **_SLIDING,
            **_MOE,
            "num_dense_layers": 1,
            "num_shared_experts": 1,
            "mup_enabled": True,
            "route_norm": True,
            "score_func": "sigmoid",
            "n_group": 1,  # vLLM reads both; transformers has no default for them
            "topk_group": 1,
        },
    ),
    "laguna": (
        "laguna",
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 500000.0, "partial_rotary_factor": 0.5},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0},
            },
            **_SLIDING,
            "mlp_layer_types": ["dense"] * 4,
            "gating": "per-head",
        },
    ),
    "step3p5": (
        "step3p5",
        {
            "layer_types": ["full_attention", "sliding_attention"] * 2,
            "num_hidden_layers": 4,
            "sliding_window": 64,
            "num_attention_groups": 2,
            "use_head_wise_attn_gate": True,
            "rope_theta": 10000.0,
            "moe_layers_enum": "99",  # a layer that it does not have: all are dense
            "bos_token_id": 0,
            "pad_token_id": 0,
        },
    ),
}
"""Families whose attention has an output gate of another packing than the paper's."""

NATIVE_ONLY = ("step3p5",)
"""Families whose vLLM class reads rope keys of its own, so that only the native setting is possible."""

GATES = {"qwen3_next": "elementwise", "qwen3_5": "elementwise", "afmoe": "elementwise"} | dict.fromkeys(
    ("laguna", "step3p5"), "headwise"
)

HYBRID: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_next_linear": ("qwen3_next", {"rope_parameters": _PARTIAL, **_LINEAR, **_SHARED_EXPERT}),
}
"""With linear-attention layers, which vLLM computes in bfloat16 on a CPU."""

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"rope_parameters": _DEFAULT}),
    "llama3": ("llama", {"rope_parameters": _LLAMA3}),
    "mistral": ("mistral", {"rope_parameters": _DEFAULT, "sliding_window": None}),
    "phi3": (
        "phi3",
        {
            "rope_parameters": {**_DEFAULT, "partial_rotary_factor": 1.0},
            "sliding_window": None,
            "original_max_position_embeddings": POSITIONS,
        },
    ),
    "gemma2": ("gemma2", {"rope_parameters": _DEFAULT, **_SLIDING, **_GEMMA}),
    "gemma3": (
        "gemma3_text",
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 500000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
            **_SLIDING,
            **_GEMMA,
        },
    ),
    "qwen2": ("qwen2", {"rope_parameters": _DEFAULT, "hidden_size": 128}),  # vLLM ignores head_dim in this family
    "qwen3": ("qwen3", {"rope_parameters": _DEFAULT}),
    "qwen3_moe": ("qwen3_moe", {"rope_parameters": _DEFAULT, **_MOE}),
    "olmo2": ("olmo2", {"rope_parameters": _DEFAULT}),
    "olmo3": ("olmo3", {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}, **_SLIDING}),
    **GATED,
}
"""Name -> (transformers' model type, what its config has beside the common sizes)."""


def config_of(family: str) -> Any:
    """transformers' config object of a family."""
    from transformers import AutoConfig

    kind, more = {**FAMILIES, **HYBRID}[family]
    return AutoConfig.for_model(kind, **{**_COMMON, **copy.deepcopy(more)})


def write(family: str, directory: Path, tokenizer: Callable[[Path], None] | None = None) -> Path:
    """Write a random checkpoint of `family` into `directory`. `tokenizer`: writes the tokenizer's files there."""
    if "vllm.model_executor.models.transformers" in sys.modules:
        # An engine of this process may have run the family through transformers. vLLM then has changed transformers'
        # own class, which works inside an engine only.
        code = "import sys, pathlib; from tests.checkpoints import families"
        call = "families.write_model(sys.argv[1], pathlib.Path(sys.argv[2]))"
        subprocess.run([sys.executable, "-c", f"{code}; {call}", family, str(directory)], cwd=ROOT, check=True)
    else:
        write_model(family, directory)
    if tokenizer is not None:
        tokenizer(directory)
    return directory


def write_model(family: str, directory: Path) -> None:
    """Write config and random weights of `family` into `directory`."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    if family == "step3p5":
        step.write(directory, {**_COMMON, **FAMILIES[family][1]})
        return
    model = AutoModelForCausalLM.from_config(config_of(family), dtype=torch.float32)
    model.generation_config.eos_token_id = 1
    model.save_pretrained(directory)


def logprobs(
    directory: Path,
    ids: Sequence[int],
    rope: Mapping[str, Any] | None = None,
    dtype: str = "float32",
    change: Callable[[Any], None] | None = None,
) -> np.ndarray:
    """transformers' log-probabilities of the token after every position of `ids`: (len(ids), vocabulary), nats.

    `rope`: replaces config.json's `rope_parameters`; for a config with parameters per layer type, those of the full
    attention layers, the others are kept. None: the checkpoint's own. `dtype`: of weights and arithmetic. `change`:
    alters the loaded model, to see what a defect does.
    """
    import torch

    with torch.inference_mode():
        model = loaded(directory, rope).to(getattr(torch, dtype))
        if change is not None:
            change(model)
        logits = model(torch.tensor([list(ids)])).logits[0].double()
    return torch.log_softmax(logits, dim=-1).numpy()


def loaded(directory: Path, rope: Mapping[str, Any] | None = None) -> Any:
    """transformers' model of a folder, with eager attention; `rope` as in `logprobs`."""
    from transformers import AutoConfig, AutoModelForCausalLM

    if step.is_written(directory):
        assert rope is None
        return step.loaded(directory)
    config = AutoConfig.from_pretrained(directory)
    if rope is not None:
        own = config.rope_parameters
        config.rope_parameters = {**own, "full_attention": dict(rope)} if "full_attention" in own else dict(rope)
        config.max_position_embeddings = max(config.max_position_embeddings, 4 * POSITIONS)
    return AutoModelForCausalLM.from_pretrained(directory, config=config, attn_implementation="eager").eval()


def gates_and_sinks(family: str, directory: Path, ids: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """transformers' mean gate, and mean attention on the first token over all queries: (layers with attention, heads).

    The gate is computed here from the output of the module that has its logits.
    """
    import torch
    import torch.nn.functional as F

    model, means = loaded(directory), []

    def per_head(output: torch.Tensor) -> torch.Tensor:  # [query | gate] of every head
        return torch.sigmoid(output[0].view(len(ids), 4, 2, 32)[:, :, 1])

    def separate(output: torch.Tensor) -> torch.Tensor:
        logits = output[0].view(len(ids), 4, -1)
        return F.softplus(logits) if family == "laguna" else torch.sigmoid(logits)

    name = {"afmoe": "gate_proj", "laguna": "g_proj", "step3p5": "g_proj"}.get(family, "q_proj")
    values = per_head if name == "q_proj" else separate
    for path, module in model.named_modules():
        if path.endswith(f"self_attn.{name}"):
            module.register_forward_hook(lambda _m, _i, output: means.append(values(output).mean(dim=(0, 2))))
    with torch.inference_mode():
        attentions = model(torch.tensor([list(ids)]), output_attentions=True).attentions
    sinks = [weights[0, :, :, 0].mean(dim=-1) for weights in attentions if weights is not None]
    return torch.stack(means).numpy(), torch.stack(sinks).numpy()

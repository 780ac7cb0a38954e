"""A gated Qwen3-MoE as a vLLM model class: the dense model's gated attention before vLLM's own mixture of experts.

The paper's main model is of this form (section 3.1: 15B parameters, 2.54B of them active for a token).
"""

from __future__ import annotations

from typing import Any, ClassVar

from vllm.compilation.decorators import support_torch_compile
from vllm.config import VllmConfig
from vllm.model_executor.models.qwen3_moe import (
    Qwen3MoeDecoderLayer,
    Qwen3MoeForCausalLM,
    Qwen3MoeMLP,
    Qwen3MoeModel,
    Qwen3MoeSparseMoeBlock,
)
from vllm.model_executor.models.utils import extract_layer_index

from harness.gated.model import GatedCausalLM, GatedLayer
from harness.models.layout import has_experts


class GatedQwen3MoeDecoderLayer(GatedLayer, Qwen3MoeDecoderLayer):
    """A layer whose MLP is a mixture of experts, or SwiGLU where config.json says so."""

    def __init__(self, vllm_config: VllmConfig, prefix: str = "") -> None:
        config = vllm_config.model_config.hf_config
        self._build(config, vllm_config.cache_config, vllm_config.quant_config, prefix)
        at = f"{prefix}.mlp"
        self.mlp: Any
        if has_experts(config.to_dict(), extract_layer_index(prefix)):
            self.mlp = Qwen3MoeSparseMoeBlock(vllm_config=vllm_config, prefix=at)
        else:
            self.mlp = Qwen3MoeMLP(config.hidden_size, config.intermediate_size, config.hidden_act, prefix=at)


@support_torch_compile
class GatedQwen3MoeModel(Qwen3MoeModel):
    """Embedding, decoder layers and final norm: (T,) token ids -> (T, E) hidden states."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix, decoder_layer_type=GatedQwen3MoeDecoderLayer)


class GatedQwen3MoeForCausalLM(GatedCausalLM, Qwen3MoeForCausalLM):
    """A Qwen3-MoE with a gate, any of the paper's, its rows in q_proj packed as in the authors' dense models."""

    supports_lora: ClassVar[bool] = False  # type: ignore[assignment]
    make_empty_intermediate_tensors: Any

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        self._build(vllm_config, prefix, GatedQwen3MoeModel)
        blocks = [m for m in self.model.modules() if isinstance(m, Qwen3MoeSparseMoeBlock)]
        if not blocks:
            raise ValueError("config.json says qwen3_moe, but no layer has experts: set model_type to qwen3")
        # What vLLM's interface `MixtureOfExperts` promises; its own class derives it from the last such layer.
        self.moe_layers = [block.experts for block in blocks]
        self.num_moe_layers, self.num_expert_groups, self.num_shared_experts = len(blocks), 1, 0
        for name in ("logical", "physical", "local_physical", "routed", "redundant"):
            setattr(self, f"num_{name}_experts", getattr(blocks[-1], f"n_{name}_experts"))

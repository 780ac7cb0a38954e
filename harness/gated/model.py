"""The authors' Qwen3 with an attention output gate, as a vLLM model class.

It differs from vLLM's Qwen3 in the attention block, in optional norms, and in the loader, which refuses a checkpoint
with missing or unexpected tensors (a model without its gate still writes fluent text, so nobody would notice).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

import torch
from torch import nn
from vllm.compilation.decorators import support_torch_compile
from vllm.config import CacheConfig, VllmConfig
from vllm.distributed import get_pp_group
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.quantization import QuantizationConfig
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.models.qwen2 import Qwen2MLP, Qwen2Model
from vllm.model_executor.models.qwen3 import Qwen3DecoderLayer, Qwen3ForCausalLM
from vllm.model_executor.models.utils import AutoWeightsLoader, PPMissingLayer, maybe_prefix

from harness.gated.attention import GatedAttention
from harness.gated.variant import VariantAttention, renamed
from harness.models.layout import Layout, tensor_mismatch
from harness.models.variant import Variant


class GatedLayer(nn.Module):
    """What the decoder layers of our model classes share: gated attention and norms. Mixed into vLLM's own layer class.

    Pre-norm: attention, then the MLP, with a norm on each one's output where `sandwich_norm` is set.
    """

    mlp: Any

    def _build(
        self, config: Any, cache_config: CacheConfig | None, quant_config: QuantizationConfig | None, prefix: str
    ) -> None:
        """Everything but the MLP. Replaces the own `__init__` of vLLM's layer class, which would register a second
        attention under the same name.
        """
        nn.Module.__init__(self)
        if quant_config is not None:
            raise ValueError("quantised gated checkpoints are not supported: load the unquantised weights")
        flags = config.to_dict()
        self.hidden_size = config.hidden_size
        variant = Variant.from_config(flags)
        settings = {
            "hidden_size": config.hidden_size,
            "rope_parameters": config.rope_parameters,
            "max_position": config.max_position_embeddings,
            "rms_norm_eps": config.rms_norm_eps,
            "qkv_bias": bool(flags.get("qkv_bias", False)),  # like the authors' code, ignore attention_bias
            "use_qk_norm": bool(flags.get("use_qk_norm", True)),
            "cache_config": cache_config,
            "prefix": f"{prefix}.self_attn",
        }
        layout = Layout.from_config(flags)
        attention: Any  # one of the two: each registers its attention layer under the same name
        if variant:
            attention = VariantAttention(layout, variant=variant, config=flags, **settings)
        else:
            attention = GatedAttention(layout, **settings)
        self.self_attn = attention
        self.input_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.sandwich = variant.sandwich_norm
        if self.sandwich:
            self.attn_output_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
            self.mlp_output_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(
        self, positions: torch.Tensor, hidden_states: torch.Tensor, residual: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(T,) positions, (T, E) hidden states and residual -> (T, E) and (T, E), whose sum is the residual stream."""
        if not self.sandwich:
            return super().forward(positions, hidden_states, residual)
        if residual is None:
            residual, hidden_states = hidden_states, self.input_layernorm(hidden_states)
        else:
            hidden_states, residual = self.input_layernorm(hidden_states, residual)
        hidden_states = self.attn_output_layernorm(self.self_attn(positions=positions, hidden_states=hidden_states))
        hidden_states, residual = self.post_attention_layernorm(hidden_states, residual)
        return self.mlp_output_layernorm(self.mlp(hidden_states)), residual


class GatedQwen3DecoderLayer(GatedLayer, Qwen3DecoderLayer):
    """A layer whose MLP is SwiGLU."""

    def __init__(
        self,
        config,
        cache_config: CacheConfig | None = None,
        quant_config: QuantizationConfig | None = None,
        prefix: str = "",
    ) -> None:
        self._build(config, cache_config, quant_config, prefix)
        self.mlp = Qwen2MLP(config.hidden_size, config.intermediate_size, config.hidden_act, prefix=f"{prefix}.mlp")


@support_torch_compile(
    dynamic_arg_dims={"input_ids": 0, "positions": -1, "intermediate_tensors": 0, "inputs_embeds": 0}
)
class GatedQwen3Model(Qwen2Model):
    """Embedding, decoder layers and final norm: (T,) token ids -> (T, E) hidden states."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix, decoder_layer_type=GatedQwen3DecoderLayer)


class GatedCausalLM(nn.Module):
    """What our model classes share: output matrix and a loader that misses no tensor. Mixed into vLLM's own class."""

    model: Any
    lm_head: Any
    make_empty_intermediate_tensors: Any

    def _build(self, vllm_config: VllmConfig, prefix: str, model_class: type[nn.Module]) -> None:
        """Replaces the own `__init__` of vLLM's class, which would build its own decoder. `model_class`: ours."""
        nn.Module.__init__(self)
        self.config = vllm_config.model_config.hf_config
        self.vllm_config = vllm_config
        self.quant_config = vllm_config.quant_config
        self.model = model_class(vllm_config=vllm_config, prefix=maybe_prefix(prefix, "model"))
        if get_pp_group().is_last_rank:
            self.lm_head = ParallelLMHead(
                self.config.vocab_size, self.config.hidden_size, prefix=maybe_prefix(prefix, "lm_head")
            )
            if self.config.tie_word_embeddings:
                self.lm_head = self.lm_head.tie_weights(self.model.embed_tokens)
        else:
            self.lm_head = PPMissingLayer()
        self.logits_processor = LogitsProcessor(self.config.vocab_size)
        self.make_empty_intermediate_tensors = self.model.make_empty_intermediate_tensors

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Load every tensor of the checkpoint; returns the names of the parameters that were loaded.

        Raises:
            ValueError: a tensor is missing, unexpected, or of another shape than the flags imply.
        """
        names: list[str] = []

        def record_names() -> Iterator[tuple[str, torch.Tensor]]:
            for name, tensor in weights:
                names.append(name)
                yield renamed(name), tensor

        loaded = AutoWeightsLoader(self).load_weights(record_names())
        if mismatch := tensor_mismatch(self.config.to_dict(), names):
            raise ValueError(f"{self.vllm_config.model_config.model}: {mismatch}")
        return loaded


class GatedQwen3ForCausalLM(GatedCausalLM, Qwen3ForCausalLM):
    """The authors' model in vLLM: gate none, headwise or elementwise, with or without q/k norm and `qkv_bias`."""

    # no release defines what a LoRA on the packed q_proj means
    supports_lora: ClassVar[bool] = False  # type: ignore[assignment]
    make_empty_intermediate_tensors: Any

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        self._build(vllm_config, prefix, GatedQwen3Model)

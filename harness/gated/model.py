"""The authors' Qwen3 with an attention output gate, as a vLLM model class.

Only what differs from vLLM's Qwen3 is written here: the attention block, and a loader that refuses a checkpoint with a
tensor too few or too many (a dropped gate would otherwise still produce fluent text).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import ClassVar

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
from harness.models.layout import Layout, gate_from_flags, tensor_mismatch


class GatedQwen3DecoderLayer(Qwen3DecoderLayer):
    """Pre-norm block: gated attention, then SwiGLU. The forward pass is Qwen3's; only the attention differs."""

    def __init__(
        self,
        config,
        cache_config: CacheConfig | None = None,
        quant_config: QuantizationConfig | None = None,
        prefix: str = "",
    ) -> None:
        nn.Module.__init__(self)  # not Qwen3DecoderLayer's: it would register a second attention under the same name
        if quant_config is not None:
            raise ValueError("quantised gated checkpoints are not supported: load the unquantised weights")
        flags = config.to_dict()
        self.hidden_size = config.hidden_size
        self.self_attn = GatedAttention(  # type: ignore[assignment]
            Layout(config.num_attention_heads, config.num_key_value_heads, config.head_dim, gate_from_flags(flags)),
            hidden_size=config.hidden_size,
            rope_parameters=config.rope_parameters,
            max_position=config.max_position_embeddings,
            rms_norm_eps=config.rms_norm_eps,
            qkv_bias=bool(flags.get("qkv_bias", False)),  # attention_bias is never read, as in the authors' code
            use_qk_norm=bool(flags.get("use_qk_norm", True)),
            cache_config=cache_config,
            prefix=f"{prefix}.self_attn",
        )
        self.mlp = Qwen2MLP(config.hidden_size, config.intermediate_size, config.hidden_act, prefix=f"{prefix}.mlp")
        self.input_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)


@support_torch_compile(
    dynamic_arg_dims={"input_ids": 0, "positions": -1, "intermediate_tensors": 0, "inputs_embeds": 0}
)
class GatedQwen3Model(Qwen2Model):
    """Embedding, decoder layers and final norm."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix, decoder_layer_type=GatedQwen3DecoderLayer)


class GatedQwen3ForCausalLM(Qwen3ForCausalLM):
    """The authors' model in vLLM: gate none, headwise or elementwise, with or without q/k norm and `qkv_bias`."""

    # a LoRA on the packed q_proj has no defined meaning
    supports_lora: ClassVar[bool] = False  # type: ignore[assignment]

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        nn.Module.__init__(self)
        self.config = vllm_config.model_config.hf_config
        self.vllm_config = vllm_config
        self.quant_config = vllm_config.quant_config
        self.model = GatedQwen3Model(vllm_config=vllm_config, prefix=maybe_prefix(prefix, "model"))  # type: ignore[assignment]
        if get_pp_group().is_last_rank:
            self.lm_head = ParallelLMHead(
                self.config.vocab_size, self.config.hidden_size, prefix=maybe_prefix(prefix, "lm_head")
            )
            if self.config.tie_word_embeddings:
                self.lm_head = self.lm_head.tie_weights(self.model.embed_tokens)
        else:
            self.lm_head = PPMissingLayer()  # type: ignore[assignment]
        self.logits_processor = LogitsProcessor(self.config.vocab_size)
        self.make_empty_intermediate_tensors = self.model.make_empty_intermediate_tensors

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Load every tensor of the checkpoint.

        Raises:
            ValueError: a tensor is missing, foreign, or of another shape than the flags imply.
        """
        seen: list[str] = []

        def recorded() -> Iterator[tuple[str, torch.Tensor]]:
            for name, tensor in weights:
                seen.append(name)
                yield name, tensor

        loaded = AutoWeightsLoader(self).load_weights(recorded())
        if mismatch := tensor_mismatch(self.config.to_dict(), seen):
            raise ValueError(f"{self.vllm_config.model_config.model}: {mismatch}")
        return loaded

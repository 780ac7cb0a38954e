"""Which models the probe cannot measure, as far as a checkpoint's files say: told before an engine starts. Pure.

What only the live model shows is refused there (`harness.probe.recorder`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from harness.models.kv_cache import is_latent

_SINK = re.compile(r"\.(sinks|attention_sink_bias)$")
"""Learned attention sinks, as GPT-OSS, Granite, Laguna and MiMo name them."""

_WITHOUT_ATTENTION = ("mamba", "mamba2", "falcon_mamba")


def why_not(config: Mapping[str, Any], tensors: Iterable[str]) -> str | None:
    """What in a model the probe cannot measure, with the evidence; None: nothing that the files show.

    `config`: config.json. `tensors`: names of the weights.
    """
    kind = f"model type {config.get('model_type')!r}"
    if is_latent(config):
        return f"it has latent attention (MLA), whose keys are not stored per head ({kind}; kv_lora_rank)"
    if (sink := next((name for name in tensors if _SINK.search(name)), None)) is not None:
        return f"it has a learned sink beside its keys ({sink})"
    if config.get("num_kv_shared_layers"):
        return f"some of its layers read another layer's keys ({kind}; num_kv_shared_layers)"
    if config.get("model_type") in _WITHOUT_ATTENTION:
        return f"it has no attention layers ({kind})"
    if len(counts := _head_counts(config)) > 1:
        return f"its layers have different numbers of heads ({kind}; {', '.join(map(str, sorted(counts)))})"
    return None


def _head_counts(config: Mapping[str, Any]) -> set[int]:
    """The numbers of query heads that config.json names."""
    own = config.get("num_attention_heads")
    counts = set(own) if isinstance(own, list) else {own}
    if isinstance(layers := config.get("num_attention_heads_per_layer"), list):  # Laguna; replaces the common number
        counts = set(layers)
    if isinstance(other := config.get("attention_other_setting"), Mapping):  # Step 3.5's layers with a sliding window
        counts |= {other.get("num_attention_heads", own)}
    return {count for count in counts if isinstance(count, int)}

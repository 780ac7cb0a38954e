"""The plugin's entry point (`vllm.general_plugins`). vLLM calls it in every process, workers included.

It registers the model classes, and a config parser that reads config.json as vLLM's own parser does and then points
gated checkpoints at our classes. Other checkpoints pass through unchanged. `trust_remote_code` is not needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.gated.watchdog import follow_parent
from harness.models.layout import (
    ARCHITECTURE,
    LAYOUT_KEY,
    MOE_ARCHITECTURE,
    is_moe,
    needs_our_model,
    our_architecture,
)
from harness.types import GatedevalError, GateLayout


def register() -> None:
    """Register the model classes and the config parser. Idempotent: vLLM may call it several times in one process."""
    follow_parent()
    from vllm import ModelRegistry
    from vllm.transformers_utils import config as vllm_config

    # Register by name: importing a class here would initialise the device in a process that may fork later.
    for architecture, module in ((ARCHITECTURE, "model"), (MOE_ARCHITECTURE, "moe")):
        if architecture not in ModelRegistry.get_supported_archs():
            ModelRegistry.register_model(architecture, f"harness.gated.{module}:{architecture}")
    parsers = vllm_config._CONFIG_FORMAT_TO_CONFIG_PARSER
    if not getattr(parsers["hf"], "reads_gates", False):
        parsers["hf"] = _gated_parser(parsers["hf"])


def _gated_parser(base: type) -> type:
    """A config parser that reads config.json as `base` does and gives gated checkpoints our model class."""

    class GatedConfigParser(base):
        reads_gates = True

        def parse(self, model: str | Path, trust_remote_code: bool, *args: Any, **kwargs: Any) -> tuple[dict, Any]:
            overrides = kwargs.get("hf_overrides")
            asked = overrides.get(LAYOUT_KEY) if isinstance(overrides, Mapping) else None
            config_dict, config = super().parse(model, trust_remote_code, *args, **kwargs)
            if asked is None and not needs_our_model(config_dict):
                return config_dict, config
            return config_dict, gated_config(model, config_dict, asked)

    return GatedConfigParser


def gated_config(model: str | Path, config_dict: dict[str, Any], gate_layout: GateLayout | None = None) -> Any:
    """A gated checkpoint's config.json as transformers' Qwen3Config or Qwen3MoeConfig, whatever `model_type` it has.

    `gate_layout`: where the gate rows are, if `hf_overrides` say it.

    Raises:
        GatedevalError: the weights beside config.json contradict its gate flags, or the gate layout.
    """
    from transformers import Qwen3Config, Qwen3MoeConfig

    from harness.models.checkpoint import inspect

    facts = dict(config_dict)
    if Path(model).is_dir():  # for a hub id there are no weights yet; the loader checks their shapes later
        facts = dict(inspect(model, gate_layout).config)
    elif gate_layout is not None or facts.get(LAYOUT_KEY) == "separate":
        raise GatedevalError(f"{model}: gate_layout needs the checkpoint's files here; download it and give its folder")
    kind, architecture = Qwen3MoeConfig if is_moe(facts) else Qwen3Config, our_architecture(facts)
    for key in ("auto_map", "model_type", "transformers_version"):
        facts.pop(key, None)
    facts["architectures"] = [architecture]
    facts.setdefault("head_dim", facts["hidden_size"] // facts["num_attention_heads"])
    config = kind(**facts)
    config.name_or_path = str(model)
    return config

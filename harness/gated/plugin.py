"""The plugin's entry point (`vllm.general_plugins`). vLLM calls it in every process, so workers know the model class.

It registers the model class, and a config parser that reads config.json as vLLM's own parser does and then points gated
checkpoints at our class. Other checkpoints pass through unchanged. `trust_remote_code` is not needed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.gated.watchdog import follow_parent
from harness.models.layout import ARCHITECTURE, needs_our_model


def register() -> None:
    """Register the model class and the config parser. Idempotent: vLLM may call it several times in one process."""
    follow_parent()
    from vllm import ModelRegistry
    from vllm.transformers_utils import config as vllm_config

    if ARCHITECTURE not in ModelRegistry.get_supported_archs():
        # Register by name: importing the class here would initialise the device in a process that may fork later.
        ModelRegistry.register_model(ARCHITECTURE, "harness.gated.model:GatedQwen3ForCausalLM")
    parsers = vllm_config._CONFIG_FORMAT_TO_CONFIG_PARSER
    if not getattr(parsers["hf"], "reads_gates", False):
        parsers["hf"] = _gated_parser(parsers["hf"])


def _gated_parser(base: type) -> type:
    """A config parser that reads config.json as `base` does and gives gated checkpoints our model class."""

    class GatedConfigParser(base):
        reads_gates = True

        def parse(self, model: str | Path, trust_remote_code: bool, *args: Any, **kwargs: Any) -> tuple[dict, Any]:
            config_dict, config = super().parse(model, trust_remote_code, *args, **kwargs)
            if not needs_our_model(config_dict):
                return config_dict, config
            return config_dict, gated_config(model, config_dict)

    return GatedConfigParser


def gated_config(model: str | Path, config_dict: dict[str, Any]) -> Any:
    """A gated checkpoint's config.json as transformers' Qwen3Config, whatever `model_type` the file has.

    Raises:
        GatedevalError: the weights beside config.json contradict its gate flags.
    """
    from transformers import Qwen3Config

    from harness.models.checkpoint import inspect

    facts = dict(config_dict)
    if Path(model).is_dir():  # for a hub id there are no weights yet; the loader checks their shapes later
        facts = dict(inspect(model).config)
    for key in ("auto_map", "model_type", "transformers_version"):
        facts.pop(key, None)
    facts["architectures"] = [ARCHITECTURE]
    facts.setdefault("head_dim", facts["hidden_size"] // facts["num_attention_heads"])
    config = Qwen3Config(**facts)
    config.name_or_path = str(model)
    return config

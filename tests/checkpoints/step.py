"""A tiny Step 3.5 checkpoint in the form of the released ones. transformers has no class for its text alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

_NOT_READ = ("architectures", "model_type", "use_head_wise_attn_gate", "torch_dtype")


def write(directory: Path, facts: Mapping[str, Any]) -> None:
    """Write config.json and random weights. `facts`: entries of config.json."""
    import torch
    from safetensors.torch import save_file

    directory.mkdir(parents=True, exist_ok=True)
    named = {"architectures": ["Step3p5ForCausalLM"], "model_type": "step3p5", "torch_dtype": "float32"}
    tensors = {f"model.{name}": tensor for name, tensor in _decoder(facts).state_dict().items()}
    tensors["lm_head.weight"] = torch.randn(facts["vocab_size"], facts["hidden_size"]) * facts["initializer_range"]
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps({**facts, **named}))


def is_written(directory: Path) -> bool:
    """Whether a folder holds such a checkpoint."""
    return bool(json.loads((directory / "config.json").read_text()).get("model_type") == "step3p5")


def loaded(directory: Path) -> Any:
    """A module that answers as transformers' classes with an output matrix do: `.logits` and `.attentions`."""
    import torch
    from safetensors.torch import load_file

    class Step(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            tensors = load_file(directory / "model.safetensors")
            self.head = tensors.pop("lm_head.weight")
            self.model = _decoder(json.loads((directory / "config.json").read_text()))
            self.model.load_state_dict({name.removeprefix("model."): tensor for name, tensor in tensors.items()})

        def forward(self, ids: torch.Tensor, **more: Any) -> Any:
            out = self.model(ids, **more)
            return SimpleNamespace(logits=out.last_hidden_state @ self.head.T, attentions=out.attentions)

    return Step().eval()


def _decoder(facts: Mapping[str, Any]) -> Any:
    import torch
    from transformers.models.step3p7.configuration_step3p7 import Step3p7TextConfig
    from transformers.models.step3p7.modeling_step3p7 import Step3p7TextModel

    config = Step3p7TextConfig(**{key: value for key, value in facts.items() if key not in _NOT_READ})
    config._attn_implementation = "eager"
    return Step3p7TextModel._from_config(config, dtype=torch.float32)

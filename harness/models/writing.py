"""Write a checkpoint folder in the format of the released models."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.models.checkpoint import inspect
from harness.types import GatedevalError


def write_checkpoint(target: Path, config: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
    """Write config.json and model.safetensors into `target` (created if needed), then read both back with `inspect`.

    Raises:
        GatedevalError: config and tensors do not belong together.
    """
    from safetensors.torch import save_file

    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise GatedevalError(f"{target}: this folder cannot be made ({error.strerror}); give another one") from error
    save_file({k: v.contiguous() for k, v in tensors.items()}, target / "model.safetensors", metadata={"format": "pt"})
    (target / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    inspect(target)

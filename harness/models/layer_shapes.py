"""Whether the tensors of all decoder layers belong to one model: equal shapes, and no gate under two names. Pure.

The gate and its layout are read off the first layer. vLLM's own Qwen3 narrows a q_proj with more rows without an
error, and of two gate matrices that mean the same one it keeps the one that it reads last.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from harness.models.headers import Tensor
from harness.models.layout import Layout
from harness.models.variant import canonical
from harness.types import GatedevalError

_LAYER = re.compile(r"^(model\.layers\.)(\d+)\.(.+)$")


def check_layers(path: Path, layout: Layout, hidden_size: int, tensors: Mapping[str, Tensor]) -> None:
    """Compare every layer's tensors with config.json's numbers and with the first layer that has them.

    Raises:
        GatedevalError: a tensor of another shape; two gate matrices in one attention block.
    """
    heads, kv_rows = layout.num_heads * layout.head_dim, layout.num_kv_heads * layout.head_dim
    expected: dict[str, tuple[tuple[int, ...], str]] = {
        f"self_attn.{name}.weight": (shape, f"config.json means {list(shape)}")
        for name, shape in (
            ("q_proj", (layout.q_rows, hidden_size)),
            ("k_proj", (kv_rows, hidden_size)),
            ("v_proj", (kv_rows, hidden_size)),
            ("o_proj", (hidden_size, heads)),
        )
    }
    seen: dict[str, str] = {}
    for name, tensor in sorted(tensors.items(), key=lambda item: _order(item[0])):
        found = _LAYER.match(canonical(name))
        if found is None:
            continue
        if (other := seen.setdefault(found.group(0), name)) != name:
            raise GatedevalError(
                f"{path}: {other} and {name} are both a gate's matrix, and only one can be meant; remove one of them"
            )
        rest = found.group(3)
        if rest not in expected:
            expected[rest] = tensor.shape, f"{name} has {list(tensor.shape)}"
        shape, source = expected[rest]
        if tensor.shape != shape:
            raise GatedevalError(
                f"{path}: {name} in {tensor.file or 'the weights'} has the shape {list(tensor.shape)}, but {source};"
                " correct config.json or get the right weights"
            )


def _order(name: str) -> tuple[int, str]:
    """Layer by layer, as people count them."""
    found = _LAYER.match(name)
    return (int(found.group(2)) if found else -1), name

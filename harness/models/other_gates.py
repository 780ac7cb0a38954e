"""Gates of other model families than the paper's: which layout a checkpoint has, with the evidence. Pure.

vLLM's own class of such a family computes the gate; gatedeval says which one it is. A layout is named only where the
model type and the shapes of the tensors agree. The width W of the attention output (heads x head_dim) is read off
o_proj, which has W columns:

    per head   q_proj has 2·W rows: for each head, its query rows and then its gate rows (elementwise)
    separate   a matrix of its own with W rows (elementwise) or one row per head (headwise)

The activation is the one in the class's code: most take the sigmoid, Laguna softplus, which has no upper bound.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.models.gate_layout import CONVERTIBLE, shapes
from harness.models.headers import Tensor
from harness.models.layout import ELEMENTWISE_FLAG, HEADWISE_FLAG, QWEN_TYPES, gate_from_flags
from harness.models.variant import GATE_MATRICES
from harness.types import Gate, GatedevalError

_PER_HEAD = (
    "qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text", "qwen4_exp", "qwen4_exp_text",
)  # fmt: skip
_SEPARATE = {
    "afmoe": "gate_proj", "step3p5": "g_proj", "step3p7": "g_proj", "laguna": "g_proj",
    "muse_glimmer": "gate_proj", "muse_glimmer_text": "gate_proj", "k2_horizon": "gate_proj",
}  # fmt: skip
NATIVE = (*_PER_HEAD, *_SEPARATE)
"""Model types whose gate vLLM's own class computes."""
OWN_ROPE = ("step3p5", "step3p7")
"""Model types whose vLLM class ignores `rope_parameters`: it reads rope_theta and rope_scaling, per layer."""

_PLAIN = (
    "llama", "mistral", "mixtral", "qwen2_moe", "qwen3_moe", "olmo2", "olmo3", "gemma", "gemma2", "gemma3_text",
)  # fmt: skip
"""Types whose vLLM class has no gate and reads W rows of q_proj, however many the file has."""


_W_G = re.compile(r"\.(self_attn|attention|attn)\.w_g\.weight$")
"""OLMo-core's name of a gate's matrix."""


@dataclass(frozen=True)
class OtherGate:
    """A gate that vLLM's own class computes. `kind`: headwise or elementwise. `evidence`: layout, tensor and shapes."""

    kind: Gate
    evidence: str


def find_other_gate(path: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> OtherGate | None:
    """The gate of a checkpoint that is no Qwen2 or Qwen3. None: the family has none, or is not known here.

    Raises:
        GatedevalError: the checkpoint has the paper's flags or gate rows, in a family where vLLM's class knows neither;
            or the shapes contradict the family's own flag.
    """
    kind = str(config.get("model_type"))
    if gate_from_flags(config) != "none":
        flag = HEADWISE_FLAG if config.get(HEADWISE_FLAG) else ELEMENTWISE_FLAG
        where = "inside a multimodal wrapper" if kind in QWEN_TYPES else f"and the model type is {kind!r}"
        raise GatedevalError(
            f"{path / 'config.json'}: {flag} is set, {where}. Only in a Qwen2 or Qwen3 language model does gatedeval"
            " know what the flag means; vLLM's class for this checkpoint ignores it. Remove the flag if the weights"
            f" have no gate{_say_which(kind, tensors)}"
        )
    if (name := next((n for n in tensors if _W_G.search(n)), None)) is not None and kind not in NATIVE:
        advice = _say_which(kind, tensors) if ".self_attn." in name else "; convert it to the tensor names of a Qwen3"
        raise GatedevalError(
            f"{path}: {name} {list(tensors[name].shape)} in {tensors[name].file or 'the weights'} is a separate gate"
            f" matrix, as OLMo-core names it (model type {kind}), and vLLM's class for it has no gate{advice}"
        )
    for name, output in tensors.items():
        if not name.endswith("self_attn.o_proj.weight") or len(output.shape) != 2:
            continue
        found = _of_layer(path, kind, config, tensors, name.removesuffix("o_proj.weight"), output.shape[1])
        if found is not None:
            return found
    return None


def limits(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """What the installed vLLM cannot do with a checkpoint of these families, with the evidence; "" for nothing."""
    kind, found = str(config.get("model_type")), []
    if kind in _PER_HEAD and any(".linear_attn." in name for name in tensors):
        found.append(
            "on a CPU, linear-attention layers run in bfloat16 only (in other types it stops with 'CPU GDN attention"
            " requires BF16'): set dtype: bfloat16"
        )
    if kind.startswith("qwen3_5") and importlib.util.find_spec("torchvision") is None:
        found.append("its class imports torchvision, which is not installed")
    if kind == "laguna" and any(name.endswith("experts.e_score_correction_bias") for name in tensors):
        found.append(
            "its class does not load the router's e_score_correction_bias, so the engine refuses the checkpoint"
        )
    return "; ".join(found)


def _file(tensor: Tensor) -> str:
    return f", in {tensor.file}" if tensor.file else ""


def _say_which(kind: str, tensors: Mapping[str, Tensor]) -> str:
    """What to do where the family's decoder is one that our classes compute; "" for others."""
    if kind not in CONVERTIBLE:
        return ""
    return (
        f". If they have one, say where its rows are: `gate_layout: per-group`, `per-head` or `separate` at the model"
        f" in the config (`--gate-layout` for check and convert); no shape can say it ({shapes(tensors)})"
    )


def _of_layer(
    path: Path, kind: str, config: Mapping[str, Any], tensors: Mapping[str, Tensor], layer: str, width: int
) -> OtherGate | None:
    """The gate of one attention layer. `layer`: what the names of its tensors begin with. `width`: W."""
    query = tensors.get(f"{layer}q_proj.weight")
    if query is not None and kind in _PLAIN and query.shape[0] != width:
        raise GatedevalError(
            f"{path}: {layer}q_proj.weight has {query.shape[0]} rows, and o_proj has {width} columns. vLLM's class for"
            f" {kind!r} would read the first {width} rows as queries and drop the others, which may be a gate; this"
            f" checkpoint cannot be evaluated{_say_which(kind, tensors)}"
        )
    if kind in _PLAIN:
        for name in (f"{layer}{matrix}.weight" for matrix in GATE_MATRICES):
            if name in tensors:
                raise GatedevalError(
                    f"{path}: {name} {list(tensors[name].shape)} in {tensors[name].file or 'the weights'} looks like a"
                    f" separate gate matrix, and vLLM's class for {kind!r} has no gate{_say_which(kind, tensors)}"
                )
    if query is not None and kind in _PER_HEAD:
        flag = config.get("attn_output_gate", True)
        if query.shape[0] != (2 * width if flag else width):
            raise GatedevalError(
                f"{path}: attn_output_gate is {flag!r}, but {layer}q_proj.weight has {query.shape[0]} rows and o_proj"
                f" has {width} columns; config.json and the weights do not belong together"
            )
        evidence = f"model type {kind}; {layer}q_proj.weight has {query.shape[0]} rows = 2 x {width}{_file(query)}"
        return OtherGate("elementwise", f"per head [query | gate] ({evidence}); sigmoid") if flag else None
    name = f"{layer}{_SEPARATE.get(kind)}.weight"
    gate = tensors.get(name)
    if gate is None:
        return None
    rows, head_dim = gate.shape[0], config.get("head_dim")
    activation = "softplus" if kind == "laguna" else "sigmoid"
    if kind == "k2_horizon":
        activation = str(config.get("gate_func") or "unknown activation")
    evidence = f"model type {kind}; {name} has {rows} rows = {width}"
    if rows == width:
        return OtherGate("elementwise", f"separate matrix ({evidence}{_file(gate)}); {activation}")
    if isinstance(head_dim, int) and rows * head_dim == width:
        return OtherGate("headwise", f"separate matrix ({evidence} / {head_dim}{_file(gate)}); {activation}")
    raise GatedevalError(
        f"{path}: {name} has {rows} rows, which is neither one per head nor one per column of o_proj ({width})"
    )

"""The paper's other gates (arXiv 2505.06708, section 2.2, Tables 1 and 3): position, granularity, activation and the
rest.

config.json describes them with `attn_gate: {...}`, `sdpa_norm` and `sandwich_norm`. The released checkpoints' two flags
are the shorthands for `sdpa_output`, `headwise` or `elementwise`, with gate rows packed into q_proj; every gate that
`attn_gate` describes has tensors of its own. Pure: imports neither torch nor vLLM.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from harness.types import GatedevalError, did_you_mean

Position = Literal["sdpa_output", "value", "key", "query", "attn_output"]
Granularity = Literal["headwise", "elementwise"]
Mode = Literal["multiply", "add"]
Activation = Literal["sigmoid", "silu", "ns_sigmoid", "identity"]

KEYS = ("attn_gate", "sdpa_norm", "sandwich_norm")
"""Keys of config.json that only our model class understands."""

PAPER_NAMES = {"sdpa_output": "G1", "value": "G2", "key": "G3", "query": "G4", "attn_output": "G5"}
"""The paper's names of the positions (Figure 1)."""


@dataclass(frozen=True)
class AttnGate:
    """A gate with tensors of its own.

    `position`: what is gated: each head's attention output before o_proj (`sdpa_output`), a projection before q/k norm
    and rotation (`value`, `key`, `query`), or the attention block's output (`attn_output`). `granularity`: one gate
    value per head, or one per element. `shared`: all heads have the same gate values. `mode`: Y * s or Y + s.
    `activation`: what makes s of the logits; `ns_sigmoid` is 0.5 + 0.5 sigmoid. `input_dependent`: logits are a
    projection of the block's pre-normed input; otherwise they are learned constants. `sdpa_norm`: an RMSNorm on each
    head's attention output, before a gate there.

    Raises:
        GatedevalError: a combination that is not defined.
    """

    position: Position = "sdpa_output"
    granularity: Granularity = "elementwise"
    shared: bool = False
    mode: Mode = "multiply"
    activation: Activation = "sigmoid"
    input_dependent: bool = True
    sdpa_norm: bool = False

    def __post_init__(self) -> None:
        if self.position == "attn_output" and (self.granularity == "headwise" or self.shared):
            which = "granularity headwise" if self.granularity == "headwise" else "shared"
            raise GatedevalError(
                f"attn_gate: position attn_output has no heads, so {which} is not defined there; use elementwise, not"
                " shared"
            )

    def heads(self, num_heads: int, num_kv_heads: int) -> int:
        """How many heads have gate values of their own; 1 for a shared gate, and for `attn_output`, which has none."""
        if self.shared or self.position == "attn_output":
            return 1
        return num_kv_heads if self.position in ("value", "key") else num_heads

    def width(self, head_dim: int, hidden_size: int) -> int:
        """Gate values of one such head: 1 headwise, head_dim elementwise; hidden_size for `attn_output`."""
        if self.position == "attn_output":
            return hidden_size
        return 1 if self.granularity == "headwise" else head_dim

    def rows(self, config: Mapping[str, Any]) -> int:
        """Rows of `gate_proj.weight`, or values of `gate_bias`."""
        heads = self.heads(config["num_attention_heads"], config["num_key_value_heads"])
        return heads * self.width(config["head_dim"], config["hidden_size"])

    @property
    def label(self) -> str:
        """The gate in the paper's words, in one line: "value (G2), elementwise, multiplied, sigmoid"."""
        words = [f"{self.position} ({PAPER_NAMES[self.position]})", self.granularity]
        if self.shared:
            words.append("shared by all heads")
        words += ["multiplied" if self.mode == "multiply" else "added", self.activation]
        if not self.input_dependent:
            words.append("input-independent")
        if self.sdpa_norm:
            words.append("after an RMSNorm" if self.position == "sdpa_output" else "with an RMSNorm on the SDPA output")
        return ", ".join(words)


@dataclass(frozen=True)
class Variant:
    """What our model class computes beyond Qwen3 and the released gates.

    `gate`: None without `attn_gate`. `sdpa_norm`: RMSNorm of each head's attention output. `sandwich_norm`: RMSNorm
    on the output of both blocks, before their residual additions.
    """

    gate: AttnGate | None = None
    sdpa_norm: bool = False
    sandwich_norm: bool = False

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Variant:
        """The variant that a config.json describes; `Variant()` where it has none of `KEYS`.

        Raises:
            GatedevalError: an unknown key or value, or a combination that is not defined.
        """
        for key in ("sdpa_norm", "sandwich_norm"):
            if not isinstance(config.get(key, False), bool | None):
                raise GatedevalError(f"config.json: {key} should be true or false, is {config[key]!r}")
        norm, sandwich = bool(config.get("sdpa_norm")), bool(config.get("sandwich_norm"))
        described = config.get("attn_gate")
        if described is None:
            return cls(None, norm, sandwich)
        for flag in ("headwise_attn_output_gate", "elementwise_attn_output_gate"):
            if config.get(flag):
                raise GatedevalError(f"config.json: {flag} and attn_gate both describe a gate; keep one of them")
        gate = _attn_gate(described)
        return cls(gate, norm or gate.sdpa_norm, sandwich)

    def __bool__(self) -> bool:
        return self != Variant()

    def tensors(self, config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
        """Tensors of one layer that Qwen3 does not have: name below `model.layers.i.` -> shape. `config` has head_dim
        and num_key_value_heads.
        """
        found: dict[str, tuple[int, ...]] = {}
        if not self:
            return found
        hidden = config["hidden_size"]
        if self.gate is not None:
            rows = self.gate.rows(config)
            if not self.gate.input_dependent:
                found["self_attn.gate_bias"] = (rows,)
            else:
                found["self_attn.gate_proj.weight"] = (rows, hidden)
                if config.get("qkv_bias"):
                    found["self_attn.gate_proj.bias"] = (rows,)
        if self.sdpa_norm:
            found["self_attn.sdpa_norm.weight"] = (config["head_dim"],)
        if self.sandwich_norm:
            found |= {f"{name}_output_layernorm.weight": (hidden,) for name in ("attn", "mlp")}
        return found

    def added_parameters(self, config: Mapping[str, Any]) -> int:
        """Parameters that the variant adds to all layers together ("Added Param" in the paper's Table 1)."""
        per_layer = 0
        for shape in self.tensors(config).values():
            size = 1
            for length in shape:
                size *= length
            per_layer += size
        return per_layer * int(config["num_hidden_layers"])

    @property
    def label(self) -> str:
        """The variant in one line; "none" for none."""
        words = [self.gate.label] if self.gate else []
        if self.sdpa_norm and not (self.gate and self.gate.sdpa_norm):
            words.append("RMSNorm on the SDPA output")
        if self.sandwich_norm:
            words.append("sandwich norm")
        return "; ".join(words) or "none"


GATE_MATRICES = ("gate_proj", "g_proj", "w_g")
"""Names of a gate's own matrix in the attention block: ours, and those that others give it."""


def canonical(name: str) -> str:
    """The name of a checkpoint's tensor in our classes: `self_attn.g_proj.weight` -> `self_attn.gate_proj.weight`."""
    for other in GATE_MATRICES[1:]:
        name = name.replace(f".self_attn.{other}.", ".self_attn.gate_proj.")
    return name


def has_variant_keys(config: Mapping[str, Any]) -> bool:
    """Whether config.json has a key that asks for something beyond Qwen3 and the released gates."""
    return config.get("attn_gate") is not None or bool(config.get("sdpa_norm")) or bool(config.get("sandwich_norm"))


def _attn_gate(described: Any) -> AttnGate:
    if not isinstance(described, Mapping):
        raise GatedevalError(f"config.json: attn_gate should be a mapping ({{position: ...}}), is {described!r}")
    known: dict[str, tuple[Any, ...]] = {
        "position": get_args(Position),
        "granularity": get_args(Granularity),
        "shared": (False, True),
        "mode": get_args(Mode),
        "activation": get_args(Activation),
        "input_dependent": (True, False),
        "sdpa_norm": (False, True),
    }
    assert set(known) == {f.name for f in fields(AttnGate)}
    for key, value in described.items():
        if key not in known:
            raise GatedevalError(f"config.json: attn_gate has no key {key!r}{did_you_mean(str(key), known)}")
        if not any(value is v or (isinstance(value, str) and value == v) for v in known[key]):
            choices = ", ".join(str(v).lower() if isinstance(v, bool) else v for v in known[key])
            raise GatedevalError(f"config.json: attn_gate.{key} {value!r} is not known; there are {choices}")
    return AttnGate(**described)

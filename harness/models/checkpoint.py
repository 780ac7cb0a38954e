"""What a checkpoint is: gate, attention layout, dtype, tensors, rope, fingerprint. Reads headers, loads no weights.

Both the flags in config.json and the shape of q_proj say which gate a checkpoint has. Where they disagree the
checkpoint is refused: under either reading the model would write fluent text and score wrong numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.config import ContextSetting
from harness.models.config_values import check_values, check_vocabulary
from harness.models.gate_layout import asked_layout, evidence, with_layout
from harness.models.headers import Tensor, read_tensors
from harness.models.hub import file_sha256
from harness.models.json_files import read_object
from harness.models.layer_shapes import check_layers
from harness.models.layout import (
    ELEMENTWISE_FLAG,
    HEADWISE_FLAG,
    LAYOUT_KEY,
    Layout,
    gate_from_flags,
    gate_from_rows,
    is_qwen,
    needs_our_model,
    our_architecture,
    tensor_mismatch,
)
from harness.models.other_gates import OWN_ROPE, OtherGate, find_other_gate
from harness.models.variant import GATE_MATRICES, Variant, canonical
from harness.rope import context
from harness.rope.tables import Rope
from harness.types import GatedevalError, GateLayout


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A checkpoint directory as read from its headers.

    `config`: config.json, with head_dim and num_key_value_heads filled in from the shapes where they are missing.
    `layout`: None for a model that is no Qwen-type decoder; vLLM runs such a model with its own class.
    `architecture`: the model class that vLLM must resolve to. `tensors`: headers by name. `wrapped`: config.json is a
    multimodal wrapper, and `config` is its `text_config`. `other_gate`: the gate that vLLM's own class of another
    family computes. `gate_layout`: the packing of the gate rows that the model's entry in a config names. `evidence`:
    where the gate rows are and what says so; None without a gate.
    """

    path: Path
    config: Mapping[str, Any]
    layout: Layout | None
    architecture: str
    tensors: Mapping[str, Tensor]
    weight_files: tuple[Path, ...]
    wrapped: bool = False
    other_gate: OtherGate | None = None
    gate_layout: GateLayout | None = None
    evidence: str | None = None

    @property
    def variant(self) -> Variant:
        """What the model computes beyond Qwen3 and the released gates; `Variant()` in other families."""
        return Variant.from_config(self.config) if self.layout else Variant()

    @property
    def gate(self) -> str:
        """none, headwise or elementwise; a gate that `attn_gate` describes in the paper's words."""
        if self.layout and self.variant.gate:
            return self.variant.gate.label
        if self.layout:
            return self.layout.gate
        return self.other_gate.kind if self.other_gate else "none"

    @property
    def parameters(self) -> int:
        """Number of stored weights."""
        return sum(t.size for t in self.tensors.values())

    @property
    def dtype(self) -> str:
        """The element type of most weights."""
        sizes: dict[str, int] = {}
        for tensor in self.tensors.values():
            sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.size
        return max(sizes, key=lambda k: sizes[k])

    @property
    def max_position_embeddings(self) -> int | None:
        """The checkpoint's own limit on positions, in tokens; None where config.json has none."""
        limit = self.config.get("max_position_embeddings")
        return limit if isinstance(limit, int) and limit > 0 else None

    @property
    def quantisation(self) -> str | None:
        """The quantisation method that config.json declares ("gptq", "awq", "compressed-tensors", ...), or None."""
        declared = self.config.get("quantization_config")
        return str(declared.get("quant_method") or "unnamed method") if isinstance(declared, Mapping) else None

    @property
    def embedding_rows(self) -> int | None:
        """Rows of the input embedding: one more than the largest token id that the model can read. None: not found."""
        rows = [t.shape[0] for name, t in self.tensors.items() if name.endswith("embed_tokens.weight") and t.shape]
        return rows[0] if len(rows) == 1 else None

    @property
    def rope(self) -> dict[str, Any]:
        """The config's rotary parameters (`rope_parameters`, formerly `rope_scaling`), rope_theta included."""
        declared = self.config.get("rope_parameters") or self.config.get("rope_scaling") or {}
        rope = dict(declared) if isinstance(declared, Mapping) else {"rope_scaling": declared}
        if "rope_theta" not in rope and "rope_theta" in self.config:
            rope["rope_theta"] = self.config["rope_theta"]
        return rope

    def rope_under(self, setting: ContextSetting) -> Rope | None:
        """The rotary encoding of this checkpoint under `setting`; of its full-attention layers, if types differ.

        None: the native setting of a model whose own encoding is vLLM's to compute (see `is_computable`).

        Raises:
            GatedevalError: the setting cannot be applied to this checkpoint (see `harness.rope.context.rope`).
        """
        if context.is_native(setting) and self.layout is None and not context.is_computable(self.config):
            return None
        return context.rope_of(setting, self.config)

    def rope_at_start(self, setting: ContextSetting) -> Rope | None:
        """What vLLM's own table encodes in an engine that was started under `setting` (`overrides_under`)."""
        if self.rope_under(setting) is None:
            return None
        return context.rope_at_start(setting, self.config, replaced=self.can_switch)

    def overrides_under(self, setting: ContextSetting) -> context.Overrides:
        """vLLM's arguments for `setting`.

        Raises:
            GatedevalError: the setting cannot be applied to this checkpoint.
        """
        if self.layout is None and not setting.rope_theta and not context.is_native(setting):
            context.check_theta_is_named(setting, self.config)
        if not context.is_native(setting) and self.config.get("model_type") in OWN_ROPE:
            raise GatedevalError(
                f"context {setting.label!r}: vLLM's class for {self.config['model_type']!r} reads rope keys of its own,"
                f" so the encoding of {self.path} cannot be replaced; use a native context"
            )
        context.rope_of(setting, self.config)  # factors that do not fit the model's dimensions
        overrides = context.overrides(setting, self.config, replaced=self.can_switch)
        if self.wrapped and overrides.hf_overrides:
            raise GatedevalError(
                f"context {setting.label!r}: {self.path} is a multimodal wrapper (text_config), whose rotary encoding"
                " cannot be replaced; use a native context, or the language model's own checkpoint"
            )
        return overrides

    @property
    def can_switch(self) -> bool:
        """Whether one engine may serve several settings: every table is computable. Else each needs its own engine."""
        return self.layout is not None or context.is_computable(self.config)

    def fingerprint(self) -> str:
        """sha256 over config.json and the bytes of every weight file: it changes when weights behind a path change."""
        digest = hashlib.sha256()
        for file in (self.path / "config.json", *self.weight_files):
            digest.update(f"{file.name}:{file_sha256(file)}\n".encode())
        if self.gate_layout is not None:  # the same rows, read in another way, are another model
            digest.update(f"gate_layout:{self.gate_layout}\n".encode())
        return digest.hexdigest()


def inspect(path: Path | str, gate_layout: GateLayout | None = None) -> Checkpoint:
    """Read a checkpoint directory's config and tensor headers and decide what it is.

    `gate_layout`: where the gate rows are, as the model's entry in a config says; None: config.json and the model type
    say it.

    Raises:
        GatedevalError: config.json or weights missing or unreadable, a value of the wrong kind in config.json, flags or
            a vocabulary that contradict the shapes, tensors missing, a gate layout that the shapes do not fit.
    """
    path = Path(path)
    raw = _read_config(path)
    check_values(path / "config.json", raw)
    config = text_config(raw)
    files, tensors = read_tensors(path)
    wrapped = config is not raw
    config, said_by = _with_asked_layout(path, config, tensors, gate_layout, wrapped=wrapped)
    if not wrapped and config.get("tie_word_embeddings") and _output_differs(tensors, files):
        config = {**config, "tie_word_embeddings": False}  # vLLM would use the stored matrix, so we say what it is
    layout = None
    if is_qwen(config) and not wrapped:
        if config.get("quantization_config") and gate_from_flags(config) != "none":
            raise GatedevalError(f"{path}: a quantised checkpoint with a gate is not supported; get the 16-bit weights")
        if not config.get("quantization_config"):  # packed weights have other shapes
            layout, config = _layout(path, config, tensors)
    if not wrapped and not config.get("quantization_config"):
        check_vocabulary(path, config, tensors)
    quantised = bool(config.get("quantization_config"))
    other_gate = find_other_gate(path, config, tensors) if layout is None and not quantised else None
    mismatch = None if wrapped else tensor_mismatch(config, tensors)
    if mismatch:
        raise GatedevalError(f"{path}: {mismatch} (config.json and the weights do not belong together)")
    named = (raw.get("architectures") or [str(raw.get("model_type"))])[0]
    if layout is not None:
        own = needs_our_model(config)
        named = our_architecture(config) if own else (config.get("architectures") or ["Qwen3ForCausalLM"])[0]
    return Checkpoint(
        path=path,
        config=config,
        layout=layout,
        architecture=named,
        tensors=tensors,
        weight_files=files,
        wrapped=wrapped,
        other_gate=other_gate,
        gate_layout=gate_layout,
        evidence=evidence(config, layout, tensors, said_by) if layout else other_gate.evidence if other_gate else None,
    )


def _with_asked_layout(
    path: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor], given: GateLayout | None, *, wrapped: bool
) -> tuple[Mapping[str, Any], str]:
    """The config (in our classes' terms where a gate layout is named), and what says where the gate rows are."""
    asked = asked_layout(path, config, given)
    kind = f"model type {config.get('model_type')}"
    if asked is None:
        flag = next((f for f in (HEADWISE_FLAG, ELEMENTWISE_FLAG) if config.get(f)), None)
        return config, f"{kind}, whose packing is the authors'; {flag}" if flag else f"{kind}; attn_gate in config.json"
    if wrapped:
        raise GatedevalError(f"{path}: gate_layout is {asked}, but this is a multimodal wrapper; remove gate_layout")
    where = f"{LAYOUT_KEY} in config.json" if config.get(LAYOUT_KEY) else "gate_layout of the model's config entry"
    return with_layout(path, config, tensors, asked), f"{kind}; {where}: {asked}"


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language model's part of a config.json: `text_config` of a multimodal wrapper, else the config itself."""
    inner = config.get("text_config")
    return dict(inner) if isinstance(inner, Mapping) else config


def _output_differs(tensors: Mapping[str, Tensor], files: tuple[Path, ...]) -> bool:
    """True if the files hold an output matrix whose bytes differ from the input embedding's."""
    from safetensors import safe_open

    names = ("lm_head.weight", "model.embed_tokens.weight")
    if any(name not in tensors for name in names) or files[0].suffix != ".safetensors":
        return False
    if tensors[names[0]] != tensors[names[1]]:
        return True
    found: dict[str, Any] = {}
    for file in files:
        with safe_open(file, framework="pt") as opened:
            found |= {name: opened.get_tensor(name) for name in names if name in opened.keys()}  # noqa: SIM118
    return not bool((found[names[0]] == found[names[1]]).all())


def _read_config(path: Path) -> dict[str, Any]:
    file = path / "config.json"
    if not file.is_file():
        hint = ""
        if path.is_dir() and (below := sorted(p.parent.name for p in path.glob("*/config.json"))):
            hint = f"; it has checkpoints below it: {', '.join(below[:6])} (give one as `subfolder:`)"
        raise GatedevalError(f"{file} does not exist: {path} is no checkpoint folder{hint}")
    return read_object(file)


def _layout(path: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> tuple[Layout, dict[str, Any]]:
    """The attention layout that flags and shapes agree on, and the config with head_dim filled in."""
    for key in ("hidden_size", "num_attention_heads", "num_hidden_layers"):
        if not isinstance(config.get(key), int):
            raise GatedevalError(f"{path / 'config.json'}: {key} is missing or no integer")
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    q_rows, k_rows = (_rows(path, tensors, f"model.layers.0.self_attn.{n}_proj.weight") for n in "qk")
    head_dim = config.get("head_dim") or k_rows // kv_heads
    gate = gate_from_flags(config)
    if k_rows != kv_heads * head_dim:
        raise GatedevalError(
            f"{path}: k_proj has {k_rows} rows, config.json says {kv_heads} KV heads of {head_dim}"
            f" ({kv_heads * head_dim})"
        )
    layout = Layout(heads, kv_heads, head_dim, gate, config.get(LAYOUT_KEY) or "per-group")
    if q_rows != layout.q_rows:
        implied = gate_from_rows(q_rows, heads, head_dim)
        meaning = f"which is a {implied} gate" if implied else "which is no known gate layout"
        if implied == "none" and any(f"model.layers.0.self_attn.{n}.weight" in tensors for n in GATE_MATRICES):
            meaning = "and the gate is a matrix of its own: say `gate_layout: separate`"
        raise GatedevalError(
            f"{path}: config.json's flags say gate {gate} ({layout.q_rows} rows in q_proj for {heads} heads of"
            f" {head_dim}), but q_proj has {q_rows} rows, {meaning}; correct the flags in config.json or get the"
            " right weights"
        )
    config = {**config, "head_dim": head_dim, "num_key_value_heads": kv_heads}
    _check_variant(path, config, tensors)
    check_layers(path, layout, config["hidden_size"], tensors)
    return layout, config


def _check_variant(path: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Refuse a gate variant whose description is not defined, or contradicts the shapes of its tensors."""
    try:
        expected = Variant.from_config(config).tensors(config)
    except GatedevalError as error:
        raise GatedevalError(f"{path}: {error}") from error
    renamed = {canonical(name): tensor for name, tensor in tensors.items()} if expected else {}
    for name, shape in expected.items():
        stored = renamed.get(f"model.layers.0.{name}")
        if stored is not None and tuple(stored.shape) != shape:
            raise GatedevalError(
                f"{path}: {name} has the shape {tuple(stored.shape)}, config.json's attn_gate means {shape}; correct"
                " config.json or get the right weights"
            )


def _rows(path: Path, tensors: Mapping[str, Tensor], name: str) -> int:
    if name not in tensors:
        raise GatedevalError(f"{path}: the weights hold no {name}: not a Qwen-type checkpoint, or incomplete")
    return tensors[name].shape[0]

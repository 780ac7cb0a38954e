"""Rewrite where a gated checkpoint's gate rows are: per group, per head, or in a matrix of their own. Exactly.

Rows are copied, never computed, so that there and back gives the same bits. The target has the source's shards, one
after the other in memory, and is complete or not there: it is written beside its place and renamed at the end.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.models.checkpoint import Checkpoint, inspect
from harness.models.layout import ELEMENTWISE_FLAG, HEADWISE_FLAG, LAYOUT_KEY, Layout, gate_flags, is_moe
from harness.models.variant import AttnGate, canonical
from harness.types import Gate, GatedevalError, GateLayout

if TYPE_CHECKING:
    import torch

    Read = Callable[[str], torch.Tensor]

_DROPPED = (LAYOUT_KEY, "attn_gate", HEADWISE_FLAG, ELEMENTWISE_FLAG, "auto_map")
_REWRITTEN = (".safetensors", ".bin", ".index.json", ".py", ".lock")
"""Endings of files that are written anew, or (code, other formats of the weights) would not fit the new layout."""


def convert(
    source: Path, target: Path, layout: GateLayout, given: GateLayout | None = None, say: Callable[[str], None] = print
) -> None:
    """Write the checkpoint `source` with its gate rows in another `layout` into the new folder `target`.

    `given`: the layout of the source, if its config.json does not say it. `say`: told of each file that is written.

    Raises:
        GatedevalError: `target` is not empty; the source has no gate that can be packed so, is of a family whose layout
            vLLM's own class fixes, or is refused by `inspect`.
    """
    checkpoint = inspect(source, given)
    gate = _packable(checkpoint)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise GatedevalError(f"{target} is {'not empty' if target.is_dir() else 'a file'}; give a new directory")
    if unreadable := [f for f in checkpoint.weight_files if f.suffix != ".safetensors"]:
        raise GatedevalError(f"{unreadable[0]}: only safetensors files can be converted; convert the checkpoint first")
    partial = target.with_name(f".{target.name}.partial")
    if partial.exists():  # of a command that was killed
        shutil.rmtree(partial)
    try:
        partial.mkdir(parents=True)
        _write(checkpoint, gate, layout, partial, say)
        inspect(partial)
        if target.exists():
            target.rmdir()
        partial.rename(target)
    except OSError as error:
        raise GatedevalError(f"{target}: cannot be written ({error.strerror or error}); give another folder") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _packable(checkpoint: Checkpoint) -> Gate:
    """The gate's granularity. Raises GatedevalError for a gate, or a family, whose rows have no other place to be."""
    path, layout = checkpoint.path, checkpoint.layout
    if layout is None:
        what = (
            f"vLLM's own class for {checkpoint.config.get('model_type')!r} reads one layout only"
            f" ({checkpoint.other_gate.evidence})"
            if checkpoint.other_gate
            else f"{checkpoint.architecture} is none of the families with a gate that gatedeval computes"
        )
        raise GatedevalError(f"{path}: {what}; Qwen- and Llama-type decoders can be converted")
    if layout.gate != "none":
        return layout.gate
    gate = checkpoint.variant.gate
    if gate is None:
        raise GatedevalError(f"{path} has no gate, so there is nothing to convert")
    plain = AttnGate(granularity=gate.granularity, sdpa_norm=gate.sdpa_norm)
    if gate != plain:
        raise GatedevalError(
            f"{path}: the gate is {gate.label}. Rows in q_proj can only mean a gate that multiplies each head's SDPA"
            " output by the sigmoid of a projection, for every head its own; other gates stay separate"
        )
    return gate.granularity


def _write(checkpoint: Checkpoint, gate: Gate, layout: GateLayout, target: Path, say: Callable[[str], None]) -> None:
    from safetensors import safe_open
    from safetensors.torch import save_file

    old = checkpoint.layout
    assert old is not None
    config = _config(checkpoint, gate, layout)
    new = Layout(
        old.num_heads, old.num_kv_heads, old.head_dim, gate, "per-head" if layout == "per-head" else "per-group"
    )
    stored = Layout(old.num_heads, old.num_kv_heads, old.head_dim, gate, old.packing) if old.gate != "none" else None
    files = {canonical(name): (name, tensor.file) for name, tensor in checkpoint.tensors.items()}
    weight_map: dict[str, str] = {}
    with ExitStack() as stack:
        opened = {f.name: stack.enter_context(safe_open(f, framework="pt")) for f in checkpoint.weight_files}

        def read(name: str) -> torch.Tensor:
            stored_name, file = files[name]
            return opened[file].get_tensor(stored_name)

        for number, file in enumerate(checkpoint.weight_files, start=1):
            tensors: dict[str, torch.Tensor] = {}
            for name in (n for n, (_, at) in files.items() if at == file.name):
                tensors |= _rewritten(name, read, stored, new if layout != "separate" else None)
            save_file({n: t.contiguous() for n, t in tensors.items()}, target / file.name, metadata={"format": "pt"})
            weight_map |= dict.fromkeys(tensors, file.name)
            say(f"{file.name} ({number} of {len(checkpoint.weight_files)})")
    if len(checkpoint.weight_files) > 1:
        total = sum(f.stat().st_size for f in target.glob("*.safetensors"))
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
        (target / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    (target / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    for file in sorted(checkpoint.path.iterdir()):
        if file.is_file() and file.name != "config.json" and not file.name.endswith(_REWRITTEN):
            shutil.copyfile(file, target / file.name)


def _rewritten(name: str, read: Read, old: Layout | None, new: Layout | None) -> dict[str, torch.Tensor]:
    """The tensors of the target that stand for the source's tensor `name`. None: a separate matrix."""
    import torch

    tensor = read(name)
    if ".self_attn.gate_proj." in name and old is None:
        return {} if new is not None else {name: tensor}  # packed together with q_proj
    if ".self_attn.q_proj." not in name:
        return {name: tensor}
    beside = name.replace(".q_proj.", ".gate_proj.")
    if old is not None:
        query, gate = tensor[torch.from_numpy(old.query_rows)], tensor[torch.from_numpy(old.gate_rows)]
    else:
        query, gate = tensor, read(beside)
    if new is None:
        return {name: query, beside: gate}
    packed = torch.empty(new.q_rows, *tensor.shape[1:], dtype=tensor.dtype)
    packed[torch.from_numpy(new.query_rows)] = query
    packed[torch.from_numpy(new.gate_rows)] = gate
    return {name: packed}


def _config(checkpoint: Checkpoint, gate: Gate, layout: GateLayout) -> dict[str, Any]:
    """config.json of the target: only what describes the gate differs, and `architectures`, which vLLM refuses without
    gatedeval.
    """
    given: Mapping[str, Any] = checkpoint.config
    config = {key: value for key, value in given.items() if key not in _DROPPED}
    described = gate_flags(gate, moe=is_moe(given))
    if checkpoint.variant.sdpa_norm:
        described["sdpa_norm"] = True
    if layout == "separate":
        described = {key: value for key, value in described.items() if key not in (HEADWISE_FLAG, ELEMENTWISE_FLAG)}
        described["attn_gate"] = {"position": "sdpa_output", "granularity": gate}
    elif layout == "per-head":
        described[LAYOUT_KEY] = layout
    return config | described

"""What is in this checkpoint: gate, layout, dtype, tensors, rope, tokenizer, fingerprint. Reads headers, loads nothing.

The checkpoint decides what it is: its config flags *and* the shape of its q_proj. Where the two disagree it is refused,
since either reading would give fluent text and wrong numbers.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.config import Model
from harness.data.files import sha256_of
from harness.models.layout import (
    ARCHITECTURE,
    ELEMENTWISE_FLAG,
    HEADWISE_FLAG,
    Layout,
    gate_from_flags,
    gate_from_rows,
    is_qwen,
    needs_our_model,
    tensor_mismatch,
)
from harness.types import Gate, GatedevalError

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json")
_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """One tensor's header: shape and element type ("float32", "bfloat16", ...)."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        """Number of elements."""
        n = 1
        for dim in self.shape:
            n *= dim
        return n


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A checkpoint directory as read from its headers.

    `config` is config.json with what only the shapes tell filled in (head_dim). `layout` is None for models that are
    no Qwen-type decoder: those are vLLM's business alone. `architecture` is the model class vLLM must resolve to.
    """

    path: Path
    config: Mapping[str, Any]
    layout: Layout | None
    architecture: str
    tensors: Mapping[str, Tensor]
    weight_files: tuple[Path, ...]

    @property
    def gate(self) -> str:
        """none, headwise or elementwise."""
        return self.layout.gate if self.layout else "none"

    @property
    def parameters(self) -> int:
        """Number of weights stored."""
        return sum(t.size for t in self.tensors.values())

    @property
    def dtype(self) -> str:
        """The element type most weights are stored in."""
        sizes: dict[str, int] = {}
        for tensor in self.tensors.values():
            sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.size
        return max(sizes, key=lambda k: sizes[k])

    @property
    def max_position_embeddings(self) -> int:
        """The checkpoint's own limit on positions, in tokens."""
        return int(self.config.get("max_position_embeddings", 2048))

    @property
    def rope(self) -> dict[str, Any]:
        """rope_theta and, where declared, the scaling, under their current name `rope_parameters`."""
        rope = dict(self.config.get("rope_parameters") or self.config.get("rope_scaling") or {})
        if "rope_theta" not in rope and "rope_theta" in self.config:
            rope["rope_theta"] = self.config["rope_theta"]
        return rope

    def fingerprint(self) -> str:
        """sha256 over config.json and the bytes of every weight file: other weights behind the same path differ."""
        digest = hashlib.sha256()
        for file in (self.path / "config.json", *self.weight_files):
            digest.update(f"{file.name}:{file_sha256(file)}\n".encode())
        return digest.hexdigest()


def file_sha256(file: Path) -> str:
    """sha256 of a file's bytes. A hub cache entry is a link to a blob named by its sha256: then nothing is read."""
    target = file.resolve()
    if file.is_symlink() and target.parent.name == "blobs" and re.fullmatch(r"[0-9a-f]{64}", target.name):
        return target.name
    return sha256_of(target)


def resolve(model: Model) -> Path:
    """The local directory of a model: as it is, or downloaded from the hub (its subfolder alone).

    Raises:
        GatedevalError: no such directory and no such hub repository, or the hub cannot be reached.
    """
    local = Path(model.path).expanduser()
    if local.exists():
        directory = local / model.subfolder if model.subfolder else local
        if not directory.is_dir():
            raise GatedevalError(f"model {model.label!r}: {directory} is not a directory; give the checkpoint's folder")
        return directory
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", model.path):
        raise GatedevalError(f"model {model.label!r}: {local} does not exist (and is no hub id of the form org/name)")
    return _download(model)


def _download(model: Model) -> Path:
    """Fetch a hub checkpoint, only the subfolder and the tokenizer files beside it, into the hub cache."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    patterns = [f"{model.subfolder}/*", "tokenizer*", "vocab.json", "merges.txt"] if model.subfolder else None
    try:
        root = Path(snapshot_download(model.path, revision=model.revision, allow_patterns=patterns))
    except (RepositoryNotFoundError, LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise GatedevalError(
            f"model {model.label!r}: {model.path} could not be fetched from the hub ({reason}). Offline? Download the"
            " folder elsewhere and give its local path instead"
        ) from error
    directory = root / model.subfolder if model.subfolder else root
    if not (directory / "config.json").exists():
        raise GatedevalError(f"model {model.label!r}: {model.path} has no {model.subfolder}/config.json")
    return directory


def tokenizer_path(model: Model, checkpoint_dir: Path) -> Path:
    """Where the model's tokenizer is: named in the config, beside the weights, or at the root of the repository.

    Raises:
        GatedevalError: none of these has tokenizer files.
    """
    if model.tokenizer:
        return resolve(Model(label=f"{model.label} (tokenizer)", path=model.tokenizer))
    candidates = [checkpoint_dir] + ([checkpoint_dir.parent] if model.subfolder else [])
    for directory in candidates:
        if any((directory / name).exists() for name in TOKENIZER_FILES):
            return directory
    raise GatedevalError(
        f"model {model.label!r}: no tokenizer in {checkpoint_dir} (looked for {', '.join(TOKENIZER_FILES)}); put one"
        " there or name it with `tokenizer:`"
    )


def tokenizer_sha256(directory: Path) -> str:
    """sha256 over the tokenizer's files (names and bytes): another tokenizer is another prompt."""
    digest = hashlib.sha256()
    names = {*TOKENIZER_FILES, "merges.txt", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja"}
    for name in sorted(names):
        if (directory / name).exists():
            digest.update(f"{name}:{file_sha256(directory / name)}\n".encode())
    return digest.hexdigest()


def inspect(path: Path | str) -> Checkpoint:
    """Read a checkpoint directory's config and tensor headers and decide what it is.

    Raises:
        GatedevalError: config.json or weights missing or unreadable, flags that contradict the shapes, tensors missing.
    """
    path = Path(path)
    config = _read_config(path)
    files, tensors = _read_tensors(path)
    if not is_qwen(config):
        architecture = (config.get("architectures") or [str(config.get("model_type"))])[0]
        return Checkpoint(
            path=path, config=config, layout=None, architecture=architecture, tensors=tensors, weight_files=files
        )
    layout, config = _layout(path, config, tensors)
    ours = needs_our_model(config)
    if ours and (mismatch := tensor_mismatch(config, tensors)):
        raise GatedevalError(f"{path}: {mismatch} (config.json and the weights do not belong together)")
    architecture = ARCHITECTURE if ours else (config.get("architectures") or ["Qwen3ForCausalLM"])[0]
    return Checkpoint(
        path=path, config=config, layout=layout, architecture=architecture, tensors=tensors, weight_files=files
    )


def _read_config(path: Path) -> dict[str, Any]:
    file = path / "config.json"
    if not file.is_file():
        hint = ""
        if path.is_dir() and (below := sorted(p.parent.name for p in path.glob("*/config.json"))):
            hint = f"; it has checkpoints below it: {', '.join(below[:6])} (give one as `subfolder:`)"
        raise GatedevalError(f"{file} does not exist: {path} is no checkpoint folder{hint}")
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise GatedevalError(f"{file}: not valid JSON ({error})") from error
    if not isinstance(config, dict):
        raise GatedevalError(f"{file}: expected a JSON object, got {type(config).__name__}")
    return config


def _layout(path: Path, config: dict[str, Any], tensors: Mapping[str, Tensor]) -> tuple[Layout, dict[str, Any]]:
    """The attention layout that flags and shapes agree on, and the config with head_dim filled in."""
    for key in ("hidden_size", "num_attention_heads", "num_hidden_layers"):
        if not isinstance(config.get(key), int):
            raise GatedevalError(f"{path / 'config.json'}: {key} is missing or no integer")
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    q_rows, k_rows = (_rows(path, tensors, f"model.layers.0.self_attn.{n}_proj.weight") for n in "qk")
    head_dim = config.get("head_dim") or k_rows // kv_heads
    flag = gate_from_flags(config)
    if k_rows != kv_heads * head_dim:
        raise GatedevalError(
            f"{path}: k_proj has {k_rows} rows, config.json says {kv_heads} KV heads of {head_dim}"
            f" ({kv_heads * head_dim})"
        )
    layout = Layout(heads, kv_heads, head_dim, flag)
    if q_rows != layout.q_rows:
        shape_says = gate_from_rows(q_rows, heads, head_dim)
        meaning = f"which is a {shape_says} gate" if shape_says else "which is no known gate layout"
        raise GatedevalError(
            f"{path}: config.json's flags say gate {flag} ({layout.q_rows} rows in q_proj for {heads} heads of"
            f" {head_dim}), but q_proj has {q_rows} rows, {meaning}; mend the flags in config.json or get the"
            " right weights"
        )
    return layout, {**config, "head_dim": head_dim, "num_key_value_heads": kv_heads}


def _rows(path: Path, tensors: Mapping[str, Tensor], name: str) -> int:
    if name not in tensors:
        raise GatedevalError(f"{path}: the weights hold no {name}: not a Qwen-type checkpoint, or incomplete")
    return tensors[name].shape[0]


def _read_tensors(path: Path) -> tuple[tuple[Path, ...], dict[str, Tensor]]:
    """Weight files (safetensors preferred, else .bin) and the header of every tensor in them."""
    safetensors = sorted(p for p in path.glob("*.safetensors") if not p.name.startswith("consolidated"))
    binaries = sorted(path.glob("pytorch_model*.bin"))
    files = safetensors or binaries
    if not files:
        raise GatedevalError(f"{path}: no weights (looked for *.safetensors and pytorch_model*.bin)")
    _check_index(path, files)
    tensors: dict[str, Tensor] = {}
    for file in files:
        tensors.update(_safetensors_header(file) if safetensors else _bin_header(file))
    return tuple(files), tensors


def _check_index(path: Path, files: list[Path]) -> None:
    """A sharded checkpoint's index names its files: one that is not there is an interrupted download."""
    for index in path.glob("*.index.json"):
        if index.name.split(".index")[0].rsplit(".", 1)[-1] != files[0].suffix.lstrip("."):
            continue
        named = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        if gone := sorted(named - {f.name for f in files}):
            raise GatedevalError(f"{index}: names {len(gone)} file(s) that are not there: {', '.join(gone[:3])}")


def _safetensors_header(file: Path) -> dict[str, Tensor]:
    try:
        with file.open("rb") as handle:
            length = int.from_bytes(handle.read(8), "little")
            if not 0 < length <= file.stat().st_size:
                raise ValueError("header longer than the file")
            header = json.loads(handle.read(length))
        header.pop("__metadata__", None)
        end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
        if 8 + length + end != file.stat().st_size:
            raise ValueError(f"{file.stat().st_size} bytes, its header promises {8 + length + end}")
        return {
            name: Tensor(shape=tuple(entry["shape"]), dtype=_DTYPES.get(entry["dtype"], entry["dtype"]))
            for name, entry in header.items()
        }
    except (ValueError, KeyError, TypeError) as error:
        raise GatedevalError(f"{file}: not a whole safetensors file ({error}); fetch it again") from error


def _bin_header(file: Path) -> dict[str, Tensor]:
    """Headers of a torch pickle, read memory-mapped and with `weights_only`: no code in it is ever run."""
    import torch

    try:
        state = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise GatedevalError(f"{file}: cannot be read as plain weights ({reason})") from error
    return {
        name: Tensor(shape=tuple(tensor.shape), dtype=str(tensor.dtype).removeprefix("torch."))
        for name, tensor in state.items()
        if isinstance(tensor, torch.Tensor)
    }


def gate_flags(gate: Gate) -> dict[str, Any]:
    """Config entries as a released checkpoint has them, under an architecture that stock vLLM refuses."""
    return {
        "model_type": "qwen3",
        "architectures": [ARCHITECTURE],
        HEADWISE_FLAG: gate == "headwise",
        ELEMENTWISE_FLAG: gate == "elementwise",
    }


def write_checkpoint(target: Path, config: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
    """Write config.json and model.safetensors into `target` (made if need be) and read their headers back.

    Raises:
        GatedevalError: config and tensors do not belong together.
    """
    from safetensors.torch import save_file

    target.mkdir(parents=True, exist_ok=True)
    save_file({k: v.contiguous() for k, v in tensors.items()}, target / "model.safetensors", metadata={"format": "pt"})
    (target / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    inspect(target)

"""Names, shapes and element types of a checkpoint's tensors, read from the weight files' headers alone."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path

from harness.types import GatedevalError, first_line

_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """One tensor's header: shape, element type ("float32", "bfloat16", ...) and the name of its file."""

    shape: tuple[int, ...]
    dtype: str
    file: str = field(default="", compare=False)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


def read_tensors(path: Path) -> tuple[tuple[Path, ...], dict[str, Tensor]]:
    """The weight files of a checkpoint folder (safetensors preferred, else .bin), and every tensor's header by name.

    Raises:
        GatedevalError: no weight file, a shard is missing, a file is damaged, a tensor is stored twice, or a tensor is
            stored in another file than the index says (a loader would take whichever file it reads last).
    """
    safetensors = sorted(p for p in path.glob("*.safetensors") if not p.name.startswith("consolidated"))
    binaries = sorted(path.glob("pytorch_model*.bin"))
    files = safetensors or binaries
    if not files:
        raise GatedevalError(f"{path}: no weights (looked for *.safetensors and pytorch_model*.bin)")
    indices = [_read_index(index) for index in sorted(path.glob("*.index.json")) if _is_index_of(index, files[0])]
    for index, weight_map in indices:
        if missing := sorted(set(weight_map.values()) - {f.name for f in files}):
            raise GatedevalError(f"{index}: names {len(missing)} file(s) that are not there: {', '.join(missing[:3])}")
    tensors: dict[str, Tensor] = {}
    stored: dict[str, Path] = {}
    for file in files:
        for name, tensor in (_safetensors_header(file) if safetensors else _bin_header(file)).items():
            if name in stored:
                raise GatedevalError(
                    f"{path}: tensor {name} is stored twice, in {stored[name].name} and in {file.name}; remove the file"
                    " that does not belong to this checkpoint"
                )
            stored[name], tensors[name] = file, tensor
    for index, weight_map in indices:
        _check_places(index, weight_map, stored)
    return tuple(files), tensors


def _is_index_of(index: Path, file: Path) -> bool:
    """True if `index` lists files of the same kind as `file`: model.safetensors.index.json belongs to .safetensors."""
    return index.name.split(".index")[0].rsplit(".", 1)[-1] == file.suffix.lstrip(".")


def _read_index(index: Path) -> tuple[Path, dict[str, str]]:
    """(index, its weight_map: tensor name -> file name)."""
    try:
        return index, dict(json.loads(index.read_text(encoding="utf-8"))["weight_map"])
    except (ValueError, KeyError, TypeError) as error:
        raise GatedevalError(f"{index}: not a readable index of weight files ({error!r}); fetch it again") from error


def _check_places(index: Path, weight_map: dict[str, str], stored: dict[str, Path]) -> None:
    """Raise if the index and the files disagree about where a tensor is stored, or whether it is stored at all."""
    for name, file in stored.items():
        if name not in weight_map:
            raise GatedevalError(
                f"{file}: holds {name}, which {index.name} does not list; remove the file that is stale"
            )
        if weight_map[name] != file.name:
            raise GatedevalError(f"{index}: lists {name} in {weight_map[name]}, but it is stored in {file.name}")
    if missing := sorted(set(weight_map) - set(stored)):
        raise GatedevalError(f"{index}: lists {len(missing)} tensor(s) that no file holds: {', '.join(missing[:4])}")


def _safetensors_header(file: Path) -> dict[str, Tensor]:
    """Headers by tensor name. The file starts with the header's length (8 bytes, little-endian), then the header."""
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
            name: Tensor(shape=tuple(entry["shape"]), dtype=_DTYPES.get(entry["dtype"], entry["dtype"]), file=file.name)
            for name, entry in header.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise GatedevalError(f"{file}: not a whole safetensors file ({error}); fetch it again") from error


def _bin_header(file: Path) -> dict[str, Tensor]:
    """Headers by tensor name of a torch pickle, memory-mapped. `weights_only`: code in the pickle is never run."""
    import torch

    try:
        state = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        raise GatedevalError(f"{file}: cannot be read as plain weights ({first_line(error)})") from error
    return {
        name: Tensor(shape=tuple(tensor.shape), dtype=str(tensor.dtype).removeprefix("torch."), file=file.name)
        for name, tensor in state.items()
        if isinstance(tensor, torch.Tensor)
    }

"""A loader for vLLM that reports the parameters which no tensor of the checkpoint reached.

vLLM checks that every parameter was loaded, with two exceptions: it skips linear layers, embeddings and experts, and a
fused parameter (q, k and v in one matrix) counts as loaded when one of its parts was. The missing part then keeps what
the memory held before, and the model writes text with it.

So before the weights are loaded, `ReportingLoader` fills the parameters with a mark: a NaN with bits that no checkpoint
stores. What still has the mark afterwards was not loaded. `harness.engine` refuses such a model.

The worker extension registers the loader under `LOAD_FORMAT`. Only engines that gatedeval starts ask for it; a plain
`vllm serve` loads its weights as it does without gatedeval.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from vllm.config import LoadConfig, ModelConfig
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

from harness.gated import LOAD_FORMAT

UNLOADED = "gatedeval_unloaded"
"""Attribute of the loaded model: descriptions of its parameters, or parts of them, that no tensor reached."""

_MARKS = {
    torch.float32: (torch.int32, 0x7FC5_3A17),
    torch.bfloat16: (torch.int16, 0x7FD5),
    torch.float16: (torch.int16, 0x7E75),
}
"""Per element type: an integer type of the same size, and the bits of a NaN with an unusual payload."""

_SMALL = 1 << 20  # elements of a parameter whose initial values are kept while its weights are loaded
_SLICE = 1 << 24  # elements that are compared with the mark at once


@register_model_loader(LOAD_FORMAT)
class ReportingLoader(DefaultModelLoader):
    """vLLM's default loader, which also puts `UNLOADED` on the model.

    Quantised models are loaded without a report: their parameters are created in part while they are loaded.
    """

    def __init__(self, load_config: LoadConfig) -> None:
        super().__init__(replace(load_config, load_format="auto"))

    def load_weights(self, model: nn.Module, model_config: ModelConfig) -> None:
        """Load the weights and report what they left out. Raises what vLLM raises for a tensor that does not fit."""
        if model_config.quantization is not None:
            super().load_weights(model, model_config)
            return
        self.enable_weights_track = False  # vLLM's own check, which ends the process without a message to the user
        marks = Marks(model)
        load: Any = model.load_weights
        names: set[str] | None = None

        def load_and_keep_names(*args: Any, **kwargs: Any) -> set[str] | None:
            nonlocal names
            names = load(*args, **kwargs)
            return names

        model.load_weights = load_and_keep_names  # type: ignore[assignment]
        try:
            super().load_weights(model, model_config)
        finally:
            del model.load_weights  # the class's own method again
        setattr(model, UNLOADED, marks.unloaded(names))


@dataclass
class Marks:
    """Marks in the parameters of a model that has no weights yet.

    Memory of layers that only a checkpoint fills (linear layers, embeddings, experts: those with a `quant_method`) is
    marked as it is. Other parameters, such as norms, have a meaningful initial value: it is kept and written back if
    the model says that it needs no tensor for them. Larger ones of this kind are not marked; there the names count.
    """

    model: nn.Module
    initial: dict[str, torch.Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, parameter, filled_by_file in self._parameters():
            bits = _bits(parameter)
            if bits is None:
                continue
            if not filled_by_file:
                if parameter.numel() > _SMALL:
                    continue
                self.initial[name] = parameter.data.clone()
            bits[0].fill_(bits[1])

    def unloaded(self, names: set[str] | None) -> list[str]:
        """Describe every parameter that still has the mark, and set what has it to zero.

        `names`: the parameters that the model's `load_weights` says it has loaded; None: it does not say.
        """
        found = []
        for name, parameter, filled_by_file in self._parameters():
            bits = _bits(parameter)
            claimed = names is not None and name in names
            if bits is None or not (filled_by_file or name in self.initial):
                if names is not None and not claimed and not filled_by_file:
                    found.append(name)
                continue
            if not _any_equal(*bits):
                continue
            marked = bits[0] == bits[1]
            if claimed and name in self.initial and bool(marked.all()):
                parameter.data.copy_(self.initial[name])
                continue
            bits[0].masked_fill_(marked, 0)  # the engine still runs a trial batch, and NaN could end it
            # experts may be padded for a kernel: no file has the padding, and vLLM says how many elements one has
            padding = parameter.numel() - int(getattr(parameter, "weight_loader_numel", parameter.numel()))
            if int(marked.sum()) > padding:
                found.append(name + self._which(name, marked))
        return found

    def _parameters(self) -> Iterator[tuple[str, nn.Parameter, bool]]:
        """(name, parameter, whether only a file gives it values). A shared parameter comes once."""
        for name, parameter in self.model.named_parameters():
            module = self.model.get_submodule(name.rpartition(".")[0])
            method = getattr(module, "quant_method", None)
            yield name, parameter, hasattr(method, "process_weights_after_loading")

    def _which(self, name: str, marked: torch.Tensor) -> str:
        """In parentheses: which rows have the mark, if not all, and which tensors of the file they are made of."""
        said = []
        if marked.dim() > 1 or not bool(marked.all()):
            rows = marked.flatten(1).any(dim=1) if marked.dim() > 1 else marked
            if not bool(rows.all()):
                kind = "experts" if marked.dim() > 2 else "rows"
                said.append(f"{kind} {_ranges(rows.nonzero().flatten().tolist())} of {len(rows)}")
        module = name.split(".")[-2] if "." in name else name
        parts = (getattr(self.model, "packed_modules_mapping", None) or {}).get(module, ())
        if len(parts) > 1:
            said.append(f"made of {', '.join(parts)}")
        return f" ({'; '.join(said)})" if said else ""


def _bits(parameter: nn.Parameter) -> tuple[torch.Tensor, int] | None:
    """The parameter as integers in place, and its mark; None: no floating-point numbers in memory of its own."""
    if parameter.dtype not in _MARKS or parameter.is_meta or parameter.numel() == 0:
        return None
    integer, mark = _MARKS[parameter.dtype]
    return parameter.data.view(integer), mark


def _any_equal(values: torch.Tensor, mark: int) -> bool:
    """Whether any element is `mark`. In slices: comparing a large matrix at once costs as much memory again."""
    step = max(1, _SLICE // max(1, values[0].numel())) if values.dim() else 1
    slices = values.split(step) if values.dim() else (values,)
    return any(bool((part == mark).any()) for part in slices)


def _ranges(numbers: list[int]) -> str:
    """[0, 1, 2, 7] -> "0-2, 7"; at most three ranges are named."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    said = [f"{first}-{last}" if last > first else str(first) for first, last in ranges[:3]]
    return ", ".join(said) + (", ..." if len(ranges) > 3 else "")

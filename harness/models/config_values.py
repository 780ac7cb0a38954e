"""Whether the values in a config.json are of the kind that their readers expect. Pure: no torch, no vLLM.

Readers of config.json rarely check a value: the text "false" counts as true, and the first element of the text
"Qwen3ForCausalLM" is "Q". Nothing fails then, or something far away does. So every command asks here first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from harness.models.headers import Tensor
from harness.models.layout import ELEMENTWISE_FLAG, HEADWISE_FLAG
from harness.types import GatedevalError

_DTYPES = ("auto", "float32", "float", "bfloat16", "float16", "half", "float64", "double", "int8", "uint8")


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool) or (isinstance(value, int) and value in (0, 1))


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _are_sizes(value: Any) -> bool:
    """One number, or one per layer: some families have layers of different sizes."""
    return all(map(_is_size, value)) if isinstance(value, list) else _is_size(value)


def _is_small_number(value: Any) -> bool:
    return isinstance(value, float | int) and not isinstance(value, bool) and 0 < value < 1


def _is_dtype(value: Any) -> bool:
    """A name of torch's, or a mapping from parts of a multimodal model to such names."""
    if isinstance(value, Mapping):
        return all(_is_dtype(v) for v in value.values())
    name = value.removeprefix("torch.") if isinstance(value, str) else ""
    return name in _DTYPES or name.startswith("float8_")


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(v, str) and v for v in value)


_FLAG = (_is_flag, "true or false")
_SIZE = (_is_size, "a positive whole number")
_SIZES = (_are_sizes, "a positive whole number")
_NAME = (lambda value: isinstance(value, str) and bool(value), "a name")
_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "architectures": (_is_names, "a list of model classes"),
    "model_type": _NAME,
    **dict.fromkeys((HEADWISE_FLAG, ELEMENTWISE_FLAG, "use_qk_norm", "qkv_bias"), _FLAG),
    **dict.fromkeys(("attention_bias", "mlp_bias", "tie_word_embeddings", "use_sliding_window"), _FLAG),
    **dict.fromkeys(("hidden_size", "num_hidden_layers", "vocab_size", "head_dim"), _SIZE),
    **dict.fromkeys(("intermediate_size", "num_attention_heads", "num_key_value_heads"), _SIZES),
    "rms_norm_eps": (_is_small_number, "a number between 0 and 1"),
    "quantization_config": (lambda value: isinstance(value, Mapping), "a mapping"),
    **dict.fromkeys(("dtype", "torch_dtype"), (_is_dtype, "an element type, such as bfloat16")),
}
"""Entry of config.json -> (whether a value is of the right kind, what the right kind is). null means "not given"."""


def check_values(file: Path, config: Mapping[str, Any]) -> None:
    """Check config.json, and the language model's part of a multimodal wrapper.

    Raises:
        GatedevalError: an entry has a value of another kind. The message names all of them.
    """
    wrong = [
        f"{key} is {value!r}, not {kind}"
        for key, (is_right, kind) in _KINDS.items()
        if (value := config.get(key)) is not None and not is_right(value)
    ]
    inner = config.get("text_config")
    if isinstance(inner, Mapping):
        check_values(file, inner)
    elif inner is not None:
        wrong.append(f"text_config is {inner!r}, not a mapping")
    if wrong:
        raise GatedevalError(f"{file}: {'; '.join(wrong)}; correct the checkpoint")


def check_vocabulary(path: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Check that both embeddings have `vocab_size` rows: vLLM takes the number from config.json and reads so many rows.

    Raises:
        GatedevalError: a matrix has another number of rows.
    """
    size = config.get("vocab_size")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        tensor = tensors.get(name)
        if size is not None and tensor is not None and len(tensor.shape) == 2 and tensor.shape[0] != size:
            raise GatedevalError(
                f"{path}: config.json says vocab_size {size}, but {name} has {tensor.shape[0]} rows; correct"
                " config.json, or get the right weights"
            )

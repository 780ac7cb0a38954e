"""Whether a checkpoint with its tokenizer can be evaluated at all: one answer for `check`, `plan` and `run`."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from harness.config import Model
from harness.models.checkpoint import Checkpoint, inspect
from harness.models.hub import resolve, tokenizer_path
from harness.models.stopping import declared_ids
from harness.models.tokenizer import load_tokenizer
from harness.rope import context
from harness.types import GatedevalError


@dataclass(frozen=True)
class Admitted:
    """A checkpoint and the folder of its tokenizer, both checked."""

    checkpoint: Checkpoint
    tokenizer_dir: Path


def admit(model: Model) -> Admitted:
    """Inspect a model's checkpoint and tokenizer.

    Raises:
        GatedevalError: the checkpoint is refused (see `harness.models.checkpoint.inspect`), vLLM has no model class for
            it, it has no tokenizer, the tokenizer has token ids that the model has no embedding for, or
            generation_config.json cannot be read.
    """
    directory = resolve(model)
    checkpoint = inspect(directory)
    _check_known_to_vllm(checkpoint)
    try:
        context.check_readable(checkpoint.config)
    except GatedevalError as error:
        raise GatedevalError(f"{directory}: {error}") from error
    tokenizer_dir = tokenizer_path(model, directory)
    _check_vocabulary(checkpoint, tokenizer_dir)
    declared_ids(directory, checkpoint.config)
    return Admitted(checkpoint, tokenizer_dir)


def _check_vocabulary(checkpoint: Checkpoint, tokenizer_dir: Path) -> None:
    """Refuse a tokenizer with an id beyond the embedding's rows: the engine would die on the first such token."""
    rows = checkpoint.embedding_rows
    tokenizer = load_tokenizer(tokenizer_dir)
    if rows is None or tokenizer.fast is None:
        return
    beyond = sorted((id, token) for token, id in tokenizer.fast.get_vocab(with_added_tokens=True).items() if id >= rows)
    if beyond:
        id, token = beyond[0]
        raise GatedevalError(
            f"{tokenizer_dir}: the tokenizer has {len(beyond)} token(s) that {checkpoint.path} has no embedding for;"
            f" the first is {token!r} with id {id}, and the embedding has {rows} rows. Use the tokenizer that belongs"
            " to the checkpoint"
        )


def _check_known_to_vllm(checkpoint: Checkpoint) -> None:
    """Refuse a model class that neither vLLM nor its fallback to transformers' classes knows."""
    if checkpoint.layout is not None:
        return
    registered = _registered_architectures()
    kind = str(checkpoint.config.get("model_type"))
    if registered and checkpoint.architecture not in registered and not _transformers_has(kind):
        raise GatedevalError(
            f"{checkpoint.path / 'config.json'}: model class {checkpoint.architecture!r} (model_type {kind!r}) is known"
            " neither to the installed vLLM nor to the installed transformers; upgrade them, or correct `architectures`"
        )


@cache
def _registered_architectures() -> frozenset[str]:
    """Names in vLLM's model registry, read from its source file: importing vLLM takes seconds. Empty without vLLM."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        return frozenset()
    file = Path(spec.origin).parent / "model_executor" / "models" / "registry.py"
    if not file.is_file():
        return frozenset()
    return frozenset(re.findall(r'^\s+"(\w+)": \(', file.read_text(encoding="utf-8"), flags=re.MULTILINE))


def _transformers_has(model_type: str) -> bool:
    """True if transformers has a folder for the model type. Nothing is imported."""
    spec = importlib.util.find_spec("transformers")
    if spec is None or spec.origin is None:
        return False
    return (Path(spec.origin).parent / "models" / model_type.replace("-", "_")).is_dir()

"""Whether a checkpoint with its tokenizer can be evaluated at all: one answer for `check`, `plan` and `run`."""

from __future__ import annotations

import importlib.util
import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

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
    checkpoint = inspect(directory, model.gate_layout)
    _check_known_to_vllm(checkpoint)
    try:
        context.check_readable(checkpoint.config)
    except GatedevalError as error:
        raise GatedevalError(f"{directory}: {error}") from error
    tokenizer_dir = tokenizer_path(model, directory)
    _check_vocabulary(checkpoint, tokenizer_dir)
    _check_loaders_agree(tokenizer_dir)
    declared_ids(directory, checkpoint.config)
    return Admitted(checkpoint, tokenizer_dir)


def _check_vocabulary(checkpoint: Checkpoint, tokenizer_dir: Path) -> None:
    """Refuse a tokenizer with an id beyond the embedding's rows: the engine would die on the first such token."""
    rows = checkpoint.embedding_rows
    tokenizer = load_tokenizer(tokenizer_dir)
    if rows is None:
        return
    if tokenizer.fast is None:
        if (size := len(tokenizer.hf)) > rows:
            raise GatedevalError(
                f"{tokenizer_dir}: the tokenizer has {size} token ids, and {checkpoint.path} has embeddings for {rows}."
                " Use the tokenizer that belongs to the checkpoint"
            )
        return
    beyond = sorted((id, token) for token, id in tokenizer.fast.get_vocab(with_added_tokens=True).items() if id >= rows)
    if beyond:
        id, token = beyond[0]
        raise GatedevalError(
            f"{tokenizer_dir}: the tokenizer has {len(beyond)} token(s) that {checkpoint.path} has no embedding for;"
            f" the first is {token!r} with id {id}, and the embedding has {rows} rows. Use the tokenizer that belongs"
            " to the checkpoint"
        )


_PLAIN_CLASSES = ("PreTrainedTokenizerFast", "TokenizersBackend")
"""Classes that transformers does not build anew: it reads their tokenizer.json as it is."""
_PROBE = "We need to add 9 and 6.\n\nDoes  it make 15 (or 16)? It's naïve:\n\tyes; 数 \u00e9 <a> #no"


def _check_loaders_agree(tokenizer_dir: Path) -> None:
    """Refuse a folder whose tokenizer_config.json names a class that makes another tokenizer than tokenizer.json is.

    A prompt is encoded with tokenizer.json as it is, and vLLM decodes the answer with the class. A byte-level
    tokenizer.json beside a SentencePiece class would give answers without spaces, and other prompts in other programs.
    """
    tokenizer = load_tokenizer(tokenizer_dir)
    kind = tokenizer.named_class
    if tokenizer.fast is None or kind in _PLAIN_CLASSES:
        return
    if kind in ("Qwen2Tokenizer", "Qwen2TokenizerFast") and _is_what_qwen2_makes(tokenizer.fast):
        return  # importing transformers and torch to see the same takes seconds
    ids = tokenizer.encode(_PROBE, special=False)
    theirs = list(tokenizer.hf.encode(_PROBE, add_special_tokens=False))
    read, theirs_read = tokenizer.decode(ids), tokenizer.hf.decode(ids, skip_special_tokens=True)
    if ids == theirs and read == theirs_read:
        return
    what = f"decoded as {theirs_read[:40]!r} and {read[:40]!r}" if read != theirs_read else "encoded differently"
    raise GatedevalError(
        f"{tokenizer_dir}: tokenizer.json is not the tokenizer that {kind or 'its model type'} makes of it: a text is"
        f" {what}. If tokenizer.json is right, set tokenizer_class to PreTrainedTokenizerFast in a copy of"
        " tokenizer_config.json, and name the copy's folder with `tokenizer:`"
    )


def _is_what_qwen2_makes(fast: Any) -> bool:
    """Whether a tokenizer has the parts that transformers' Qwen2Tokenizer builds around its vocabulary and merges.

    Its pattern is looked up in the source file of the installed transformers, which is not imported.
    """
    if fast.normalizer is None or fast.pre_tokenizer is None or fast.decoder is None:
        return False
    normalizer, splits, decoder = (
        json.loads(part.__getstate__()) for part in (fast.normalizer, fast.pre_tokenizer, fast.decoder)
    )
    source = _transformers_folder() / "models" / "qwen2" / "tokenization_qwen2.py"
    parts = splits.get("pretokenizers") or []
    if [part["type"] for part in parts] != ["Split", "ByteLevel"] or not source.is_file():
        return False
    pattern = parts[0]["pattern"].get("Regex")
    return bool(
        normalizer == {"type": "NFC"}
        and decoder["type"] == "ByteLevel"
        and pattern
        and f'r"""{pattern}"""' in source.read_text(encoding="utf-8")
        and (parts[0]["behavior"], parts[0]["invert"]) == ("Isolated", False)
        and (parts[1]["add_prefix_space"], parts[1]["use_regex"]) == (False, False)
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
    return (_transformers_folder() / "models" / model_type.replace("-", "_")).is_dir()


def _transformers_folder() -> Path:
    """Where transformers is installed, found without importing it; a folder that does not exist where it is not."""
    spec = importlib.util.find_spec("transformers")
    return Path(spec.origin).parent if spec is not None and spec.origin else Path("/nonexistent")

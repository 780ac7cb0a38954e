"""Which text a tokenizer makes of given token ids: a hash of everything in its files that decoding may depend on."""

from __future__ import annotations

import functools
import hashlib
import json
from pathlib import Path
from typing import Any

from harness.models.hub import TOKENIZER_EXTRAS, TOKENIZER_FILES, file_sha256, tokenizer_sha256

_ENCODING_ALONE = ("normalizer", "pre_tokenizer", "post_processor", "truncation", "padding")
"""Parts of a tokenizer.json that a text passes on its way to ids, and ids never on their way to a text."""
_TEMPLATES = ("chat_template.jinja", "merges.txt")


def decoding_sha256(directory: Path) -> str:
    """sha256 of what decoding depends on: vocabulary, added tokens, decoder, settings.

    The response's text, and so the stop strings found in it, are made by decoding. What encoding and chat templates
    alone depend on is left out: it changes the prompt's ids, which have a hash of their own. Whatever is not known to
    be of that kind counts.
    """
    return _sha256(directory, tokenizer_sha256(directory))


@functools.lru_cache(maxsize=8)
def _sha256(directory: Path, files: str) -> str:
    facts: dict[str, Any] = {}
    for name in sorted((*TOKENIZER_FILES, *TOKENIZER_EXTRAS)):
        file = directory / name
        if file.exists() and name not in _TEMPLATES:
            facts[name] = _relevant(name, file)
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _relevant(name: str, file: Path) -> Any:
    """The part of one file that counts; of a file that is no JSON object, the hash of its bytes."""
    if name not in ("tokenizer.json", "tokenizer_config.json"):
        return file_sha256(file)
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        return file_sha256(file)
    if not isinstance(content, dict):
        return file_sha256(file)
    if name == "tokenizer_config.json":
        return {key: value for key, value in content.items() if key not in ("chat_template", "model_max_length")}
    kept = {key: value for key, value in content.items() if key not in _ENCODING_ALONE}
    if isinstance(model := kept.get("model"), dict):
        kept["model"] = {key: value for key, value in model.items() if key != "merges"}
    return kept

"""The files that a tokenizer is read from: tokenizer.json, and what tokenizer_config.json adds to it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.data.network import errors, hub_is_reachable
from harness.models.json_files import read_object
from harness.types import GatedevalError


def only_tekken(directory: Path) -> bool:
    """Whether a folder has mistral-common's tekken.json and no tokenizer.json."""
    return (directory / "tekken.json").is_file() and not (directory / "tokenizer.json").is_file()


def json_file(source: str) -> Path | None:
    """The tokenizer.json that `source` names, downloaded for a hub id; None where there is none."""
    path = Path(source)
    if path.is_file() and path.suffix == ".json":
        return path
    if path.is_dir():
        return path / "tokenizer.json" if (path / "tokenizer.json").is_file() else None
    if path.exists() or source.startswith((".", "/", "~")):
        raise GatedevalError(
            f"tokenizer {source}: neither a folder with a tokenizer, nor a tokenizer.json, nor a hub id"
        )
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", source):
        raise GatedevalError(f"tokenizer {source}: no such folder or file, and no hub id of the form org/name")
    reachable = hub_is_reachable()
    file = _from_hub(source, "tokenizer.json")
    if file is None and not reachable:
        why = "; ".join(errors()) or "HF_HUB_OFFLINE is set"
        raise GatedevalError(
            f"tokenizer {source}: no such folder or file, and no tokenizer.json of that name in the hub's cache on this"
            f" machine ({why})"
        )
    return file


def _from_hub(repository: str, name: str) -> Path | None:
    """A file of a hub repository; None where there is no such file or the hub cannot be reached."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return Path(hf_hub_download(repository, name))
    except (OSError, ValueError, HfHubHTTPError):
        return None


def read_settings(source: str, file: Path) -> dict[str, Any]:
    """The tokenizer_config.json beside `file`, as a dict; {} where there is none or only a tokenizer.json was named."""
    if Path(source).is_file():
        return {}
    config = file.with_name("tokenizer_config.json") if Path(source).is_dir() else None
    config = config or _from_hub(source, "tokenizer_config.json")
    if config is None or not config.is_file():
        return {}
    settings = read_object(config)
    decoder = settings.get("added_tokens_decoder") or {}
    if not isinstance(decoder, dict) or not all(str(key).isdecimal() for key in decoder):
        raise GatedevalError(f"{config}: added_tokens_decoder should map token ids to tokens")
    return settings


def read_json_file(file: Path) -> Any:
    from tokenizers import Tokenizer as Fast

    try:
        return Fast.from_file(str(file))
    except Exception as error:  # the library raises bare Exception
        raise GatedevalError(
            f"{file}: no readable tokenizer (not a tokenizer.json of the tokenizers library: {error})"
        ) from error


_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def add_named_tokens(fast: Any, settings: dict[str, Any]) -> None:
    """Add the tokens that tokenizer_config.json names and tokenizer.json lacks, in transformers' order.

    What the settings say about adding BOS or EOS is not read: with a tokenizer.json, transformers 5 leaves that to its
    post-processor, too. Source: `TokenizersBackend.__init__` of transformers 5.19.
    """
    from tokenizers import AddedToken

    known = {token.content for token in fast.get_added_tokens_decoder().values()}
    for content, flags in _named_tokens(settings):
        if content not in known:
            known.add(content)
            fast.add_tokens([AddedToken(content, **{"special": True, **flags})])
    fast.encode_special_tokens = bool(settings.get("split_special_tokens", False))


def _named_tokens(settings: dict[str, Any]) -> Iterator[tuple[str, dict[str, bool]]]:
    """(content, flags such as lstrip) of each token that a tokenizer_config.json names."""
    decoder = settings.get("added_tokens_decoder") or {}
    values = [decoder[key] for key in sorted(decoder, key=int)]
    values += [settings.get(name) for name in _NAMED]
    values += [value for name, value in settings.items() if name.endswith("_token") and name not in _NAMED]
    for name in ("additional_special_tokens", "extra_special_tokens"):
        extra = settings.get(name) or []
        values += extra.values() if isinstance(extra, dict) else extra
    for value in values:
        if isinstance(value, str):
            yield value, {}
        elif isinstance(value, dict) and isinstance(value.get("content"), str):
            flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
            yield value["content"], {flag: value[flag] for flag in flags if flag in value}

"""Where a model's files are (a local folder or a hub repository), where its tokenizer is, and hashes of these files."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from harness.config import Model
from harness.data.files import sha256_of
from harness.data.network import OUT_OF_REACH, hub_is_reachable
from harness.types import GatedevalError, first_line

TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json", "tekken.json", "spiece.model",
    "sentencepiece.bpe.model", "vocab.txt",
)  # fmt: skip
"""A folder with at least one of these files has a tokenizer."""

TOKENIZER_EXTRAS = ("merges.txt", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja")
"""Optional further files of a tokenizer."""


def resolve(model: Model) -> Path:
    """The local directory of a model's checkpoint; a hub repository (or only its `subfolder`) is downloaded first.

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
    """Download a hub checkpoint into the hub cache: the whole repository, or the subfolder and the tokenizer files."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    reachable = hub_is_reachable()
    patterns = [f"{model.subfolder}/*", "tokenizer*", "merges.txt", *TOKENIZER_FILES] if model.subfolder else None
    try:
        root = Path(snapshot_download(model.path, revision=model.revision, allow_patterns=patterns))
    except (RepositoryNotFoundError, LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        if not reachable:
            raise GatedevalError(
                f"model {model.label!r}: {model.path} is not in the hub's cache on this machine, and {OUT_OF_REACH};"
                " download the folder elsewhere and give its local path instead"
            ) from error
        raise GatedevalError(
            f"model {model.label!r}: {model.path} could not be fetched from the hub ({first_line(error)}). Offline?"
            " Download the folder elsewhere and give its local path instead"
        ) from error
    directory = root / model.subfolder if model.subfolder else root
    if not (directory / "config.json").exists():
        raise GatedevalError(f"model {model.label!r}: {model.path} has no {model.subfolder}/config.json")
    return directory


def tokenizer_path(model: Model, checkpoint_dir: Path) -> Path:
    """The directory of the model's tokenizer: the configured one, else the checkpoint's, else the repository's root.

    Raises:
        GatedevalError: none of these directories has tokenizer files.
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
    """sha256 over names and bytes of the tokenizer's files. Another tokenizer makes other prompts."""
    digest = hashlib.sha256()
    unread = ("tekken.json",) if (directory / "tokenizer.json").exists() else ()
    for name in sorted((*TOKENIZER_FILES, *TOKENIZER_EXTRAS)):
        if name not in unread and (directory / name).exists():
            digest.update(f"{name}:{file_sha256(directory / name)}\n".encode())
    return digest.hexdigest()


def file_sha256(file: Path) -> str:
    """sha256 of a file's bytes.

    A file in the hub's cache is a link to a blob whose name is its sha256; then the file itself is not read.
    """
    target = file.resolve()
    if file.is_symlink() and target.parent.name == "blobs" and re.fullmatch(r"[0-9a-f]{64}", target.name):
        return target.name
    return sha256_of(target)

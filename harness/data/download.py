"""Downloading a data set: from a fixed revision, checked against its sha256 where that is known, never half written."""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
import urllib.request
import zipfile
from pathlib import Path

from harness.data.catalog import DATASETS
from harness.data.network import Unreachable, check_reachable, hub_is_reachable


def cache_folder() -> Path:
    """Where downloads are kept: GATEDEVAL_CACHE, else the user's cache folder."""
    base = os.environ.get("GATEDEVAL_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "gatedeval"
    )
    return Path(base) / "data"


def fetch_one(name: str, root: Path | None = None) -> Path:
    """Download one data set into `root` (None: the cache) and return its path.

    Raises:
        OSError: no network, or the address does not answer.
        ValueError: the bytes are not those that are expected.
    """
    dataset = DATASETS[name]
    folder = (root or cache_folder()) / dataset.folder()
    raw, file = _download(dataset.url or "")
    if dataset.sha256 and (got := hashlib.sha256(raw).hexdigest()) != dataset.sha256:
        raise ValueError(f"{dataset.url} has sha256 {got}, expected {dataset.sha256}")
    folder.mkdir(parents=True, exist_ok=True)
    if dataset.unpack is not None:
        return _unpack(raw, dataset.unpack, (root or cache_folder()) / dataset.patterns[0])
    with tempfile.NamedTemporaryFile(dir=folder, delete=False) as temporary:  # never a half file under the real name
        temporary.write(raw)
    os.replace(temporary.name, folder / file)
    return folder / file


def _download(url: str) -> tuple[bytes, str]:
    """The bytes at an address, and the file name that it ends in.

    Raises:
        Unreachable: its host cannot be reached, which is tried once per process.
    """
    if url.startswith("hf:"):
        reachable = hub_is_reachable()  # if not, the hub's client reads its cache only
        from huggingface_hub import hf_hub_download

        repository, rest = url.removeprefix("hf:").split("@", 1)
        revision, file = rest.split("/", 1)
        try:
            path = hf_hub_download(repository, file, revision=revision, repo_type="dataset")
        except OSError as error:
            raise error if reachable else Unreachable("the hub cannot be reached") from error
        return Path(path).read_bytes(), file
    check_reachable(url)
    with urllib.request.urlopen(url, timeout=30) as answer:
        return answer.read(), url.rsplit("/", 1)[1]


def _unpack(raw: bytes, inner: str, target: Path) -> Path:
    """Write the files of one folder of a zip as the folder `target`."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(io.BytesIO(raw)) as archive, tempfile.TemporaryDirectory(dir=target.parent) as temporary:
        for member in archive.namelist():
            if member.startswith(f"{inner}/") and not member.endswith("/"):
                archive.extract(member, temporary)
        os.replace(Path(temporary) / inner, target)
    return target

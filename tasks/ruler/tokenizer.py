"""The evaluated model's own tokenizer: counting without special tokens, and the ids exactly as the model is sent them.

Built on the `tokenizers` library where there is a tokenizer.json; anything else (SentencePiece without conversion, an
object of another library) goes through its own `encode`, loaded by transformers if it has to be.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from harness.types import GatedevalError

_BATCH = 64  # from here on the library's batch call is worth its overhead


@dataclass
class RulerTokenizer:
    """A tokenizer as RULER needs it. Make one with `load_tokenizer`.

    `lead` are the ids that stand before every prompt (the BOS, where the tokenizer has one). An EOS that the tokenizer
    would put at the end is never sent: a prompt must end in its answer prefix.
    """

    name: str
    lead: tuple[int, ...]
    fingerprint: str  # sha256 of what defines the tokenizer; "" where that is not known
    fast: Any = None  # a tokenizers.Tokenizer
    slow: Callable[[str], Sequence[int]] | None = None  # text -> ids without special tokens
    dropped_eos: bool = False  # the tokenizer would add ids at the end
    notes: list[str] = field(default_factory=list)  # what a user should know, e.g. a fallback to whole encodes
    facts: dict[str, Any] = field(default_factory=dict)  # what counting.py found out about it

    def count(self, text: str) -> int:
        """Tokens of `text`, special tokens not added: RULER's own notion of length."""
        if self.fast is not None:
            return len(self.fast.encode_batch_fast([text], add_special_tokens=False)[0])
        assert self.slow is not None
        return len(self.slow(text))

    def counts(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text, special tokens not added."""
        if self.fast is not None and len(texts) >= _BATCH:
            return [len(e) for e in self.fast.encode_batch_fast(list(texts), add_special_tokens=False)]
        return [self.count(text) for text in texts]

    def plain(self, text: str) -> list[int]:
        """Ids of `text`, special tokens not added (those written out in the text are recognised)."""
        if self.fast is not None:
            return self.fast.encode_batch_fast([text], add_special_tokens=False)[0].ids
        assert self.slow is not None
        return list(self.slow(text))

    def encode(self, text: str) -> list[int]:
        """The ids as sent: the lead (one BOS, also where the text brings its own), then the text; nothing after it."""
        ids = self.plain(text)
        lead = list(self.lead)
        return ids if lead and ids[: len(lead)] == lead else lead + ids

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """Character ranges of the tokens of `plain(text)`. Raises GatedevalError for a tokenizer that has none."""
        if self.fast is None:
            raise GatedevalError(f"tokenizer {self.name} gives no character offsets")
        return self.fast.encode(text, add_special_tokens=False).offsets


def load_tokenizer(source: Any) -> RulerTokenizer:
    """A tokenizer from a folder, a tokenizer.json, a hub id, or an object that another library made.

    Raises GatedevalError where nothing usable is there, or where the tokenizer gives no tokens for plain text.
    """
    if isinstance(source, RulerTokenizer):
        return source
    if isinstance(source, str | Path):
        made = _from_path_once(str(source), _stamp(Path(source)))
    else:
        made = _from_object(source, getattr(source, "name_or_path", None) or type(source).__name__)
    if made.count("The quick brown fox") == 0:
        raise GatedevalError(f"tokenizer {made.name} encodes plain text to no tokens; is its vocabulary missing?")
    from tasks.ruler.counting import Counter  # (it builds on this module)

    Counter(made)  # examine the vocabulary now, once, rather than within the first sample
    return made


def _stamp(path: Path) -> tuple[float, ...]:
    """Modification times of the files that make a tokenizer; () for a hub id."""
    files = [path] if path.is_file() else [path / "tokenizer.json", path / "tokenizer_config.json"]
    return tuple(f.stat().st_mtime for f in files if f.is_file())


@lru_cache(maxsize=8)
def _from_path_once(source: str, stamp: tuple[float, ...]) -> RulerTokenizer:
    """The tokenizer of a path, loaded once per process as long as its files do not change."""
    return _from_path(source)


def _from_path(source: str | Path) -> RulerTokenizer:
    path = Path(source)
    if path.is_file() and path.suffix == ".json":
        return _from_json(path, {}, str(source))
    if path.is_dir():
        config = path / "tokenizer_config.json"
        if (path / "tokenizer.json").is_file():
            settings = json.loads(config.read_text(encoding="utf-8")) if config.is_file() else {}
            return _from_json(path / "tokenizer.json", settings, str(source))
    elif path.exists() or str(source).startswith((".", "/", "~")):
        raise GatedevalError(
            f"tokenizer {source}: neither a folder with a tokenizer, nor a tokenizer.json, nor a hub id"
        )
    else:
        downloaded = _from_hub(str(source))
        if downloaded is not None:
            return downloaded
    try:
        from transformers import AutoTokenizer

        return _from_object(AutoTokenizer.from_pretrained(str(source)), str(source))
    except (OSError, ValueError, ImportError, KeyError) as error:
        first = str(error).strip().split("\n", 1)[0]
        raise GatedevalError(
            f"tokenizer {source} cannot be loaded ({first}); give a folder with tokenizer.json"
        ) from error


def _from_hub(repo: str) -> RulerTokenizer | None:
    """The tokenizer of a hub repository, None where it has no tokenizer.json or cannot be reached."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError

    try:
        file = Path(hf_hub_download(repo, "tokenizer.json"))
    except (OSError, ValueError, HfHubHTTPError):
        return None
    try:
        settings = json.loads(Path(hf_hub_download(repo, "tokenizer_config.json")).read_text(encoding="utf-8"))
    except (OSError, ValueError, HfHubHTTPError):
        settings = {}
    return _from_json(file, settings, repo)


def _from_json(file: Path, settings: dict[str, Any], name: str) -> RulerTokenizer:
    from tokenizers import Tokenizer

    try:
        fast = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception
        raise GatedevalError(f"tokenizer {file}: not a tokenizer.json of the tokenizers library ({error})") from error
    digest = hashlib.sha256(file.read_bytes())
    digest.update(json.dumps({k: settings.get(k) for k in ("add_bos_token", "bos_token")}, sort_keys=True).encode())
    made = _from_fast(fast, name)
    made.fingerprint = digest.hexdigest()
    bos = settings.get("bos_token")
    bos_id = fast.token_to_id(bos["content"] if isinstance(bos, dict) else bos) if bos else None
    # transformers 5 obeys an explicit add_bos_token, whatever the post-processor in tokenizer.json says.
    if settings.get("add_bos_token") is True and bos_id is not None and bos_id not in made.lead:
        made.lead = (bos_id, *made.lead)
    elif settings.get("add_bos_token") is False:
        made.lead = tuple(i for i in made.lead if i != bos_id)
    return made


def _from_fast(fast: Any, name: str) -> RulerTokenizer:
    fast.no_truncation()  # a tokenizer.json may carry somebody's training truncation and padding
    fast.no_padding()
    lead, trail = _frame(fast.encode("a").ids, fast.encode("a", add_special_tokens=False).ids)
    return RulerTokenizer(name, lead, hashlib.sha256(fast.to_str().encode()).hexdigest(), fast, dropped_eos=bool(trail))


def _from_object(made: Any, name: str) -> RulerTokenizer:
    from tokenizers import Tokenizer

    if isinstance(made, Tokenizer):
        return _from_fast(Tokenizer.from_str(made.to_str()), name)
    backend = getattr(made, "backend_tokenizer", None)
    if isinstance(backend, Tokenizer):
        fast = _from_fast(Tokenizer.from_str(backend.to_str()), name)
        fast.lead, trail = _frame(list(made.encode("a")), list(made.encode("a", add_special_tokens=False)))
        fast.dropped_eos = bool(trail)
        return fast
    encode = getattr(made, "encode", None)
    if encode is None:
        raise GatedevalError(f"tokenizer {name}: an object without `encode` cannot be used")
    try:
        framed, bare = list(encode("a")), list(encode("a", add_special_tokens=False))
    except TypeError:  # tiktoken and its kin know no special tokens of their own accord
        return RulerTokenizer(name, (), "", slow=encode)
    lead, trail = _frame(framed, bare)
    return RulerTokenizer(
        name, lead, "", slow=lambda text: encode(text, add_special_tokens=False), dropped_eos=bool(trail)
    )


def _frame(framed: list[int], bare: list[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ids that a tokenizer puts before and after a text, from one text encoded with and without them."""
    for start in range(len(framed) - len(bare) + 1):
        if framed[start : start + len(bare)] == bare:
            return tuple(framed[:start]), tuple(framed[start + len(bare) :])
    return (), ()

"""The evaluated model's own tokenizer: the one class that counts tokens and makes the ids that the model is sent.

One rule for special tokens, everywhere: exactly one BOS where the tokenizer adds one, none where it adds none, also
when a chat template or the text has put it there already; and never an EOS at the end of a prompt.

A tokenizer.json is read by the `tokenizers` library, which imports in milliseconds. transformers (with torch, seconds)
is imported only for what needs it: chat templates, lm-eval's adapter, and tokenizers without a tokenizer.json.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from harness.models import chat
from harness.models.thinking import Thinking
from harness.models.tokenizer_files import (
    add_named_tokens,
    json_file,
    only_tekken,
    read_json_file,
    read_settings,
)
from harness.types import GatedevalError, first_line

NO_THINKING = Thinking()

_BATCH = 64  # from this many texts on, the library's batch call is worth its overhead


class Tokenizer:
    """A tokenizer from a directory, a tokenizer.json, a hub id, or an object that another library made.

    `prefix_ids`: what stands before every prompt, (BOS,) or nothing. `suffix_ids`: what the tokenizer would put behind
    a text; it is never sent, because a prompt must end in its answer prefix. `fast`: the `tokenizers.Tokenizer`, None
    for a tokenizer of another kind. `notes`: what a user should know, e.g. that RULER has to encode whole prompts.
    `facts`: what RULER's counting has worked out about the tokenizer.

    Raises:
        GatedevalError: there is no readable tokenizer, or it encodes text to nothing.
    """

    def __init__(self, source: Any) -> None:
        path = str(source) if isinstance(source, str | Path) else None
        self.name = path or getattr(source, "name_or_path", None) or type(source).__name__
        self.directory = Path(self.name)
        self._loaded_on = datetime.date.today()
        self.notes: list[str] = []
        self.facts: dict[str, Any] = {}
        self.fast: Any = None
        self._settings: dict[str, Any] = {}  # tokenizer_config.json
        self._framed: Callable[[str], Sequence[int]]  # text -> ids with the tokenizer's own special tokens
        self._bare: Callable[[str], Sequence[int]]  # text -> ids without them
        if path is None:
            self._use_object(source)
        elif (file := json_file(path)) is not None:
            self._settings = read_settings(path, file)
            self._use_fast(read_json_file(file))
            add_named_tokens(self.fast, self._settings)
        else:
            self._use_object(self.hf)
        bare = list(self._bare("a"))
        if not bare:
            raise GatedevalError(f"{self.name}: the tokenizer is empty (it encodes 'a' to nothing): files missing?")
        self.prefix_ids, self.suffix_ids = _frame(list(self._framed("a")), bare)

    def _use_fast(self, fast: Any) -> None:
        fast.no_truncation()  # a tokenizer.json may carry the truncation and padding of somebody's training
        fast.no_padding()
        self.fast = fast
        self._framed = lambda text: fast.encode(text).ids
        self._bare = lambda text: fast.encode_batch_fast([text], add_special_tokens=False)[0].ids

    def _use_object(self, source: Any) -> None:
        from tokenizers import Tokenizer as Fast

        backend = source if isinstance(source, Fast) else getattr(source, "backend_tokenizer", None)
        if isinstance(backend, Fast):
            self._use_fast(Fast.from_str(backend.to_str()))  # a copy: the caller's keeps its truncation and padding
            if backend is not source:
                self._framed = source.encode
            return
        encode = getattr(source, "encode", None)
        if encode is None:
            raise GatedevalError(f"tokenizer {self.name}: an object without `encode` cannot be used")
        self._framed = encode
        try:
            encode("a", add_special_tokens=False)
        except TypeError:  # tiktoken and similar libraries add no special tokens by themselves
            self._bare = encode
        else:
            self._bare = lambda text: encode(text, add_special_tokens=False)

    @cached_property
    def hf(self) -> Any:
        """The tokenizer as transformers loads it, for chat templates and lm-eval. Loaded when first used (seconds)."""
        try:
            if only_tekken(self.directory):
                # AutoTokenizer would convert the file (20 s), and lose BOS; this class is mistral-common's own.
                from transformers.tokenization_mistral_common import MistralCommonBackend

                return MistralCommonBackend.from_pretrained(self.name)
            from transformers import AutoTokenizer

            return AutoTokenizer.from_pretrained(self.name, trust_remote_code=False)
        except Exception as error:  # files of any kind: the libraries raise whatever they meet in them
            raise GatedevalError(f"{self.name}: no readable tokenizer ({first_line(error)})") from error

    @property
    def start_id(self) -> int:
        """What a text without context is conditioned on: BOS where there is one, else end-of-text."""
        return self.hf.bos_token_id if self.hf.bos_token_id is not None else self.hf.eos_token_id

    @cached_property
    def eos_id(self) -> int | None:
        """The end-of-text token that the tokenizer names, as transformers finds it; None where it names none.

        transformers itself is asked only where tokenizer_config.json leaves the question open: it names no such key,
        or an older special_tokens_map.json beside it names another token.
        """
        named = _content(self._settings.get("eos_token"))
        legacy = self.directory / "special_tokens_map.json"
        if self.fast is None or "eos_token" not in self._settings:
            return self.hf.eos_token_id
        if legacy.is_file() and _content(json.loads(legacy.read_text(encoding="utf-8")).get("eos_token")) != named:
            return self.hf.eos_token_id
        return None if named is None else self.fast.token_to_id(named)

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """The ids of `text` as the model is sent them; `special=False` leaves BOS out (a text that continues another).

        Special tokens that are written out in the text are recognised. A text that brings its own BOS gets no second.
        """
        ids, prefix = list(self._bare(text)), list(self.prefix_ids)
        return ids if not special or ids[: len(prefix)] == prefix else prefix + ids

    def count(self, text: str) -> int:
        """Tokens of `text`, special tokens not added: RULER's own notion of length."""
        if self.fast is not None:
            return len(self.fast.encode_batch_fast([text], add_special_tokens=False)[0])
        return len(self._bare(text))

    def counts(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text, special tokens not added."""
        if self.fast is not None and len(texts) >= _BATCH:
            return [len(e) for e in self.fast.encode_batch_fast(list(texts), add_special_tokens=False)]
        return [self.count(text) for text in texts]

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """(start, end) in characters of each id of `encode(text, special=False)`.

        Raises:
            GatedevalError: the tokenizer gives none.
        """
        if self.fast is None:
            raise GatedevalError(f"tokenizer {self.name} gives no character offsets")
        return self.fast.encode(text, add_special_tokens=False).offsets

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`, special tokens left out."""
        if self.fast is None or self._settings.get("clean_up_tokenization_spaces"):
            return self.hf.decode(list(ids), skip_special_tokens=True)
        return self.fast.decode(list(ids), skip_special_tokens=True)

    @property
    def named_class(self) -> str | None:
        """The class of transformers that tokenizer_config.json names; None where it names none."""
        return self._settings.get("tokenizer_class")

    @cached_property
    def added_ids(self) -> frozenset[int]:
        """Ids of the added tokens, which are found in a text before it is split into words."""
        return frozenset() if self.fast is None else frozenset(self.fast.get_added_tokens_decoder())

    def token_id(self, token: str) -> int | None:
        """The id of an entry of the vocabulary; None where it has no such entry."""
        if self.fast is not None:
            found: int | None = self.fast.token_to_id(token)
            return found
        return self.hf.get_vocab().get(token)

    @property
    def has_chat_template(self) -> bool:
        """Whether the tokenizer brings a chat template."""
        return chat.has_template(self.hf)

    def render(
        self,
        messages: list[dict[str, str]],
        add_generation_prompt: bool = True,
        *,
        thinking: Thinking = NO_THINKING,
        date: datetime.date | None = None,
    ) -> str:
        """`chat` in the signature of lm-eval's chat_template: a begun assistant turn is continued, never closed."""
        if add_generation_prompt or messages[-1]["role"] != "assistant":
            return self.chat(messages, thinking=thinking, date=date)
        begun = messages[-1]["content"]
        return self.chat(messages[:-1], answer_prefix=begun, thinking=thinking, date=date)

    def chat(
        self,
        messages: list[dict[str, str]],
        *,
        answer_prefix: str = "",
        thinking: Thinking = NO_THINKING,
        date: datetime.date | None = None,
    ) -> str:
        """Render a conversation whose next turn is the assistant's, begun with `answer_prefix`.

        `date`: for a template that prints today's date; None: the day on which this tokenizer was loaded.

        Raises:
            GatedevalError: see `harness.models.chat.render`.
        """
        return chat.render(self.hf, self.name, messages, answer_prefix, thinking, date or self._loaded_on)


def _content(token: Any) -> str | None:
    """The text of a special token, which a tokenizer's files name as a string or as a mapping with `content`."""
    return token.get("content") if isinstance(token, dict) else token


def load_tokenizer(source: Any) -> Tokenizer:
    """The tokenizer of `source` (see `Tokenizer`); a path is loaded once per process while its files do not change.

    Raises:
        GatedevalError: there is no readable tokenizer, or it encodes text to nothing.
    """
    if isinstance(source, Tokenizer):
        return source
    if not isinstance(source, str | Path):
        return Tokenizer(source)
    path = Path(source)
    files = [path] if path.is_file() else [path / "tokenizer.json", path / "tokenizer_config.json"]
    return _load_path(str(source), tuple(f.stat().st_mtime_ns for f in files if f.is_file()))


@lru_cache(maxsize=8)
def _load_path(source: str, modified: tuple[int, ...]) -> Tokenizer:
    return Tokenizer(source)


def _frame(framed: list[int], bare: list[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ids that a tokenizer puts before and after a text, from one text encoded with and without them."""
    for start in range(len(framed) - len(bare) + 1):
        if framed[start : start + len(bare)] == bare:
            return tuple(framed[:start]), tuple(framed[start + len(bare) :])
    return (), ()

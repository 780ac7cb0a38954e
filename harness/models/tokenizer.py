"""The evaluated model's own tokenizer: text to the ids the model is sent, and chat rendering.

One rule for special tokens, everywhere: exactly one BOS where the tokenizer adds one, none where it adds none, also
when a chat template has put it there already; and never an EOS at the end of a prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from harness.types import GatedevalError


class Tokenizer:
    """A Hugging Face tokenizer from a local directory.

    Raises:
        GatedevalError: the directory holds no tokenizer that transformers can read.
    """

    def __init__(self, directory: Path | str) -> None:
        from transformers import AutoTokenizer

        self.directory = Path(directory)
        try:
            self.hf: Any = AutoTokenizer.from_pretrained(str(directory), trust_remote_code=False)
        except (OSError, ValueError, KeyError, ImportError) as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise GatedevalError(f"{directory}: no readable tokenizer ({reason})") from error
        if len(self.hf) == 0 or not self.hf("a", add_special_tokens=False)["input_ids"]:
            raise GatedevalError(f"{directory}: the tokenizer is empty (it encodes 'a' to nothing): files missing?")

    @cached_property
    def prefix_ids(self) -> tuple[int, ...]:
        """What the tokenizer puts before a text: (BOS,) or nothing. What it puts behind is never sent."""
        plain = self.hf("a", add_special_tokens=False)["input_ids"]
        full = self.hf("a")["input_ids"]
        for start in range(len(full) - len(plain) + 1):
            if full[start : start + len(plain)] == plain:
                return tuple(full[:start])
        return ()

    @property
    def start_id(self) -> int:
        """What a text without context is conditioned on: BOS where there is one, else end-of-text."""
        return self.hf.bos_token_id if self.hf.bos_token_id is not None else self.hf.eos_token_id

    @cached_property
    def _prefix_text(self) -> str:
        return self.hf.decode(list(self.prefix_ids)) if self.prefix_ids else ""

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """The ids of `text` as the model is sent them; `special=False` leaves BOS out (a text that goes on another)."""
        ids = list(self.hf(text, add_special_tokens=False, verbose=False)["input_ids"])
        if not special or not self.prefix_ids or (self._prefix_text and text.startswith(self._prefix_text)):
            return ids
        return [*self.prefix_ids, *ids]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`, special tokens left out."""
        return self.hf.decode(list(ids), skip_special_tokens=True)

    @property
    def has_chat_template(self) -> bool:
        """Whether the tokenizer brings a chat template."""
        return bool(getattr(self.hf, "chat_template", None))

    def render(
        self, messages: list[dict[str, str]], add_generation_prompt: bool = True, *, thinking: bool = False
    ) -> str:
        """`chat` in the signature of lm-eval's chat_template: a begun assistant turn is continued, never closed."""
        if add_generation_prompt or messages[-1]["role"] != "assistant":
            return self.chat(messages, thinking=thinking)
        return self.chat(messages[:-1], answer_prefix=messages[-1]["content"], thinking=thinking)

    def chat(self, messages: list[dict[str, str]], *, answer_prefix: str = "", thinking: bool = False) -> str:
        """Render a conversation whose next turn is the assistant's, begun with `answer_prefix`.

        The prefix is appended to the rendered text, so that no template can trim or alter it.

        Raises:
            GatedevalError: no chat template, or one that would leave the model thinking in a non-thinking run.
        """
        if not self.has_chat_template:
            raise GatedevalError(f"{self.directory}: no chat template; set `chat_template: false` for a base model")
        text = self.hf.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, enable_thinking=thinking
        )
        opened = text.rfind("<think>") > text.rfind("</think>")
        if not thinking and opened:
            raise GatedevalError(
                f"{self.directory}: the chat template opens <think> although thinking is off; it has no switch for it:"
                " set `thinking: true`, or use a template that honours enable_thinking"
            )
        return text + answer_prefix

"""RULER's samples as they are sent: inside a chat template or not, and the tokens of a length that this takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import cached_property
from typing import Any

from harness.benchmarks.protocol import Setup
from harness.types import GatedevalError
from tasks.ruler import Request, RulerSample
from tasks.ruler.counting import Counter
from tasks.ruler.lengths import ends

_SPARE = 4  # tokens


class Prompts:
    """Turns the samples of one cell into prompts. `request`: what the generator is asked for, nothing reserved yet.

    Raises:
        GatedevalError: the answer prefix would stand where a thought belongs.
    """

    def __init__(self, request: Request, setup: Setup) -> None:
        self.request, self.setup, self.tokenizer = request, setup, setup.tokenizer
        self.append = request.answer_prefix == "append"
        if setup.thinking.allowed and self.append:
            raise GatedevalError(
                f"RULER {request.task}: thinking is on, but the answer prefix begins the response, so that the model"
                " cannot think before it answers; set `answer_prefix: drop` in this entry"
            )

    @cached_property
    def reserved(self) -> int:
        """Tokens of the length that the text cannot have: special tokens, the chat template's own, a thought."""
        thought = (self.setup.thinking.tokens or 0) if self.setup.thinking.allowed else 0
        if not self.setup.chat:
            return thought + len(self.tokenizer.prefix_ids)
        # Where tokens cross from word to word, those at the template's edges depend on more than a text's ends.
        spare = 0 if Counter(self.tokenizer).piecewise else _SPARE
        return thought + max(0, *self._around) + spare

    def prompt(self, sample: RulerSample) -> str:
        """The text that is sent."""
        return self._chat(sample.input, sample.answer_prefix) if self.setup.chat else sample.prompt

    def tokens(self, sample: RulerSample, prompt: str) -> int:
        """Tokens of `prompt`, special tokens included, from the generator's count of the sample's text."""
        if not self.setup.chat:
            return sample.validity.prompt_tokens
        if sample.validity.counted == "whole":  # tokens may cross from the text into the template
            return len(self.tokenizer.encode(prompt))
        around = self._around[sample.row if len(self._around) > 1 else 0]
        return sample.validity.prompt_tokens - len(self.tokenizer.prefix_ids) + around

    def record(self, sample: RulerSample, tokens: int) -> dict[str, Any]:
        """The sample's validity, of the prompt as it is sent. `tokens`: of the prompt, special tokens included."""
        record = asdict(sample.validity)
        if not self.setup.chat:
            return record
        before = self._before - len(self.tokenizer.prefix_ids)
        offsets = [n + before for n in sample.validity.evidence_tokens]
        over = max(0, tokens + sample.validity.answer_tokens - self.request.length)
        depth = round(offsets[0] / tokens, 4) if offsets else None
        return record | {"prompt_tokens": tokens, "overshoot": over, "evidence_tokens": offsets, "depth": depth}

    def _chat(self, text: str, answer_prefix: str) -> str:
        prefix = answer_prefix.lstrip() if self.append else ""
        return self.tokenizer.chat(
            [{"role": "user", "content": text}],
            answer_prefix=prefix,
            thinking=self.setup.thinking,
            date=self.setup.date,
        )

    @cached_property
    def _ends(self) -> Sequence[tuple[str, str]]:
        """(input, answer prefix) of short texts that begin and end as the rows' do."""
        return [(text.input, text.answer_prefix) for text in ends(self.request)] or [("a", "")]

    @cached_property
    def _around(self) -> list[int]:
        """Per row (or one for all): tokens that are sent beyond those of the text that was asked for.

        A prefix that is dropped still counts in the generator's fit; its tokens, which depend on the row, stay free.
        """
        return [
            len(self.tokenizer.encode(self._chat(text, prefix)))
            - self.tokenizer.count(text + prefix if self.append else text)
            for text, prefix in self._ends
        ]

    @cached_property
    def _before(self) -> int:
        """Tokens that are sent before the text."""
        text = self._ends[0][0]
        before, found, _ = self._chat(*self._ends[0]).partition(text.strip()[:40])
        return len(self.tokenizer.encode(before)) if found and before else len(self.tokenizer.prefix_ids)

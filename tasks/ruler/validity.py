"""A rendered draft -> a sample, and what was checked: needles in the prompt, budget kept, answer not given away."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

from harness.types import GatedevalError
from tasks.ruler.family import Family, Text
from tasks.ruler.request import Request
from tasks.ruler.sample import RulerSample, Validity

CHECK_EVERY = 100
"""Of every so many samples, starting with the first, one is encoded whole and its token count compared."""


def make_sample(
    request: Request, family: Family, draft: Any, text: Text, tokens: int, row: int, *, checked: bool
) -> RulerSample:
    """The sample of a rendered draft, with its validity record.

    `tokens`: of input and answer prefix, special tokens not added. `checked`: they were compared with a whole encode.

    Raises:
        GatedevalError: prompt and answer take more than the model's `max_model_len`; nothing is ever truncated.
    """
    first = family.first_answer(draft, text)
    return RulerSample(
        task=request.task, row=row, index=row if first is None else first[0], input=text.input, outputs=text.outputs,
        length=tokens + request.answer_budget, answer_prefix=text.answer_prefix,
        token_position_answer=None if first is None else first[1],
        profile=request.profile, prefix_sent=request.answer_prefix == "append",
        validity=_validate(request, family, draft, text, tokens, row, checked),
    )  # fmt: skip


def _validate(
    request: Request, family: Family, draft: Any, text: Text, tokens: int, row: int, checked: bool
) -> Validity:
    budget, before = request.answer_budget, len(request.tokenizer.prefix_ids)
    if request.answer_prefix == "drop":
        tokens = request.tokenizer.count(text.input)
    sent = tokens + before
    if request.max_model_len is not None and sent + budget > request.max_model_len:
        raise GatedevalError(
            f"RULER {request.task} at length {request.length}, sample {row}: {sent} prompt tokens and {budget} for the "
            f"answer are {sent + budget - request.max_model_len} more than the model's limit of "
            f"{request.max_model_len}; use profile fair (it counts special tokens) or a smaller length"
        )
    offsets = [before + n for n in _evidence_offsets(family, draft, text)]
    inside = all(start < end <= len(text.input) for start, end in text.evidence) and all(n < sent for n in offsets)
    place = text.place or (None, None)
    return Validity(
        prompt_tokens=sent,
        answer_tokens=budget,
        length=request.length,
        overshoot=max(0, sent + budget - request.length),
        evidence_tokens=offsets,
        depth=round(offsets[0] / sent, 4) if offsets else None,
        evidence_present=text.complete and inside,
        answers_elsewhere=text.elsewhere,
        counted=("pieces, checked" if checked else "pieces") if family.counter.piecewise else "whole",
        document_position=place[0],
        documents=place[1],
    )


def _evidence_offsets(family: Family, draft: Any, text: Text) -> list[int]:
    """Tokens before each evidence, special tokens not added: in pieces, else from one encode of the whole input."""
    if not text.evidence:
        return []
    if family.counter.piecewise:
        return family.offsets(draft, text)
    tokenizer = family.counter.tokenizer
    if tokenizer.fast is None:
        return [tokenizer.count(text.input[:start].rstrip(" ")) for start, _ in text.evidence]
    ends = [end for _, end in tokenizer.offsets(text.input)]
    # The first token that reaches into the evidence, or into the space before it: a word owns its space.
    return [bisect_left(ends, start + (text.input[start - 1] != " ")) for start, _ in text.evidence]

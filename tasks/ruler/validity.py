"""What is checked about every sample: needles inside the prompt, the budget kept, the answer not given away."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Any

from harness.types import GatedevalError
from tasks.ruler.counting import Counter
from tasks.ruler.family import Family, Text
from tasks.ruler.sample import Validity

if TYPE_CHECKING:
    from tasks.ruler.generation import Request


def validate(
    request: Request, family: Family, counter: Counter, draft: Any, text: Text, tokens: int, row: int, counted: str = ""
) -> Validity:
    """The validity record of one sample; `tokens`: of input and answer prefix, special tokens not added.

    Raises GatedevalError where prompt and answer take more than the model's `max_model_len`: nothing is truncated.
    """
    budget, lead = request.answer_tokens, len(request.tokenizer.prefix_ids)
    if request.answer_prefix == "drop":
        tokens = request.tokenizer.count(text.input)
    sent = tokens + lead
    if request.max_model_len is not None and sent + budget > request.max_model_len:
        raise GatedevalError(
            f"RULER {request.task} at length {request.length}, sample {row}: {sent} prompt tokens and {budget} for the "
            f"answer are {sent + budget - request.max_model_len} more than the model's limit of "
            f"{request.max_model_len}; use profile fair (it counts special tokens) or a smaller length"
        )
    offsets = [lead + n for n in evidence_offsets(counter, family, draft, text)]
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
        counted=("pieces, checked" if counted else "pieces") if counter.piecewise else "whole",
        document_position=place[0],
        documents=place[1],
    )


def evidence_offsets(counter: Counter, family: Family, draft: Any, text: Text) -> list[int]:
    """Tokens before each evidence, special tokens not added: in pieces, else from one encode of the whole input."""
    if not text.evidence:
        return []
    if counter.piecewise:
        return family.offsets(draft, text)
    if counter.tokenizer.fast is None:
        return [counter.tokenizer.count(text.input[:start].rstrip(" ")) for start, _ in text.evidence]
    ends = [end for _, end in counter.tokenizer.offsets(text.input)]
    # The first token that reaches into the evidence, or into the space before it: a word owns its space.
    return [bisect_left(ends, start + (text.input[start - 1] != " ")) for start, _ in text.evidence]

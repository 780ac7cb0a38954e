"""One sample of a run as one of Inspect's: what was asked, the reference, the response, the scores."""

from __future__ import annotations

import math
import string
from typing import Any

from harness.exchange.protocol import client
from harness.types import Cell, Sample

_STOP = {"stop": "stop", "length": "max_tokens", "choose": "stop", "scored": "stop"}


def sample_of(cell: Cell, stored: Sample, model: str, *, by_length: bool = False) -> Any:
    """An `inspect_ai.log.EvalSample`. Its id is "TASK ID": one log has the samples of several tasks.

    A log that has several lengths says "TASK LENGTH ID": `by_length`.
    """
    sample = Sample(**_writable(vars(stored)))
    log, messages = client("inspect_ai.log", "inspect"), client("inspect_ai.model", "inspect")
    prompt, options = prompt_text(sample), _options(sample)
    response = _letter(sample.response, options)
    cached = int(sample.extra.get("cached_tokens") or 0)
    usage = messages.ModelUsage(
        input_tokens=sample.prompt_tokens - cached,
        input_tokens_cache_read=cached,
        output_tokens=sample.response_tokens,
        total_tokens=sample.prompt_tokens + sample.response_tokens,
    )
    output = messages.ModelOutput.from_content(model, response, _STOP.get(sample.finish_reason, "unknown"))
    output.usage, output.time = usage, sample.seconds
    return log.EvalSample(
        id=f"{cell.task} {cell.length} {sample.id}" if by_length else f"{cell.task} {sample.id}",
        epoch=1,
        input=prompt,
        choices=options or None,
        target=[_letter(reference, options) for reference in sample.references],
        messages=[messages.ChatMessageUser(content=prompt), messages.ChatMessageAssistant(content=response)],
        output=output,
        scores={metric: _score(value, response.strip(), sample) for metric, value in sample.scores.items()},
        metadata=_metadata(cell, sample),
        model_usage={model: usage},
        total_time=sample.seconds,
    )


def _writable(value: Any) -> Any:
    """`value` with every lone surrogate (an answer that was cut inside a character) as its escape, e.g. `\\ud835`.

    Inspect's files are UTF-8, which has no lone surrogates.
    """
    if isinstance(value, str):
        return value if value.isascii() else value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {_writable(k): _writable(v) for k, v in value.items()}
    return [_writable(v) for v in value] if isinstance(value, list | tuple) else value


def _score(value: float, response: str, sample: Sample) -> Any:
    cut = "The token budget cut this answer." if sample.finish_reason == "length" else None
    score = client("inspect_ai.scorer", "inspect").Score
    if math.isnan(value):
        return score(value=value, answer=response, explanation=cut, reason="no score")
    return score(value=value, answer=response, explanation=cut)


def _metadata(cell: Cell, sample: Sample) -> dict[str, Any]:
    facts = {k: v for k, v in sample.extra.items() if k not in ("prompt", "options", "cached_tokens")}
    return {
        "task": cell.task,
        **({"length": cell.length} if cell.length else {}),
        "finish_reason": sample.finish_reason,
        "prompt_tokens": sample.prompt_tokens,
        "hash": sample.hash,
        **facts,
    }


def _options(sample: Sample) -> list[str]:
    """The options that a choice was made among, without the blanks around them."""
    options = sample.extra.get("options")
    return [str(option).strip() for option in options] if isinstance(options, list) else []


def _letter(answer: str, options: list[str]) -> str:
    """A choice is stored as the option's number; Inspect's viewer writes options as A, B, C."""
    number = int(answer) if answer.isascii() and answer.isdecimal() else -1
    return string.ascii_uppercase[number] if 0 <= number < min(len(options), 26) else answer


def prompt_text(sample: Sample) -> str:
    """What the run has of the prompt: its beginning, the text around each needle, and its end.

    The excerpts of a short prompt overlap. A mark between them says that they are excerpts.
    """
    prompt = sample.extra.get("prompt")
    if not isinstance(prompt, dict):
        return f"[The run has no text of this prompt, which has {sample.prompt_tokens} tokens.]"
    parts = [prompt.get("head"), *(prompt.get("needles") or []), prompt.get("tail")]
    texts = [str(part) for part in parts if part]
    mark = f"\n\n[Excerpts of a prompt of {sample.prompt_tokens} tokens.]\n\n"
    return mark.join(texts) if len(set(texts)) > 1 else "".join(texts[:1])

"""Which part of a response is scored, with and without thinking."""

from __future__ import annotations

from collections.abc import Sequence

from harness.models.thinking import Thinking, after_thought, cut
from harness.models.tokenizer import Tokenizer
from harness.types import GatedevalError


def answer_text(response: str, thinking: Thinking, opened: bool, stop: Sequence[str], what: object) -> str:
    """The part of a response that is scored.

    `response`: the stored one, in which the tags of a thought are written out. `opened`: whether the prompt had opened
    a thought. `stop`: the task's stop strings; with thinking they end the text after the thought, and the engine was
    not given them. `what`: names the sample in the error.

    Raises:
        GatedevalError: a response with a thought in a run that has thinking off: its score would not be the model's.
    """
    if thinking.allowed:
        return cut(after_thought(response, thinking.tags, opened), stop)
    opening = thinking.tags[0]
    if opening in response:
        raise GatedevalError(
            f"{what}: the response holds {opening} although thinking is off; check the chat template, or set"
            " `thinking: true` and `thinking_tokens`"
        )
    return response


def with_tags(text: str, ids: Sequence[int], tokenizer: Tokenizer, tags: tuple[str, str]) -> str:
    """A response's text with the tags of its thought written out.

    A tag that is a special token is not part of the text that an engine returns: it is looked for among the ids.

    `text`: the response as the engine returned it. `ids`: its token ids.
    """
    special = {id: tag for tag in tags if tag not in text and (id := tokenizer.token_id(tag)) is not None}
    if not any(id in special for id in ids):
        return text
    parts, start = [], 0
    for at, id in enumerate(ids):
        if id in special:
            parts += [tokenizer.decode(ids[start:at]), special[id]]
            start = at + 1
    return "".join([*parts, tokenizer.decode(ids[start:])])

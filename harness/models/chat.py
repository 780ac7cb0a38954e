"""Chat messages -> text, by the tokenizer's own template; whatever a template does wrong is one GatedevalError."""

from __future__ import annotations

import datetime
from typing import Any

from harness.models.thinking import Thinking
from harness.types import GatedevalError, first_line


def has_template(hf: Any) -> bool:
    """Whether transformers found a chat template. (mistral-common has one in code, which makes ids and no text.)"""
    return bool(getattr(hf, "chat_template", None))


def render(
    hf: Any, name: str, messages: list[dict[str, str]], answer_prefix: str, thinking: Thinking, date: datetime.date
) -> str:
    """The conversation as text; its last turn is the assistant's, begun with `answer_prefix`.

    The prefix is appended to the rendered text, so that no template can trim or alter it. `hf`: transformers'
    tokenizer, `name`: what it is called in errors. `date`: what a template that prints today's date is given.

    Raises:
        GatedevalError: no template, several and none that is the default, one that cannot render these messages, one
            that would leave the model thinking in a run that has thinking off, or a prefix in place of a thought.
    """
    if not has_template(hf):
        raise GatedevalError(f"{name}: no chat template; set `chat_template: false` for a base model")
    template = hf.chat_template
    if isinstance(template, dict) and "default" not in template:
        raise GatedevalError(
            f"{name}: it has several chat templates ({', '.join(sorted(template))}) and none is called `default`; call"
            " the one that is to be used `default` in tokenizer_config.json, or set `chat_template: false`"
        )
    try:
        text: str = hf.apply_chat_template(
            messages,
            tokenize=False,
            add_generation_prompt=True,
            enable_thinking=thinking.allowed,
            strftime_now=lambda form: _at_midnight(date).strftime(form),  # else it would be today's
        )
    except Exception as error:  # a template is a program: it may raise anything
        roles = ", ".join(dict.fromkeys(m["role"] for m in messages))
        raise GatedevalError(
            f"{name}: the chat template cannot render a conversation of {roles} ({type(error).__name__}:"
            f" {first_line(error)}); use another template, or set `chat_template: false`"
        ) from error
    if not thinking.allowed and thinking.opened_by(text):
        opening = thinking.tags[0]
        raise GatedevalError(
            f"{name}: the chat template opens {opening} although thinking is off; it has no switch for it: set"
            " `thinking: true` and `thinking_tokens`, or use a template that honours enable_thinking"
        )
    if thinking.allowed and answer_prefix:
        raise GatedevalError(
            f"{name}: thinking is on, but the task begins the response with {answer_prefix[:40]!r}, so that the model"
            " cannot think before it answers; evaluate this task with a config that has `thinking: false`"
        )
    return text + answer_prefix


def _at_midnight(date: datetime.date) -> datetime.datetime:
    return datetime.datetime.combine(date, datetime.time())

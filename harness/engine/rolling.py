"""Log-likelihood of a text in a live eager engine: one request per window, and logits in blocks of positions."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from harness.engine.requests import Choice, EngineError, Prompt, Question, RequestError


def text_answer(
    question: Question,
    rpc: Callable[..., list[Any]],
    send: Callable[[Iterable[Prompt]], Iterable[Any]],
    empty_cache: Callable[[], None],
) -> Choice:
    """The log-likelihood (nats) of each window of a text. No other request may be in the engine.

    `rpc`: calls the worker extension in every rank. `send`: has the engine answer prompts. `empty_cache`: empties the
    prefix cache, because cached tokens do not pass through the model.

    Raises:
        RequestError: the model gives a token no finite log-likelihood.
        EngineError: the engine died, or the text did not pass through the model as a whole.
    """
    since, sent, sums = time.monotonic(), 0, []
    for ctx, continuation in question.options:
        ids = [*ctx, *continuation]
        empty_cache()
        try:
            rpc("gatedeval_losses_start", ids)
            for _ in send([Prompt(question.key, ids[:-1], max_tokens=1)]):
                sent += len(ids) - 1
            measured = next((losses for losses in rpc("gatedeval_probe_finish") if losses), b"")
        except EngineError:
            with contextlib.suppress(EngineError):  # a dead engine has no hook to remove
                rpc("gatedeval_probe_cancel")
            raise
        losses = np.frombuffer(measured, dtype=np.float32).astype(np.float64)[len(ctx) - 1 :]
        if len(losses) != len(continuation) or not np.isfinite(losses).all():
            raise RequestError(question.key, "its tokens have no finite log-likelihood")
        sums.append(-float(losses.sum()))
    return Choice(question.key, tuple(sums), (False,) * len(sums), time.monotonic() - since, sent)

"""Keep vLLM busy with a stream of requests: admit them as it has room, hand each output on as it finishes.

vLLM runs in a process of its own. If that process dies, callers get an `EngineError`, also those already waiting.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from harness.engine.requests import EngineError

Item = TypeVar("Item")

MAX_PROMPT_TOKENS = 8_000_000
"""Upper bound on prompt tokens in flight. Each takes about 36 bytes: a Python integer, here and in vLLM's process."""

_IDLE_SECONDS = 0.002  # pause before an idle engine asks again for a request that is not ready
_MAX_ERROR_LENGTH = 400  # characters of a vLLM error in our own messages


@dataclass(frozen=True)
class InFlight:
    """Limits on what is in the engine at once. Another request is admitted while both counts are below them."""

    requests: int
    prompt_tokens: int

    @classmethod
    def twice_capacity(cls, vllm_config: Any, max_model_len: int) -> InFlight:
        """Twice what vLLM can work on, so that it never waits for the next request.

        Requests: twice `max_num_seqs`. Prompt tokens: twice the KV cache, but room for two of the longest prompts.
        """
        cache = vllm_config.cache_config
        cached_tokens = (cache.num_gpu_blocks or 0) * cache.block_size
        return cls(
            requests=2 * vllm_config.scheduler_config.max_num_seqs,
            prompt_tokens=min(MAX_PROMPT_TOKENS, 2 * max(cached_tokens, max_model_len)),
        )


class RequestStream:
    """Sends requests to one vLLM engine and yields their outputs in the order in which they finish."""

    def __init__(self, vllm: Any) -> None:
        self._vllm = vllm
        self._names = itertools.count()  # vLLM needs a different name for every request
        self._closed = False

    def run(
        self, requests: Iterable[tuple[Item, Sequence[int], Any] | None], limit: InFlight
    ) -> Iterator[tuple[Item, Any, float]]:
        """Requests are (item, prompt token ids, vLLM's SamplingParams); outputs (item, RequestOutput, seconds).

        None among `requests`: the next one is not ready yet. The engine continues with those it has, then the stream
        asks again. `seconds` count from admission to the end.

        Raises:
            EngineError: vLLM's process died.
        """
        remaining = iter(requests)
        running: dict[str, tuple[Item, float, int]] = {}  # name -> item, time of admission, prompt tokens
        prompt_tokens = 0  # of all running requests
        more = True
        try:
            while more or running:
                while more and (not running or (len(running) < limit.requests and prompt_tokens < limit.prompt_tokens)):
                    try:
                        request = next(remaining)
                    except StopIteration:
                        more = False
                        break
                    if request is None:
                        time.sleep(0 if running else _IDLE_SECONDS)
                        break
                    item, ids, params = request
                    name = str(next(self._names))
                    running[name] = (item, time.monotonic(), len(ids))
                    prompt_tokens += len(ids)
                    self._vllm.add_request(name, {"prompt_token_ids": list(ids)}, params)
                for output in self._step() if running else ():
                    if output.finished:
                        item, since, size = running.pop(output.request_id)
                        prompt_tokens -= size
                        yield item, output, time.monotonic() - since
        finally:
            if running and not self._closed:
                self._vllm.abort_request(list(running))

    def close(self) -> None:
        """Tell streams that are still open that the engine is gone: they have nothing to abort."""
        self._closed = True

    def _step(self) -> list[Any]:
        try:
            return self._vllm.step()
        except Exception as error:
            raise EngineError(f"the engine died: {one_line(error)}") from error


def watch_engine_process(engine_core: Any) -> None:
    """Start a thread that wakes waiting callers with an error when vLLM's process has died.

    vLLM's synchronous client notices the death, but a caller that already waits for the next output, or for a worker's
    reply, would wait for ever. Does nothing if the engine runs in this process.
    """
    resources, outputs = getattr(engine_core, "resources", None), getattr(engine_core, "outputs_queue", None)
    if resources is None or outputs is None:
        return
    replies = getattr(engine_core, "utility_results", {})
    # The thread gets these three objects, not the client itself, which it would keep alive.
    threading.Thread(target=_wake_callers_on_death, args=(resources, outputs, replies), daemon=True).start()


def _wake_callers_on_death(resources: Any, outputs: Any, replies: dict[Any, Any]) -> None:
    from vllm.v1.engine.exceptions import EngineDeadError

    while not resources.engine_dead:
        time.sleep(0.2)
    for reply in list(replies.values()):
        with contextlib.suppress(Exception):  # the reply came, or its caller gave up, in the meantime
            reply.set_exception(EngineDeadError())
    outputs.put_nowait(EngineDeadError())


def one_line(error: Exception) -> str:
    """An error's text on one line of at most 400 characters; the error's type if the text is empty."""
    text = " ".join(str(error).split())
    short = text if len(text) <= _MAX_ERROR_LENGTH else f"{text[:_MAX_ERROR_LENGTH]} ..."
    return short or type(error).__name__

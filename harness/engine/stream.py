"""Keep vLLM busy with a stream of requests: admit them as it has room, hand each output on as it finishes.

vLLM runs in a process of its own. If that process dies, callers get an `EngineError`, also those already waiting.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from harness.engine.causes import one_line
from harness.engine.requests import EngineError

Item = TypeVar("Item")

MAX_PROMPT_TOKENS = 8_000_000
"""Upper bound on prompt tokens in flight. Each takes about 36 bytes: a Python integer, here and in vLLM's process."""

_IDLE_SECONDS = 0.002  # pause before an idle engine asks again for a request that is not ready


@dataclass(frozen=True)
class InFlight:
    """Limits on what is in the engine at once. Another request is admitted while both counts are below them."""

    requests: int
    prompt_tokens: int

    @classmethod
    def twice(cls, requests: int, cached_tokens: int, max_model_len: int) -> InFlight:
        """Twice what vLLM can work on, so that it never waits for the next request.

        `requests`: vLLM's `max_num_seqs`. Prompt tokens: twice the KV cache (`cached_tokens`), but room for two of the
        longest prompts.
        """
        return cls(
            requests=2 * requests,
            prompt_tokens=min(MAX_PROMPT_TOKENS, 2 * max(cached_tokens, max_model_len)),
        )


class RequestStream:
    """Sends requests to one vLLM engine and yields their outputs in the order in which they finish.

    `prompt`: turns token ids into what vLLM takes. `explain`: turns an error of vLLM's into one line for people.
    """

    def __init__(
        self,
        vllm: Any,
        prompt: Callable[[Sequence[int]], Any],
        explain: Callable[[BaseException], str] = one_line,
    ) -> None:
        self._vllm, self._prompt, self._explain = vllm, prompt, explain
        self._names = itertools.count()  # vLLM needs a different name for every request
        self._closed = False

    def run(
        self, requests: Iterable[tuple[Item, Sequence[int], Any] | None], limit: InFlight
    ) -> Iterator[tuple[Item, Any, float]]:
        """Requests are (item, prompt token ids, vLLM's SamplingParams); outputs (item, RequestOutput, seconds).

        None among `requests`: the next one is not ready yet. The engine continues with those it has, then the stream
        asks again. `seconds` count from admission to the end.

        Raises:
            EngineError: vLLM's process died, or vLLM refused a request.
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
                    self._add(name, ids, params)
                for output in self._step() if running else ():
                    if output.finished:
                        item, since, size = running.pop(output.request_id)
                        prompt_tokens -= size
                        yield item, output, time.monotonic() - since
        finally:
            if running and not self._closed:
                with contextlib.suppress(Exception):  # a dead engine has nothing to abort
                    self._vllm.abort_request(list(running))

    def close(self) -> None:
        """Tell streams that are still open that the engine is gone: they have nothing to abort."""
        self._closed = True

    def _add(self, name: str, ids: Sequence[int], params: Any) -> None:
        try:
            self._vllm.add_request(name, self._prompt(ids), params)
        except Exception as error:
            raise EngineError(f"the engine did not take a request: {self._explain(error)}") from error

    def _step(self) -> list[Any]:
        try:
            return self._vllm.step()
        except Exception as error:
            raise EngineError(f"the engine died: {self._explain(error)}") from error

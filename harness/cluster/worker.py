"""One engine behind calls that return at once: requests are queued, answers are collected by `poll`.

This is what a Ray actor holds (`gatedeval_app.remote`). It knows nothing of Ray. One thread owns the engine, because
vLLM's `LLMEngine` may be used by one thread alone; the calls come from others.
"""

from __future__ import annotations

import importlib
import os
import queue
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from harness.cluster.node import description
from harness.cluster.wire import Batch, Numbered, pack_answer, unpack
from harness.config import ContextSetting, EngineOptions, Model
from harness.engine.requests import EngineError, Prompt, Question, RequestError
from harness.types import GatedevalError, first_line

if TYPE_CHECKING:
    from harness.probe.plan import ProbePlan
    from harness.probe.results import ProbeResult

ENGINE = "harness.engine.engine:Engine"
"""The class that answers, as module:name. Benchmarks and tests name others."""
_LINGER = 0.002  # seconds that a poll waits for more answers after the first


class _Interrupted(Exception):
    """Ends the stream of requests while some are running, which aborts them."""


class EngineWorker:
    """`engine`: the class that answers (see `ENGINE`)."""

    def __init__(self, engine: str = ENGINE) -> None:
        self._class = engine
        self._engine: Any = None
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._inbox: deque[Prompt | Question] = deque()
        self._running: dict[int, Prompt | Question] = {}  # by number: given to the engine, not answered
        self._cancelled: set[int] = set()
        self._replies: list[tuple[str, Any]] = []
        self._interrupt = False
        self._changed = threading.Condition()
        threading.Thread(target=self._work, name="engine", daemon=True).start()

    # --- before the engine ----------------------------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        """See `description`."""
        return description()

    def check(self, models: Sequence[dict[str, Any]]) -> list[str]:
        """Why models cannot be read on this node, a sentence each; downloads hub models into the node's cache.

        `models`: each a config's `Model` as plain data, with the `fingerprint` of the driver's files.
        """
        from harness.models.checkpoint import inspect
        from harness.models.hub import resolve, tokenizer_path

        refusals = []
        for facts in models:
            model = Model(**{k: v for k, v in facts.items() if k not in ("fingerprint", "contexts")})
            try:
                directory = resolve(model)
                tokenizer_path(model, directory)
                found = inspect(directory).fingerprint()
            except GatedevalError as error:
                refusals.append(str(error))
                continue
            if found != facts["fingerprint"]:
                refusals.append(
                    f"model {model.label!r}: {directory} has other files there than on the driver's machine"
                )
        return refusals

    # --- the engine -----------------------------------------------------------------------------------------------

    def start(
        self,
        model: dict[str, Any],
        contexts: Sequence[dict[str, Any]],
        options: dict[str, Any],
        cores: Sequence[int] = (),
        vllm_arguments: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Start an engine; its facts and limits. Config entries come as plain data. `cores`: for a CPU engine.

        Raises:
            GatedevalError, EngineError: as `harness.engine.engine.Engine` raises them.
        """
        return self._call(lambda: self._start(model, contexts, options, cores, vllm_arguments or {}))

    def _start(
        self,
        model: dict[str, Any],
        contexts: Sequence[dict[str, Any]],
        options: dict[str, Any],
        cores: Sequence[int],
        vllm_arguments: dict[str, Any],
    ) -> dict[str, Any]:
        self._stop()
        if cores:
            _bind(cores, options)
        module, _, name = self._class.partition(":")
        made = getattr(importlib.import_module(module), name)
        settings = [_setting(c) for c in contexts]
        arguments = {"vllm_arguments": vllm_arguments} if vllm_arguments else {}
        self._engine = made(Model(**model), settings, EngineOptions(**options), **arguments)
        limit = getattr(self._engine, "in_flight", None)
        return {
            "facts": self._engine.facts,
            "setting": self._engine.setting.label,
            "reachable": [s.label for s in settings if self._engine.can_switch_to(s)],
            "requests": getattr(limit, "requests", 512),
            "tokens": getattr(limit, "prompt_tokens", 8_000_000),
            "eager": bool(getattr(self._engine, "arguments", {}).get("enforce_eager")),
        }

    def set_context(self, setting: dict[str, Any]) -> None:
        """Change the context setting; requests that still run are aborted. Then the engine checks itself."""
        self._call(lambda: self._set_context(_setting(setting)))

    def _set_context(self, setting: ContextSetting) -> None:
        if self._engine.setting != setting:
            self._engine.set_context(setting)
        if check := getattr(self._engine, "self_check", None):  # a stand-in of a test has no logits to look at
            check()

    def probe(self, plan: ProbePlan) -> ProbeResult:
        """Measure one text (see `harness.engine.probing.probe`); nothing else may run in the engine."""
        from harness.engine.probing import probe

        return self._call(lambda: probe(self._engine, plan))

    def submit(self, batch: Batch) -> None:
        """Queue requests."""
        requests = list(unpack(batch))
        with self._changed:
            self._inbox.extend(requests)
        self._commands.put(self._answer)

    def cancel(self, numbers: Sequence[int]) -> None:
        """Do not answer these: those that wait here are dropped, those that run are answered, and nobody is told."""
        with self._changed:
            waiting = {r.key.number for r in self._inbox if isinstance(r.key, Numbered)}
            self._cancelled |= waiting & set(numbers)

    def poll(self, seconds: float) -> list[tuple[str, Any]]:
        """What happened since the last poll; waits up to `seconds` for the first. (kind, content):

        "answer" (see `pack_answer`), "failed" ((number, error): the engine gave up on one request), "died" (error),
        "refused" (error that the user has to act on).
        """
        with self._changed:
            if self._changed.wait_for(lambda: self._replies, timeout=seconds):
                self._changed.wait(_LINGER)
            replies, self._replies = self._replies, []
        return replies

    def drain(self) -> None:
        """Forget all requests; those that run are aborted. What was answered before and not polled is dropped."""

        self._call(self._forget)

    def _forget(self) -> None:
        with self._changed:
            self._inbox.clear()
            self._running.clear()
            self._replies.clear()
            self._cancelled.clear()

    def close(self) -> None:
        """Stop the engine and wait for the end of its processes."""
        self._call(self._stop)

    def _stop(self) -> None:
        self._forget()
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()

    # --- the engine's thread --------------------------------------------------------------------------------------

    def _call(self, function: Callable[[], Any]) -> Any:
        """Run `function` in the engine's thread, between two streams of requests."""
        future: Future[Any] = Future()

        def run() -> None:
            self._interrupt = False
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)

        self._interrupt = True
        self._commands.put(run)
        return future.result()

    def _work(self) -> None:
        while (command := self._commands.get()) is not None:
            command()

    def _tell(self, kind: str, content: Any) -> None:
        with self._changed:
            self._replies.append((kind, content))
            self._changed.notify_all()

    def _answer(self) -> None:
        """Answer all that is queued, and what is queued meanwhile, until nothing is left or a call interrupts."""
        while self._engine is not None and self._inbox and not self._interrupt:
            try:
                for answer in self._engine.answer(self._requests()):
                    self._running.pop(answer.key.number, None)
                    self._tell("answer", pack_answer(answer))
            except _Interrupted:
                return
            except RequestError as error:
                self._give_up_on(error)
            except GatedevalError as error:
                self._tell("refused", str(error))
                return
            except EngineError as error:
                self._tell("died", str(error))
                return
            except Exception as error:
                self._tell("died", f"{first_line(error)}; {traceback.format_exc().splitlines()[-2].strip()}")
                return

    def _give_up_on(self, error: RequestError) -> None:
        """One request fails. The stream has aborted the others, so they are sent again."""
        if isinstance(error.key, Numbered) and self._running.pop(error.key.number, None) is not None:
            self._tell("failed", (error.key.number, str(error)))
            with self._changed:
                self._inbox.extendleft(reversed(self._running.values()))
            self._running.clear()
        else:
            self._tell("died", str(error))
            with self._changed:
                self._inbox.clear()

    def _requests(self) -> Iterator[Prompt | Question | None]:
        while True:
            if self._interrupt:
                raise _Interrupted
            with self._changed:
                request = self._inbox.popleft() if self._inbox else None
            if request is None:
                if not self._running:
                    return
                yield None
                continue
            assert isinstance(request.key, Numbered)
            if request.key.number in self._cancelled:
                self._cancelled.discard(request.key.number)
                continue
            self._running[request.key.number] = request
            yield request


def _setting(facts: dict[str, Any]) -> ContextSetting:
    return ContextSetting.model_validate_json(facts["json"])


def plain_setting(setting: ContextSetting) -> dict[str, Any]:
    """A context setting as plain data."""
    return {"json": setting.model_dump_json()}


def _bind(cores: Sequence[int], options: dict[str, Any]) -> None:
    """Keep this process and its engine on `cores`, an even part of them for each tensor-parallel rank."""
    ranks = int(options.get("tensor_parallel_size") or 1)
    share = max(1, len(cores) // ranks)
    parts = [cores[rank * share : (rank + 1) * share] or cores[-1:] for rank in range(ranks)]
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "|".join(",".join(map(str, part)) for part in parts)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)

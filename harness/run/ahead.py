"""Start the next model's engine while the present one works: most of a start is one core's work, importing vLLM."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from harness.config import ContextSetting
from harness.cost.beside import options_beside
from harness.engine.requests import EngineError
from harness.engine.vllm_api import CORE_PROCESS, end_engine_processes
from harness.run.plan import Plan
from harness.run.session import RunEngine

Start = Callable[[str, Sequence[ContextSetting]], RunEngine]
"""Starts the engine of a model, by its label, for some of its context settings. Raises EngineError."""


def fit_side_by_side(plan: Plan, one: str, other: str) -> bool:
    """Whether the engines of two models may run at once: on a CPU whose memory surely has room for both.

    On GPUs each would have to be started with a part of the memory. Two engines whose ranks run in this process
    exclude each other.
    """
    memories = [plan.longest_memory(label) for label in (one, other)]
    known = [memory for memory in memories if memory is not None]
    if len(known) < 2 or known[0].devices.kind != "cpu" or os.environ.get(CORE_PROCESS) == "0":
        return False
    return options_beside(known, plan.config.engine) is not None


@dataclass
class _Begun:
    """One start in a thread.

    `over`: set at its end. Python 3.11 calls a thread ended whose `join` a signal has interrupted.
    """

    key: tuple[str, tuple[ContextSetting, ...]]
    over: threading.Event = field(default_factory=threading.Event)
    engine: RunEngine | None = None
    error: BaseException | None = None


class Ahead:
    """Starts engines for the caller, and one more in a thread: `begin` it, and `take` it when it is needed.

    One start at a time: while an engine starts, the output of the process goes to that engine's log.

    `end`: lets a start that goes on fail soon; None: kill vLLM's processes. It is called where the `with` is left
    before the engine that was begun is taken (an error, Ctrl-C): no other engine of this process may run by then.
    """

    def __init__(self, start: Start, end: Callable[[], None] | None = None) -> None:
        self._start, self._end = start, end or end_engine_processes
        self._starting = threading.Lock()
        self._begun: _Begun | None = None

    def __enter__(self) -> Ahead:
        return self

    def __exit__(self, *exc: object) -> None:
        """Wait for the end of a start that goes on: until then messages to the user would go to the engine's log."""
        begun, self._begun = self._begun, None
        if begun is None:
            return
        while not begun.over.is_set():
            self._end()
            begun.over.wait(0.1)
        if begun.engine is not None:
            begun.engine.close()

    def begin(self, label: str, settings: Sequence[ContextSetting]) -> None:
        """Start the engine of another model in a thread; nothing where one that nobody has taken is begun already."""
        if self._begun is not None:
            return
        begun = self._begun = _Begun((label, tuple(settings)))
        threading.Thread(target=self._run, args=(begun,), name="start-ahead", daemon=True).start()

    def take(self, label: str, settings: Sequence[ContextSetting]) -> RunEngine:
        """The engine of a model: the one that was begun for it, else a new one.

        One that could not start beside the other engine is started again, now that the other one has stopped.

        Raises:
            EngineError: it could not start.
        """
        if (begun := self._begun) is not None and begun.key == (label, tuple(settings)):
            begun.over.wait()
            self._begun = None
            if begun.engine is not None:
                return begun.engine
            if begun.error is not None and not isinstance(begun.error, EngineError):
                raise begun.error
        with self._starting:
            return self._start(label, settings)

    def _run(self, begun: _Begun) -> None:
        try:
            with self._starting:
                begun.engine = self._start(*begun.key)
        except BaseException as error:  # `take` raises it in the thread that asks
            begun.error = error
        finally:
            begun.over.set()

"""What a pool needs of the system that runs its engines' processes. Ray is one (`harness.cluster.on_ray`).

The everyday tests run a pool on threads (`tests/support/thread_backend.py`), so that deaths come when the test says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from harness.engine.requests import EngineError, SelfCheckError
from harness.types import GatedevalError

Handle = Any
"""A process that holds a `harness.cluster.worker.EngineWorker`."""
Ref = Any
"""The reply to a call, which may not be there yet. Hashable."""


class ActorLost(Exception):
    """A process is gone, or cannot be reached: killed, out of memory, its node failed. The message is one line."""


class Backend(Protocol):
    """Starts processes with an `EngineWorker` each, and calls its methods. `cores`: per CPU engine; 0: it uses GPUs."""

    cores: int

    def wanted(self) -> int:
        """How many engines there should be now. It may grow, when nodes join."""

    def spawn(self, slot: int) -> Handle:
        """A new process for the engine number `slot`. It may come up later, when there is room for it."""

    def call(self, handle: Handle, method: str, *arguments: Any) -> Ref:
        """Call a method of the worker; returns at once."""

    def wait(self, refs: Sequence[Ref], seconds: float) -> list[Ref]:
        """Those of `refs` whose replies are there; waits up to `seconds` for the first.

        Without `refs`, it waits for `seconds`.
        """

    def result(self, ref: Ref) -> Any:
        """The reply of a call that has ended.

        Raises:
            ActorLost: the process ended.
            EngineError, SelfCheckError, GatedevalError: the method raised it.
        """

    def further_arguments(self) -> dict[str, Any]:
        """Further arguments of vLLM's `EngineArgs`; empty where an engine fits into one node."""

    def kill(self, handle: Handle) -> None:
        """End a process at once, its engine with it."""

    def close(self) -> None:
        """End all processes; afterwards nothing of them runs, on any node."""


_ERRORS = {error.__name__: error for error in (EngineError, SelfCheckError, GatedevalError)}


def unwrapped(reply: Any) -> Any:
    """The value of a reply of `gatedeval_app.remote.RemoteEngine.call`, or its error, raised."""
    if reply[0] == "done":
        return reply[1]
    _, name, text = reply
    raise _ERRORS.get(name, EngineError)(text)

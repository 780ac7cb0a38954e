"""What a Ray actor is made of: it makes sure that `harness` is ours before anything of it is loaded.

It lies in this package because Ray finds the class of an actor by the name of its module, on every node.
"""

from __future__ import annotations

import os
import sys
from typing import Any


class RemoteEngine:
    """Holds a `harness.cluster.worker.EngineWorker`. `engine`: the class that answers (`harness.cluster.worker`)."""

    def __init__(self, engine: str) -> None:
        from gatedeval_app import HOME, activate

        activate()
        if str(HOME) not in sys.path:  # vLLM's processes look there too
            sys.path.insert(0, str(HOME))
        os.environ.pop("OMP_NUM_THREADS", None)  # Ray's guess; the engine is told its cores
        from harness.cluster.worker import EngineWorker

        self._worker = EngineWorker(engine)

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the worker. Its own errors come back as ("error", class name, text): plain data."""
        from harness.engine.requests import EngineError
        from harness.types import GatedevalError

        try:
            value = getattr(self._worker, method)(*arguments)
            return "done", {**value, "node": _node()} if method == "describe" else value
        except (EngineError, GatedevalError) as error:
            return "error", type(error).__name__, str(error)


def _node() -> str:
    import ray

    return str(ray.get_runtime_context().get_node_id())

"""vLLM engines and `gatedeval` commands inside the test process: no second import of vLLM (6 s), starts of 1 to 3 s.

One engine lives at a time: vLLM's process groups belong to the process, so that closing one engine breaks another.
Where the process boundary is what a test looks at, it starts processes instead, and has the marker `extended`.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from harness.config import ContextSetting, EngineOptions, Model
from harness.engine.engine import Engine

NATIVE = ContextSetting(label="native")
EAGER = EngineOptions(enforce_eager=True)


@contextlib.contextmanager
def vllm_in_this_process() -> Iterator[None]:
    """Engines that are started in this `with` run here, on this worker's core under pytest-xdist.

    vLLM reads its environment again only when no engine lives in the process: close the shared one first.
    """
    shared_engine.close()
    affinity = os.sched_getaffinity(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        if worker := os.environ.get("PYTEST_XDIST_WORKER"):
            cores = sorted(affinity)
            patch.setenv("VLLM_CPU_OMP_THREADS_BIND", str(cores[int(worker.removeprefix("gw")) % len(cores)]))
        try:
            yield
        finally:
            # vLLM binds the main thread to one core, and child processes would inherit that.
            os.sched_setaffinity(0, affinity)


class SharedEngine:
    """The engine that lives in the test process. Tests that ask for the same one share it."""

    def __init__(self) -> None:
        self._key: Any = None
        self._engine: Engine | None = None

    def get(self, model: Model, *settings: ContextSetting, options: EngineOptions = EAGER) -> Engine:
        """An engine that was started for `model` and `settings`, under the first of them if it can be."""
        key = (model, settings or (NATIVE,), options)
        if self._engine is None or self._key != key:
            with vllm_in_this_process():
                self._engine, self._key = Engine(model, list(key[1]), options), key
        if self._engine.can_switch_to(key[1][0]):
            self._engine.set_context(key[1][0])
        return self._engine

    def close(self) -> None:
        """Stop the engine that runs here, if any: before engines are started in another way."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()


shared_engine = SharedEngine()


def _stream(descriptor: int) -> IO[str]:
    return open(descriptor, "w", buffering=1, encoding="utf-8", closefd=False)


_STREAMS = _stream(1), _stream(2)
"""Never closed: vLLM's logger keeps the stderr that it finds when it is imported."""


def gatedeval(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A `gatedeval` command in this process, its engines too: exit status and what it wrote, as from a process."""
    from harness.commands.main import cli

    given, code = [str(argument) for argument in arguments], 0
    with contextlib.ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.chdir(cwd)
        patch.setattr(sys, "argv", ["gatedeval", *given])
        files = []
        for descriptor, stream in enumerate(_STREAMS, start=1):
            file = stack.enter_context(tempfile.TemporaryFile())
            kept = os.dup(descriptor)
            stack.callback(os.close, kept)
            stack.callback(os.dup2, kept, descriptor)
            os.dup2(file.fileno(), descriptor)
            stack.callback(stream.flush)
            files.append(file)
        patch.setattr(sys, "stdout", _STREAMS[0])
        patch.setattr(sys, "stderr", _STREAMS[1])
        with vllm_in_this_process():
            try:
                cli(given, prog_name="gatedeval")
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else int(end.code is not None)
        for stream in _STREAMS:
            stream.flush()
        texts = []
        for file in files:
            file.seek(0)
            texts.append(file.read().decode())
    return subprocess.CompletedProcess(["gatedeval", *given], code, *texts)

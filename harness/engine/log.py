"""The engine's log: what vLLM and its processes print, kept in a file instead of on the terminal.

vLLM's processes inherit the file descriptors 1 and 2 of the process that starts them. While an engine starts, both lead
to the log; the engine's processes keep them. Afterwards only vLLM's logger in this process still writes to the log.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

_READ_BYTES = 400_000  # an error's traceback is at the end; a long run's log may have many megabytes


class EngineLog:
    """The log of one engine.

    `path`: the file, which is appended to; None: a temporary file, which `close` removes unless something failed.
    `title`: what the log's first line says about the engine.
    """

    def __init__(self, path: Path | None, title: str) -> None:
        self.temporary = path is None
        if path is None:
            descriptor, name = tempfile.mkstemp(prefix="gatedeval-engine-", suffix=".log")
            os.close(descriptor)
            path = Path(name)
        self.path = path
        # Opened to append: several processes write, each line behind the others' lines.
        self._file: IO[str] = open(path, "a", buffering=1, encoding="utf-8", errors="replace")  # noqa: SIM115
        self._start = path.stat().st_size
        self._moved: list[logging.StreamHandler] = []
        self._file.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {title}\n")

    @contextlib.contextmanager
    def redirected(self) -> Iterator[None]:
        """Within this `with`, what this process and the processes that it starts print goes to the log.

        That covers Python's `sys.stdout` and `sys.stderr` and the descriptors 1 and 2. `harness.run.progress` has a
        descriptor of its own for standard error, so the bars stay on the terminal.
        """
        streams = sys.stdout, sys.stderr
        for stream in streams:
            with contextlib.suppress(AttributeError, OSError, ValueError):
                stream.flush()
        kept = [(number, _duplicate(number)) for number in (1, 2)]
        for number, _ in kept:
            os.dup2(self._file.fileno(), number)
        sys.stdout = sys.stderr = self._file
        try:
            yield
        finally:
            sys.stdout, sys.stderr = streams
            for number, copy in kept:
                if copy is None:
                    os.close(number)
                else:
                    os.dup2(copy, number)
                    os.close(copy)
            self._move_handlers()

    def _move_handlers(self) -> None:
        """Let vLLM's logger in this process write to the log until `close`, where it writes to a terminal or pipe."""
        for handler in logging.getLogger("vllm").handlers:
            if type(handler) is logging.StreamHandler:  # no file, and no handler of a test's
                handler.setStream(self._file)
                self._moved.append(handler)

    def text(self) -> str:
        """What was written since this log was opened, at most the last 400,000 bytes."""
        with contextlib.suppress(OSError, ValueError):
            self._file.flush()
        try:
            with open(self.path, "rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(self._start, size - _READ_BYTES))
                return file.read().decode("utf-8", errors="replace")
        except OSError:  # the run directory was moved away
            return ""

    def close(self, *, failed: bool = False) -> None:
        """Stop writing. A temporary file is removed, unless the engine `failed`: then its error names the file."""
        for handler in self._moved:
            if handler.stream is self._file:
                handler.setStream(sys.stderr)
        self._moved.clear()
        self._file.close()
        if self.temporary and not failed:
            self.path.unlink(missing_ok=True)


def _duplicate(descriptor: int) -> int | None:
    """A copy of a descriptor; None if it is closed (a process without standard output)."""
    try:
        return os.dup(descriptor)
    except OSError:
        return None

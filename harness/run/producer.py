"""The process that produces samples ahead of the engine: the child side of `harness.run.prefetching`.

It reads the plan and then assignments from stdin, and writes messages to stdout: the events of each assignment, then
one of the classes below.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import queue
import sys
import threading
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from harness.benchmarks.protocol import benchmarks_of
from harness.engine.requests import SampleRequest
from harness.run.producing import Begun, CellFailed, Event, produce
from harness.types import Cell, first_line


@dataclass(frozen=True)
class AssignmentFinished:
    """All events of the assignment were sent."""


@dataclass(frozen=True)
class ProducerCrashed:
    """Producing raised an error that is not a GatedevalError: a bug. `trace`: its traceback."""

    trace: str


@dataclass(frozen=True)
class CellNotPicklable:
    """The samples of `cell` cannot be pickled (an lm-eval task with live objects): the parent has to produce them."""

    cell: Cell


def main(input_descriptor: int, output_descriptor: int) -> None:
    """Produce every assignment that comes in. Exits when the input is closed, so also when the parent dies.

    The messages have file descriptors of their own, so that nothing that a library prints can get between them.
    """
    incoming = Connection(input_descriptor, writable=False)
    outgoing = Connection(output_descriptor, readable=False)
    received: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(incoming, received), daemon=True).start()
    logging.getLogger("gatedeval").setLevel(os.environ.get("GATEDEVAL_LOG", "WARNING"))
    plan = received.get()
    if not any(b.uses_torch for b in benchmarks_of(plan.config)):
        _import_tokenizers_without_torch()
    begun: dict[Cell, Begun] = {}
    with contextlib.suppress(BrokenPipeError):  # the parent closed its end
        while True:
            send_events(produce(plan, received.get(), begun), outgoing.send_bytes)
    os._exit(0)


def _receive(incoming: Connection, received: queue.SimpleQueue[Any]) -> None:
    """Queue what the parent sends; end this process when the parent closes the pipe or dies."""
    while True:
        try:
            received.put(incoming.recv())
        except (EOFError, OSError):
            os._exit(0)
        except Exception:
            traceback.print_exc()
            os._exit(1)


def send_events(events: Iterable[Event], send: Callable[[bytes], None]) -> None:
    """Send the events of one assignment, pickled one by one, then AssignmentFinished or ProducerCrashed.

    Where the first sample of a cell cannot be pickled, CellNotPicklable takes the place of the cell's events; where a
    later one cannot, the cell fails, because its first samples were sent already.

    Raises:
        BrokenPipeError: nobody reads the messages any more.
    """
    skipped: Cell | None = None
    begun: set[Cell | None] = set()  # cells of which a sample was sent
    try:
        for event in events:
            if event.cell is not None and event.cell == skipped:
                continue
            try:
                data = _pickled(event)
            except Exception as error:  # whatever an object's own __reduce__ raises
                skipped = event.cell
                assert skipped is not None
                if skipped in begun:
                    reason = f"a sample cannot be sent from process to process ({first_line(error)})"
                    data = _pickled(CellFailed(skipped, reason))
                else:
                    data = _pickled(CellNotPicklable(skipped))
            if isinstance(event, SampleRequest):
                begun.add(event.cell)
            send(data)
        send(_pickled(AssignmentFinished()))
    except BrokenPipeError:
        raise
    except Exception:
        send(_pickled(ProducerCrashed(traceback.format_exc())))


def _pickled(message: Any) -> bytes:
    return pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)


def _import_tokenizers_without_torch() -> None:
    """Import transformers' tokenizers as if torch were not installed: a third of the time and of the memory."""
    if "torch" in sys.modules or "transformers" in sys.modules:
        return
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # transformers would warn that there is no torch
    sys.modules["torch"] = None  # type: ignore[assignment] # importlib's mark for a module that cannot be imported
    try:
        from transformers import AutoTokenizer  # noqa: F401
    finally:
        del sys.modules["torch"]

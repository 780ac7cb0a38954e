"""Files that survive a crash: atomic replacement, append-only lines, and a lock that dies with its process."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import math
import os
import socket
import struct
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from harness.types import GatedevalError

_LOCKED_HERE: set[Path] = set()  # locks of this process: a POSIX lock does not see its own process


def explain(error: OSError, doing: str, path: Path) -> GatedevalError:
    """One clear line for a file system's refusal: what was being done, where, and what to do."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        why, remedy = "the disk is full", "free some space and give the same command again: it goes on where it was"
    elif error.errno == errno.EFBIG:
        why, remedy = "the file may not grow further (file size limit)", "raise it (ulimit -f) and run again"
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        why, remedy = "the directory is not writable", "choose another output directory, or change its permissions"
    else:
        why, remedy = error.strerror or str(error), "check the path and the file system"
    return GatedevalError(f"cannot {doing} {path}: {why}; {remedy}")


def write_atomic(path: Path, text: str) -> None:
    """Replace `path` with `text` so that a reader, or a crash, sees the old file or the new one and nothing between."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "w", encoding="utf-8", newline="") as f:
            f.write(text)
            f.flush()
            os.fsync(f.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):  # what refused the file may refuse its removal: the first error is told
            temporary.unlink(missing_ok=True)
        raise explain(error, "write", path) from error


def finite(value: Any) -> Any:
    """`value` with every NaN and infinity as None: JSON has no word for them, and most readers reject Python's."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [finite(v) for v in value]
    return value


def to_line(record: Mapping[str, Any]) -> bytes:
    """One JSON line, newline included. Line separators inside strings are escaped by JSON itself."""
    try:
        text = json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:
        text = json.dumps(finite(record), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # A lone surrogate (a response cut inside a character) has no UTF-8 form; escaped, it comes back as it was.
    try:
        return text.encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(finite(record), allow_nan=False, separators=(",", ":")).encode() + b"\n"


def each_record(path: Path, use: Callable[[dict[str, Any]], None]) -> int:
    """Call `use` with every whole line of a JSON-lines file, in order; returns how many lines could not be read.

    What follows the last newline is torn: its sample is owed again, and it is not counted. A whole line that is no
    JSON object (a block of zeros after a power cut) is counted, and owed again too. A missing file has no lines.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise explain(error, "read", path) from error
    lines = data[: data.rfind(b"\n") + 1].decode("utf-8", errors="surrogateescape").split("\n")[:-1]
    unreadable = 0
    loads = json.loads
    for line in lines:
        try:
            record = loads(line)
        except ValueError:
            record = None
        if isinstance(record, dict):
            use(record)
        else:
            unreadable += 1
    return unreadable


def repair(path: Path) -> int:
    """Cut a torn last line off, so that the next append starts a line of its own; returns the bytes cut."""
    try:
        with open(path, "r+b") as f:
            size = f.seek(0, os.SEEK_END)
            end = size
            while end > 0:  # backwards in blocks: a sample file can be large, its torn tail is not
                start = max(0, end - 65536)
                f.seek(start)
                newline = f.read(end - start).rfind(b"\n")
                if newline >= 0:
                    end = start + newline + 1
                    break
                end = start
            if end < size:
                f.truncate(end)
            return size - end
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise explain(error, "repair", path) from error


class Appender:
    """An open sample file: every line is handed to the system in one write, at once.

    A killed process therefore loses no finished line; a refused write (full disk) leaves the file as it was before it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            repair(path)
            self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise explain(error, "open", path) from error

    def append(self, line: bytes) -> None:
        """Append one line; raises GatedevalError when the system refuses it, whole or in part."""
        before = os.fstat(self._fd).st_size
        try:
            view = memoryview(line)
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError as error:
            with contextlib.suppress(OSError):  # else the torn tail is cut off when the run is opened again
                os.ftruncate(self._fd, before)
            raise explain(error, "append to", self.path) from error

    def close(self) -> None:
        """Close the file; harmless when called twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class RunLock:
    """One writer per run. A POSIX record lock: the system drops it when the process ends, however it ends, and a
    child that outlives its parent (an engine worker) does not keep it, as it would keep a flock.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        if self.path in _LOCKED_HERE:
            raise GatedevalError(f"{path.parent} is already open for writing in this process (pid {os.getpid()})")
        try:
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise explain(error, "create the lock", path) from error
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.read(self._fd, 200).decode(errors="replace").strip() or "unknown"
            os.close(self._fd)
            if error.errno in (errno.EACCES, errno.EAGAIN):
                raise GatedevalError(
                    f"{path.parent} is being written by another process ({owner}); wait for it, stop it, or "
                    "choose another output directory"
                ) from error
            warnings.warn(
                f"this file system has no locks ({error.strerror}): do not write {path.parent} twice at once",
                stacklevel=2,
            )
            self._fd = -1
            return
        try:
            os.ftruncate(self._fd, 0)
            os.write(self._fd, f"pid {os.getpid()} on {socket.gethostname()}\n".encode())
        except OSError as error:
            os.close(self._fd)
            raise explain(error, "write the lock", path) from error
        _LOCKED_HERE.add(self.path)

    def release(self) -> None:
        """Give the lock back; harmless when called twice."""
        if self._fd >= 0:
            _LOCKED_HERE.discard(self.path)
            os.close(self._fd)
            self._fd = -1


def is_locked(path: Path) -> bool:
    """Whether a live process holds the lock file `path`. Asks without taking it."""
    if path.resolve() in _LOCKED_HERE:  # opening and closing it here would drop our own lock
        return True
    try:
        with open(path, "rb") as f:
            if sys.platform == "linux":
                query = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
                return struct.unpack("hhqqi", fcntl.fcntl(f, fcntl.F_GETLK, query))[0] != fcntl.F_UNLCK
            words = f.read(200).decode(errors="replace").split()
    except OSError:
        return False
    try:
        os.kill(int(words[1]), 0)
    except (IndexError, ValueError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return True

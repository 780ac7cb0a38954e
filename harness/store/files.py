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
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.text import well_formed
from harness.types import GatedevalError

_LOCKED_HERE: set[Path] = set()  # locks of this process: a POSIX lock does not see its own process


def explain(error: OSError, doing: str, path: Path) -> GatedevalError:
    """An operating system's error as one line: what failed (`doing`), on which path, why, and the remedy."""
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
    """Replace `path` with `text` atomically: readers, also after a crash, see the old file or the new one, whole."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "w", encoding="utf-8", newline="") as f:
            f.write(well_formed(text))  # an error message may quote a response
            f.flush()
            os.fsync(f.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):  # removing it may fail for the same reason: report the first error
            temporary.unlink(missing_ok=True)
        raise explain(error, "write", path) from error


def finite(value: Any) -> Any:
    """`value` with every NaN and infinity as None: JSON cannot express them."""
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
    # A lone surrogate (a response cut inside a character) has no UTF-8 form. JSON can escape it, so it is read back.
    try:
        return text.encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(finite(record), allow_nan=False, separators=(",", ":")).encode() + b"\n"


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
    """An open sample file: every line goes to the operating system in one write, without a buffer in between.

    A killed process therefore loses no finished line. A write that fails (full disk) leaves the file as it was before.
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
        """Append one line. Raises GatedevalError when the write fails, also in part."""
        before = os.fstat(self._fd).st_size
        try:
            view = memoryview(line)
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError as error:
            with contextlib.suppress(OSError):  # if this fails too, opening the run again cuts the torn line off
                os.ftruncate(self._fd, before)
            raise explain(error, "append to", self.path) from error

    def close(self) -> None:
        """Close the file; calling it twice is harmless."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class RunLock:
    """One writer per run, by a POSIX record lock.

    The system releases it when the process ends, however it ends. A child that outlives its parent (an engine worker)
    does not inherit it, as it would inherit a flock; libraries such as filelock use flock.
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
        """Release the lock; calling it twice is harmless."""
        if self._fd >= 0:
            _LOCKED_HERE.discard(self.path)
            os.close(self._fd)
            self._fd = -1


def is_locked(path: Path) -> bool:
    """Whether a live process holds the lock file `path`. It is not taken."""
    if path.resolve() in _LOCKED_HERE:  # closing any handle of the file would release this process's own lock
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

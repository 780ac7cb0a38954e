"""Reading text, JSON and JSON lines, gzipped or not, with errors that name file and line; and sha256 of files."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.text import well_formed
from harness.types import GatedevalError

_hashes: dict[tuple[str, int, int], str] = {}


def sha256_of(path: Path) -> str:
    """sha256 of a file's bytes, or of a folder's file names and bytes in order. Cached by time and size."""
    if path.is_dir():
        inner = hashlib.sha256()
        for part in sorted(p for p in path.rglob("*") if p.is_file()):
            inner.update(f"{part.relative_to(path).as_posix()}\0{sha256_of(part)}\n".encode())
        return inner.hexdigest()
    stat = path.stat()
    key = (str(path.resolve()), stat.st_mtime_ns, stat.st_size)
    if key not in _hashes:
        with path.open("rb") as file:
            _hashes[key] = hashlib.file_digest(file, "sha256").hexdigest()
    return _hashes[key]


def read_text(path: Path) -> str:
    """A file's text, gunzipped if it is gzip whatever its name. Raises GatedevalError where it cannot be read."""
    try:
        raw = path.read_bytes()
        if raw[:2] == b"\x1f\x8b":
            raw = gzip.decompress(raw)
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        where = f"byte {error.start + 1}"
        raise GatedevalError(f"{path}: {where} is not UTF-8 text; save the file as UTF-8, or bring it again") from error
    except (OSError, EOFError) as error:
        raise GatedevalError(f"{path}: cannot be read ({error}); bring it again") from error
    if text.startswith("version https://git-lfs.github.com/spec/"):
        raise GatedevalError(f"{path}: this is a Git LFS pointer, not the data; bring the file itself (git lfs pull)")
    return text


def read_json(path: Path) -> Any:
    """A JSON value, or the list of values of a JSON-lines file; gzipped or not."""
    rows = read_rows(path)
    return rows[0][1] if len(rows) == 1 and rows[0][0] == str(path) else [value for _, value in rows]


def read_rows(path: Path) -> list[tuple[str, Any]]:
    """(place, value) of each line of JSON lines, of each item of one JSON list, or of one object; gzipped or not.

    The place names the file, and the line (of a list: the item, counted from 1), for messages.
    """
    text = read_text(path)
    try:
        whole = json.loads(text)
    except json.JSONDecodeError as error:
        if error.msg != "Extra data":
            raise GatedevalError(f"{path}, line {error.lineno}: not JSON ({error.msg})") from error
        return [(f"{path}, line {number}", value) for number, value in json_lines(text, path)]
    if not isinstance(whole, list):
        return [(str(path), whole)]
    return [(f"{path}, item {number}", value) for number, value in enumerate(whole, 1)]


def text_in(row: Any, key: str, where: str, what: str) -> str:
    """The text `row[key]` of a data file's row. `where`: the row's place; `what`: what a row has, for the message.

    Raises:
        GatedevalError: it is missing, null, a number, empty, or holds half a character: a prompt made of it would be
            another one than the benchmark's, and nothing would say so.
    """
    if not isinstance(row, dict):
        raise GatedevalError(f"{where}: {what}; this is {_shown(row)}. Bring the file again")
    if key not in row:
        raise GatedevalError(f"{where}: {what}; this one has no {key!r}. Bring the file again")
    value = row[key]
    if not isinstance(value, str) or not value.strip():
        raise GatedevalError(f"{where}: {what}, texts that are not empty; {key!r} is {_shown(value)}. Mend the file")
    if well_formed(value) != value:
        raise GatedevalError(f"{where}: {key!r} has half a character (a lone surrogate): {value!a:.80}. Mend the file")
    return value


def _shown(value: Any) -> str:
    """A value in a message, as JSON has it."""
    return f"{json.dumps(value):.80}"


def json_lines(text: str, path: Path) -> Iterator[tuple[int, Any]]:
    """(line number from 1, value) of each line that is not empty. `path` is named in errors.

    Raises:
        GatedevalError: a line is not JSON.
    """
    import jsonlines

    number = 0

    def numbered() -> Iterator[str]:
        nonlocal number
        for number, line in enumerate(text.split("\n"), 1):  # noqa: B007  (the reader below takes one line at a time)
            yield line

    try:
        for value in jsonlines.Reader(numbered(), loads=json.loads).iter(allow_none=True, skip_empty=True):
            yield number, value
    except jsonlines.InvalidLineError as error:
        reason = error.__cause__.msg if isinstance(error.__cause__, json.JSONDecodeError) else error.args[0]
        raise GatedevalError(f"{path}, line {error.lineno}: not JSON ({reason})") from error

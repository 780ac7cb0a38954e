"""A real pseudo-terminal for commands under test, and what a person would have seen on it."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path

from tests.support.signals import receive_signals

Screen = list[str]


class Terminal:
    """What the few control sequences that progress bars use do to rows of text: \\r, \\n, cursor up, erase line."""

    def __init__(self) -> None:
        self.rows: Screen = [""]
        self.row = self.column = 0

    def write(self, text: str) -> None:
        for part in re.findall(r"\x1b\[\d*[A-Za-z]|.", text, re.DOTALL):
            if part == "\r":
                self.column = 0
            elif part == "\n":
                self.row += 1
                self.rows += [""] * (self.row + 1 - len(self.rows))
            elif part.startswith("\x1b[") and part.endswith("A"):
                self.row = max(0, self.row - int(part[2:-1] or 1))
            elif part.startswith("\x1b[") and part.endswith("K"):
                self.rows[self.row] = self.rows[self.row][: self.column]
            elif not part.startswith("\x1b"):
                row = self.rows[self.row].ljust(self.column)
                self.rows[self.row] = row[: self.column] + part + row[self.column + 1 :]
                self.column += 1

    def screen(self) -> Screen:
        return [row.rstrip() for row in self.rows]


def _own_the_terminal() -> None:
    """Ctrl-C goes to those whose terminal it is, and must not be ignored, as it is in a shell's background job."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    receive_signals()


def in_terminal(
    arguments: list[str],
    *,
    cwd: Path,
    columns: int = 110,
    env: dict[str, str] | None = None,
    keys: Callable[[Screen], bytes] = lambda screen: b"",
    started: Callable[[int], object] = lambda pid: None,
) -> tuple[list[Screen], int]:
    """Run Python with `arguments` on a terminal of its own; every screen it showed, and its exit status.

    `keys` is shown every screen and says what the person types next: b"\\x03" is Ctrl-C, which the terminal turns into
    a signal to every process in front of it, as it does for people. `started` is told the id of the process, which is
    also that of its session.
    """
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        preexec_fn=_own_the_terminal,
    )
    started(process.pid)
    os.close(slave)
    terminal, screens = Terminal(), []
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    while True:
        try:
            data = os.read(master, 65536)
        except OSError:  # Linux says that the last process has closed it
            break
        if not data:
            break
        terminal.write(decoder.decode(data))
        screens.append(terminal.screen())
        if typed := keys(screens[-1]):
            os.write(master, typed)
    os.close(master)
    return screens, process.wait()

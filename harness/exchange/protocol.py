"""What every tool's file offers, and how it gets its client."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Protocol

from harness.exchange.results import Results
from harness.store.files import explain
from harness.types import GatedevalError, first_line


class Send(Protocol):
    """The function `send` of every `harness/exchange/to_NAME.py`."""

    def __call__(self, results: Results, destination: str | None, project: str) -> list[str]:
        """Write `results` in the tool's form; returns where they are.

        Calling it again with the same run replaces or completes what was written, and makes no second copy.
        Raises GatedevalError where the client is not installed or refuses.
        """


def client(module: str, extra: str) -> ModuleType:
    """The tool's own package. `extra`: the extra of this project that installs it.

    Raises:
        GatedevalError: the package, or one that it needs, cannot be imported; the message has the command that
            installs it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        absent = isinstance(error, ModuleNotFoundError) and error.name == package
        reason = "it is not installed" if absent else f"it cannot be imported ({first_line(error)})"
        raise GatedevalError(
            f"--to {extra} needs the Python package {package}, but {reason}; install it with "
            f"`pip install 'gatedeval[{extra}]'` (in a checkout: `pip install -e '.[{extra}]'`)"
        ) from error


def folder(path: Path | str) -> Path:
    """The folder `path`, made where it does not exist. Raises GatedevalError where that is impossible."""
    path = Path(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise explain(error, "create the folder", path) from error
    return path

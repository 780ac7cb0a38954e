"""`python -m tasks.ruler ruler generate ...`: the commands without the rest of the project."""

from __future__ import annotations

import sys

from harness.types import GatedevalError
from tasks.ruler.commands import main

if __name__ == "__main__":
    try:
        main(prog_name="python -m tasks.ruler")
    except GatedevalError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)

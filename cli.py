"""`python cli.py ...`: the command `gatedeval`, from a checkout. The commands are in harness/commands/."""

from __future__ import annotations

from harness.commands.main import main

if __name__ == "__main__":
    main()

"""The command `lm_eval`: lm-eval's own command line, with `--model gatedeval` registered."""

from __future__ import annotations


def main() -> None:
    """Run lm-eval's command line. Importing the model registers it."""
    from harness.engine.lm_eval_model import lm_eval_main

    lm_eval_main()

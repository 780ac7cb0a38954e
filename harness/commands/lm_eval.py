"""The commands `lm_eval` and `lm-eval`: lm-eval's own command line, with `--model gatedeval` registered."""

from __future__ import annotations

import os
import sys

from harness.types import GatedevalError


def main() -> None:
    """Entry point. If GATEDEVAL_DATA is set, MMLU and GSM8k are read from that folder instead of the hub."""
    from lm_eval.__main__ import cli_evaluate

    import harness.engine.lm_eval_model  # noqa: F401 - importing it registers the model

    try:
        if os.environ.get("GATEDEVAL_DATA"):
            from harness.benchmarks.lm_tasks import serve_local_data
            from harness.data.folder import DataFolder

            serve_local_data(DataFolder())
        cli_evaluate()
    except GatedevalError as error:
        print(f"gatedeval: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()

"""A run in other people's tools: Inspect's logs, Weights & Biases, MLflow, model cards of the Hugging Face hub.

One file per tool, with one function `send` (`harness.exchange.protocol.Send`). Each imports its tool's client when it
is called, so that a client that is not installed is missed only by those who use it.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from harness.types import GatedevalError, did_you_mean

TOOLS = ("inspect", "wandb", "mlflow", "hub")
"""What `--to` takes. The function is `harness.exchange.to_NAME.send`."""

PROJECTS = ("wandb", "mlflow")
"""Tools that sort runs into projects (MLflow: experiments)."""


def export_to(run: Path | str, tool: str, destination: str | None = None, project: str | None = None) -> list[str]:
    """Write the run at `run` in the form of `tool`; returns where: files, folders or addresses.

    `destination`: a folder (mlflow: or a tracking address). Without it, inspect and hub write into RUN/inspect and
    RUN/hub, and the clients of wandb and mlflow send to where they are configured to. `project`: of wandb, or the
    experiment of mlflow; "gatedeval" unless given.

    Raises:
        GatedevalError: `tool` is unknown, its client is not installed or refuses, the run has no number yet, or the
            destination cannot be written.
    """
    from harness.exchange.results import Results
    from harness.store import Store

    if tool not in TOOLS:
        raise GatedevalError(f"cannot export to {tool!r}; choose one of {', '.join(TOOLS)}{did_you_mean(tool, TOOLS)}")
    if project is not None and tool not in PROJECTS:
        raise GatedevalError(f"--project goes with --to {' and --to '.join(PROJECTS)}, not with {tool}")
    return import_module(f"harness.exchange.to_{tool}").send(
        Results(Store.read(Path(run))), destination, project or "gatedeval"
    )


__all__ = ["PROJECTS", "TOOLS", "export_to"]

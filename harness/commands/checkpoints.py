"""The commands about checkpoints: say what one is, write a gated twin of one, write tiny ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from harness.commands.options import PATH


@click.command()
@click.argument("model")
@click.option("--subfolder", help="Folder within the directory or hub repository.")
@click.option("--revision", help="Revision of the hub repository.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def check(model: str, subfolder: str | None, revision: str | None, as_json: bool) -> None:
    """Say what the checkpoint MODEL (a directory or hub id) is, or what is wrong with it."""
    from harness.config import Model
    from harness.models.admission import admit
    from harness.run.plan_text import describe

    named = Model(label=model, path=model, subfolder=subfolder, revision=revision)
    print(describe(named, as_json=as_json))
    admit(named)  # what `plan` and `run` would refuse ends this command with exit code 2, too


@click.command()
@click.argument("source", type=PATH)
@click.argument("target", type=PATH)
@click.option("--gate", type=click.Choice(["none", "headwise", "elementwise"]), required=True)
def twin(source: Path, target: Path, gate: Any) -> None:
    """Write TARGET, a gated twin of SOURCE that computes exactly the same function.

    Its gate weights are zero, so that every gate is 0.5, and its output projection is doubled. Evaluate both: a
    difference between their scores would come from the evaluation itself.
    """
    from harness.models.twin import make_twin

    make_twin(source, target, gate)
    print(target)


@click.command("make-tiny")
@click.argument("root", type=PATH)
@click.option("--seed", default=0, show_default=True, help="Seed of the weights: several make checkpoints of an arm.")
def make_tiny(root: Path, seed: int) -> None:
    """Write ROOT/{baseline,headwise,elementwise}: tiny models with random weights, for smoke tests."""
    from harness.models.tiny import make_tiny as make

    for path in make(root, seed):
        print(path)

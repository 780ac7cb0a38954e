"""The commands about checkpoints: say what one is, write a twin or another layout of one, write tiny ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import click

from harness.commands.options import LAYOUTS, PATH
from harness.models.variant import Activation, Mode, Position


@click.command()
@click.argument("model")
@click.option("--subfolder", help="Folder within the directory or hub repository.")
@click.option("--revision", help="Revision of the hub repository.")
@click.option("--gate-layout", type=LAYOUTS, help="Where the gate rows are, if config.json does not say it.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def check(model: str, subfolder: str | None, revision: str | None, gate_layout: Any, as_json: bool) -> None:
    """Say what the checkpoint MODEL (a directory or hub id) is, or what is wrong with it."""
    from harness.config import Model
    from harness.models.admission import admit
    from harness.run.plan_text import describe

    named = Model(label=model, path=model, subfolder=subfolder, revision=revision, gate_layout=gate_layout)
    print(describe(named, as_json=as_json))
    admit(named)  # what `plan` and `run` would refuse ends this command with exit code 2, too


@click.command()
@click.argument("source", type=PATH)
@click.argument("target", type=PATH)
@click.option(
    "--gate",
    type=click.Choice(["none", "headwise", "elementwise"]),
    required=True,
    help="One gate value per head, or one per element; none only rewrites the format.",
)
@click.option("--position", type=click.Choice(get_args(Position)), help="What is gated (default: sdpa_output).")
@click.option("--mode", type=click.Choice(get_args(Mode)), help="Whether the gate multiplies (default) or is added.")
@click.option("--activation", type=click.Choice(get_args(Activation)), help="Of the gate's logits (default: sigmoid).")
@click.option("--shared", is_flag=True, default=None, help="All heads have the same gate values.")
@click.option(
    "--input-independent",
    "input_dependent",
    flag_value=False,
    default=None,
    type=bool,
    help="The logits are learned constants, no projection.",
)
def twin(source: Path, target: Path, gate: Any, **variant: Any) -> None:
    """Write TARGET, a gated twin of SOURCE that computes exactly the same function.

    Its gate's weights are such that the gate changes nothing: with a sigmoid they are zero, so that every gate is
    0.5, and the gated matrix is doubled. Evaluate both: a difference between their scores would come from the
    evaluation itself.

    With --gate alone the gate is a released one, in q_proj. With one of the options below it is one of the paper's
    other gates (config.json's `attn_gate`, docs/gates.md), with tensors of its own. An added ns_sigmoid is never zero
    and has no twin.
    """
    from harness.models.twin import make_twin
    from harness.models.variant import AttnGate

    given = {key: value for key, value in variant.items() if value is not None}
    if given and gate == "none":
        raise click.UsageError(f"--gate none has no gate, so --{next(iter(given)).replace('_', '-')} means nothing")
    make_twin(source, target, AttnGate(granularity=gate, **given) if given else gate)
    print(target)


@click.command()
@click.argument("source", type=PATH)
@click.argument("target", type=PATH)
@click.option("--layout", type=LAYOUTS, required=True, help="Where TARGET has its gate rows.")
@click.option("--gate-layout", type=LAYOUTS, help="Where SOURCE has them, if its config.json does not say it.")
def convert(source: Path, target: Path, layout: Any, gate_layout: Any) -> None:
    """Write TARGET, the gated checkpoint SOURCE with its gate rows in another place.

    \b
      per-group  in q_proj, the queries of each KV group and then their gates (the released checkpoints)
      per-head   in q_proj, each head's query rows and then its gate rows (as Qwen3-Next has them)
      separate   in a matrix of their own, self_attn.gate_proj (as AfMoE and Step have them)

    Rows are copied, so that there and back gives the same bits. TARGET computes the same function as SOURCE; vLLM
    runs it with gatedeval's plugin. `gatedeval check` says where a checkpoint has its gate rows.
    """
    from harness.models.convert import convert as write

    write(source, target, layout, gate_layout, say=lambda line: click.echo(line, err=True))
    print(target)


@click.command("make-tiny")
@click.argument("root", type=PATH)
@click.option("--seed", default=0, show_default=True, help="Seed of the weights: several make checkpoints of an arm.")
def make_tiny(root: Path, seed: int) -> None:
    """Write ROOT/{baseline,headwise,elementwise}: tiny models with random weights, for smoke tests."""
    from harness.models.tiny import make_tiny as make

    for path in make(root, seed):
        print(path)

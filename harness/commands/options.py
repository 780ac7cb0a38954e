"""What the commands share: types of arguments, and the pair of options that every command with a config has."""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO, get_args

import click

from harness import export
from harness.types import GateLayout

PATH = click.Path(path_type=Path)
LAYOUTS = click.Choice(get_args(GateLayout))
FORMATS = click.Choice(export.FORMATS)
STYLES = click.Choice(export.STYLES)
ARMS = click.Choice(["rows", "expanded", "off"])
STEPS = click.Choice(["last", "all"])

overrides_option = click.option(
    "--set", "-s", "overrides", metavar="KEY=VALUE", multiple=True,
    help="Override a config value, e.g. -s benchmarks.0.samples=20 -s engine.enforce_eager=true.",
)  # fmt: skip
data_option = click.option(
    "--data", type=PATH, help="Folder with benchmark data (default: GATEDEVAL_DATA, else the hub)."
)
infer_option = click.option(
    "--infer", type=click.Choice(["files", "recipe"]),
    help="What a comparison of arms is about: these checkpoint files, or their recipes (default: the config's, files).",
)  # fmt: skip
cluster_option = click.option(
    "--cluster", metavar="auto|local|HOST:PORT|none",
    help="Answer on a Ray cluster: the one that runs here (auto), one that is started on this machine for the run "
    "(local: all its GPUs, an engine each), or the one at an address. Default: `cluster` in CONFIG, else none.",
)  # fmt: skip
quiet_option = click.option("--quiet", "-q", is_flag=True, help="Print nothing but errors and the result.")


def length_option(text: str) -> int:
    """The type of an option that takes a length in tokens: 4096 or 4K."""
    from harness.text import read_length

    try:
        return read_length(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} {error}") from error


def finite_option(context: click.Context, parameter: click.Parameter, value: float | None) -> float | None:
    """The callback of an option that takes a number: nan and inf are none."""
    if value is not None and not math.isfinite(value):
        raise click.BadParameter(f"should be a number, is {value}")
    return value


def _budget(context: click.Context, parameter: click.Parameter, text: str | None) -> float | None:
    if text is None:
        return None
    from harness.text import read_time

    try:
        return read_time(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} {error}") from error


budget_option = click.option(
    "--budget", metavar="TIME", callback=_budget,
    help="The most time that the run may take, e.g. 2h, 90min, 1h30m: fewer samples where it would take longer.",
)  # fmt: skip


def config_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """CONFIG, --set and --data."""
    for option in (overrides_option, data_option, click.argument("config", type=PATH)):
        command = option(command)
    return command


def values(overrides: tuple[str, ...], data: Path | None) -> list[Any]:
    """--set and --data as `harness.config.load` takes them. The path goes as a pair: it must not be read as YAML."""
    return [*overrides, *([("data", str(data))] if data is not None else [])]


def with_cluster(overrides: list[Any], cluster: str | None) -> list[Any]:
    """`overrides` with --cluster: it replaces the address in the config, and keeps the config's other cluster keys."""
    if cluster is None:
        return overrides
    return [*overrides, ("cluster", None) if cluster == "none" else ("cluster.address", cluster)]


@contextlib.contextmanager
def stdout_is_data() -> Iterator[TextIO]:
    """Yield the real stdout, and send to stderr whatever else writes to file descriptor 1, engine workers included."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with os.fdopen(kept, "w", encoding="utf-8", closefd=False) as out:
            yield out
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)

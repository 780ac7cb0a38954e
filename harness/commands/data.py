"""The commands `data check` and `data fetch`. stdout is data, stderr is the rest."""

from __future__ import annotations

from pathlib import Path

import click

from harness.data.folder import DataFolder

_FOLDER = click.Path(path_type=Path)


@click.group()
def data() -> None:
    """The files that benchmarks read."""


@data.command()
@click.option("--data", "folder", type=_FOLDER, help="The data folder (default: GATEDEVAL_DATA, else the cache).")
def check(folder: Path | None) -> None:
    """Say which data sets are here, which are missing, and for which benchmark. Exit code 1 if one is broken."""
    rows = DataFolder(folder).check()
    for row in rows:
        click.echo(f"{row['name']:14} {row['state']:8} {row['sha256'][:12]:12} {row['used_by']}")
        click.echo(f"{'':14} {row['path'] or row['remedy']}")
    if any(row["state"] == "broken" for row in rows):
        raise click.exceptions.Exit(1)


@data.command()
@click.argument("names", nargs=-1)
@click.option("--data", "folder", type=_FOLDER, help="Where to put the files (default: the cache).")
def fetch(names: tuple[str, ...], folder: Path | None) -> None:
    """Download what is not here yet: all data sets, or those NAMEd (essays, squad, hotpotqa, punkt, mmlu, ...)."""
    from harness.data.catalog import DATASETS
    from harness.types import GatedevalError

    if unknown := [n for n in names if n not in DATASETS]:
        raise GatedevalError(f"no data set is called {unknown[0]!r}; there are: {', '.join(DATASETS)}")
    failed = []
    target = DataFolder(folder)
    for name in names or DATASETS:
        try:
            for _, path in target.fetch([name]):
                click.echo(f"{name}\t{path}")
        except (OSError, ValueError, ImportError) as error:
            failed.append(f"{name} ({type(error).__name__}: {error})")
    if failed:
        raise GatedevalError(f"could not download {'; '.join(failed)}")

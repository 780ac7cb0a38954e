"""`python -m tasks.demo`: train the demo's models, and put them with their cards into tasks/demo/models."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import click

from harness.types import GatedevalError
from tasks.demo import MODELS
from tasks.demo.recipe import ARMS, SHIPPED, STAGES

_DIRECTORY = click.Path(file_okay=False, path_type=Path)
_PATH = [str(Path(__file__).resolve().parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]


@click.group(help=__doc__)
def main() -> None:
    """Group of the two commands."""


@main.command()
@click.option("--out", type=_DIRECTORY, default=Path(".cache/demo"), show_default=True, help="Training states.")
@click.option("--seed", default=0, show_default=True, help="Seed of the weights and documents.")
@click.option("--workers", default=os.cpu_count() or 1, show_default="cores", help="Models at a time, one thread each.")
@click.option("--arm", "arms", type=click.Choice(list(ARMS)), multiple=True, help="Train only this model (repeatable).")
def train(out: Path, seed: int, workers: int, arms: tuple[str, ...]) -> None:
    """Train all models side by side; the same command continues after an interruption."""
    from tqdm import tqdm

    waiting = list(arms or ARMS)
    running: dict[str, subprocess.Popen[bytes]] = {}
    total = sum(stage.tokens for stage in STAGES)
    bars = {
        arm: tqdm(total=total, desc=f"{arm:12}", unit="tok", unit_scale=True, position=i, disable=None)
        for i, arm in enumerate(waiting)
    }
    failed = []
    try:
        while waiting or running:
            while waiting and len(running) < max(1, workers):
                arm = waiting.pop(0)
                # -P and the path: the child must find this `tasks`, whatever lies in the working directory.
                command = [sys.executable, "-P", "-m", "tasks.demo", "one", arm, str(out / arm), str(seed)]
                running[arm] = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": os.pathsep.join(_PATH)})
            time.sleep(1)
            for arm, process in list(running.items()):
                bars[arm].update(_seen(out / arm) - bars[arm].n)
                if process.poll() is not None:
                    del running[arm]
                    if process.returncode:
                        failed.append(arm)
    except KeyboardInterrupt:
        sys.exit(f"\nstopped; the same command continues from the last state in {out}")
    finally:
        for process in running.values():
            process.terminate()
        for bar in bars.values():
            bar.close()
    if failed:
        sys.exit(f"training failed: {', '.join(failed)} (see above); the states are in {out}")


def _seen(directory: Path) -> int:
    """Tokens trained so far, as the training process wrote them."""
    try:
        return int((directory / "progress").read_text())
    except (OSError, ValueError):
        return 0


@main.command(hidden=True)
@click.argument("arm")
@click.argument("directory", type=_DIRECTORY)
@click.argument("seed", type=int)
def one(arm: str, directory: Path, seed: int) -> None:
    """Train one model in this process."""
    from harness.store.files import RunLock
    from tasks.demo.training import Trainer

    def write_progress(tokens: int) -> None:
        (directory / "progress").write_text(str(tokens))

    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = RunLock(directory / "lock")  # two trainings in one directory would overwrite each other's state
        Trainer(arm, directory, seed).run(write_progress)
        lock.release()
    except GatedevalError as error:
        sys.exit(f"{arm}: {error}")
    except KeyboardInterrupt:  # a terminal's Ctrl-C reaches both processes: the parent prints the message
        sys.exit(130)


@main.command()
@click.option(
    "--from",
    "source",
    type=_DIRECTORY,
    default=Path(".cache/demo"),
    show_default=True,
    help="Trained models.",
)
@click.option("--to", "target", type=_DIRECTORY, default=MODELS, show_default="the package", help="Where to put them.")
@click.option("--seed", default=0, show_default=True, help="The seed that they were trained with.")
@click.option("--samples", default=100, show_default=True, help="Samples per retrieval score on the cards.")
def ship(source: Path, target: Path, seed: int, samples: int) -> None:
    """Measure the trained checkpoints, write their cards, and copy both to where the demo reads them."""
    import shutil

    from tqdm import tqdm

    from tasks.demo.card import card, read_log
    from tasks.demo.examine import examined

    work = [(arm, stage.name) for arm in ARMS for stage in SHIPPED]
    for arm, name in work:
        if not (source / arm / name / "config.json").exists():
            sys.exit(f"{source / arm} has no finished checkpoint {name!r}: train it first")
    found: dict[str, dict[str, dict[str, object]]] = {arm: {} for arm in ARMS}
    for arm, name in tqdm(work, desc="examining", disable=None):
        found[arm][name] = examined(source / arm / name, samples)
    for arm in ARMS:
        for stage in SHIPPED:
            shutil.copytree(source / arm / stage.name, target / arm / stage.name, dirs_exist_ok=True)
        text = card(arm, seed, read_log(source / arm), found[arm])
        (target / arm / "README.md").write_text(text, encoding="utf-8")
        (target / arm / "examined.json").write_text(json.dumps(found[arm], indent=2) + "\n", encoding="utf-8")
        click.echo(f"{target / arm}")


if __name__ == "__main__":
    main()

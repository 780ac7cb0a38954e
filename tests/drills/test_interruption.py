"""Runs that end by force: kill -9 at any instant, Ctrl-C, SIGTERM, a full disk, a read-only directory.

`GATEDEVAL_DRILL_CONFIG` names another config for the kill drill (its models are built beforehand; it is run from the
repository's root), `GATEDEVAL_DRILL_SEED` another seed for its instants, `GATEDEVAL_DRILL_KILLS` their number.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pytest

from harness.export import export_run
from harness.store import Store, list_runs
from tests.support import ROOT
from tests.support.signals import receive_signals
from tests.support.terminal import in_terminal

STARTED = 900.0  # seconds after which an engine must have answered, on a busy machine

CONFIG = """
name: drill
models:
  - {label: baseline, path: tiny/baseline}
  - {label: gate, path: tiny/headwise}
contexts:
  - {label: native, max_length: 768}
  - {label: YaRN, yarn: {factor: 2, original_max_position_embeddings: 768}, max_length: 1536}
benchmarks:
  - {ruler: [niah_single_1, fwe], lengths: [512, 768], samples: 8}
engine: {dtype: float32, enforce_eager: true, max_num_seqs: 4}
"""
# One thread: the fastest for so small a model, and on a busy machine two threads would wait for one another.
ONE_THREAD = {"VLLM_CPU_OMP_THREADS_BIND": str(max(os.sched_getaffinity(0)))}


@pytest.fixture(scope="module")
def folder(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("interrupted")
    (root / "tiny").symlink_to(tiny)
    (root / "drill.yaml").write_text(CONFIG)
    return root


@pytest.fixture(autouse=True)
def no_session_survives() -> Iterator[None]:
    """A failed test must not leave its run behind."""
    yield
    for session in Session.started:
        if session.process.poll() is None:
            os.killpg(session.process.pid, signal.SIGKILL)
            session.process.wait()
    Session.started.clear()


class Session:
    """One `gatedeval run` in a process group of its own."""

    started: ClassVar[list[Session]] = []

    def __init__(
        self, cwd: Path, *arguments: str, run: Path, log: Path | None = None, program: Path = ROOT / "cli.py"
    ) -> None:
        """`run`: the run directory. `log`: folder for what the process prints, by default the run's parent."""
        self.run = run
        self.err = (log or run.parent) / f"{run.name}.{uuid.uuid4().hex}.err"
        self.err.parent.mkdir(parents=True, exist_ok=True)
        with self.err.open("wb") as err, self.err.with_suffix(".out").open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, str(program), "run", *arguments, "-o", str(run)],
                cwd=cwd,
                env={**os.environ, **ONE_THREAD},
                stdout=out,
                stderr=err,
                start_new_session=True,
                preexec_fn=receive_signals,
            )
        Session.started.append(self)

    def wait_for(self, condition: Callable[[], bool], timeout: float = STARTED) -> bool:
        """Whether `condition` came true before the process ended or time was up."""
        deadline = time.monotonic() + timeout
        while self.process.poll() is None and time.monotonic() < deadline:
            if condition():
                return True
            time.sleep(0.01)
        return condition()

    def lines(self) -> int:
        return line_count(self.run)

    def end(self, timeout: float = 600) -> int:
        """Wait for the process; its exit status."""
        return self.process.wait(timeout)

    @property
    def stderr(self) -> str:
        return self.err.read_text(errors="replace")

    @property
    def stdout(self) -> str:
        return self.err.with_suffix(".out").read_text()


def line_count(run: Path) -> int:
    return sum(file.read_bytes().count(b"\n") for file in (run / "samples").glob("*.jsonl"))


def left_behind(session: int, timeout: float = 30.0) -> list[str]:
    """Processes of a session (named by its leader's process id) that are still alive after `timeout` seconds.

    They are not identified by an environment variable, because vLLM's processes overwrite it with their titles.
    """
    deadline = time.monotonic() + timeout
    while True:
        alive = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                if process.status() != psutil.STATUS_ZOMBIE and os.getsid(process.pid) == session:
                    alive.append(f"{process.pid} {' '.join(process.cmdline())[:100]}")
        if not alive or time.monotonic() > deadline:
            return alive
        time.sleep(0.1)


# ------------------------------------------------------------------------------------------------ kill -9


@pytest.mark.engine
@pytest.mark.extended
@pytest.mark.parametrize("delay", [0, 4])
def test_an_engine_does_not_outlive_its_killed_parent_while_it_starts(folder: Path, delay: float) -> None:
    """At the engine's first instant, and during the startup handshake, in which it must not wait for a dead parent."""
    session = Session(folder, "drill.yaml", run=folder / f"starting-{delay}")

    def started() -> bool:
        for child in psutil.Process(session.process.pid).children():
            with contextlib.suppress(psutil.Error):  # some end while they are looked at
                if "spawn_main" in " ".join(child.cmdline()):
                    return True
        return False

    assert session.wait_for(started), session.stderr[-2000:]
    time.sleep(delay)
    session.process.kill()
    session.end()
    assert left_behind(session.process.pid, timeout=120) == []  # it ends a second after its imports


FORKING = f"""
import multiprocessing, pathlib, sys
import vllm.utils.system_utils as system_utils


class Forked(multiprocessing.get_context("fork").Process):
    def start(self):
        super().start()
        with pathlib.Path(__file__).with_name("forked.pids").open("a") as pids:
            pids.write(f"{{self.pid}}\\n")


class Fork(type(multiprocessing.get_context("fork"))):
    Process = Forked


if __name__ == "__main__":
    system_utils.get_mp_context = Fork
    sys.path.insert(0, {str(ROOT)!r})
    from gatedeval_app import main

    main()
"""
"""The command, with an engine that is forked, as on a GPU with VLLM_WORKER_MULTIPROC_METHOD=fork. CPUs always spawn.

The program writes the engine's process id: a fork looks like its parent, and so does any child between fork and exec.
"""


@pytest.mark.engine
@pytest.mark.extended
@pytest.mark.parametrize("delay", [0, 4])
def test_nor_does_an_engine_that_was_forked(folder: Path, tmp_path: Path, delay: float) -> None:
    program, pids = tmp_path / "forking.py", tmp_path / "forked.pids"
    program.write_text(FORKING)
    session = Session(folder, "drill.yaml", run=folder / f"forking-{delay}", program=program)
    assert session.wait_for(lambda: pids.exists() and pids.read_text().endswith("\n")), session.stderr[-2000:]
    engine = psutil.Process(int(pids.read_text().split()[0]))
    time.sleep(delay)
    assert engine.status() != psutil.STATUS_ZOMBIE, f"the engine ended by itself: {session.stderr[-2000:]}"
    session.process.kill()
    session.end()
    assert left_behind(session.process.pid, timeout=120) == []


# ------------------------------------------------------------------------------------------------ Ctrl-C, SIGTERM


@pytest.mark.engine
@pytest.mark.extended
def test_ctrl_c_on_a_terminal_shuts_down_in_order(folder: Path) -> None:
    """The screen: two bars, Ctrl-C, what is finished and how to resume, nothing else. No process survives."""
    run, typed, leader = folder / "ctrl-c", [], []

    def keys(screen: list[str]) -> bytes:
        if typed or not any(re.search(r"^plan .* [1-9]\d*/128 samples, .* left$", row) for row in screen):
            return b""
        typed.append(screen)
        return b"\x03"

    screens, code = in_terminal(
        [str(ROOT / "cli.py"), "run", "drill.yaml", "-o", str(run)],
        cwd=folder, columns=300, env=ONE_THREAD, keys=keys, started=leader.append,
    )  # fmt: skip
    text = "\n".join(screens[-1])
    assert code == 130, text
    assert left_behind(leader[0]) == []
    assert re.search(r"^baseline, native, \w+ \d+ +\d+%\|.*\| \d/8$", "\n".join(typed[0]), re.MULTILINE), (
        "the cell's bar"
    )
    kept = re.search(r"interrupted by Ctrl-C: (\d+) of 128 samples are finished and kept in (\S+)\. Go on with:", text)
    assert kept is not None, text
    assert (int(kept[1]), Path(kept[2])) == (line_count(run), run)
    assert f"  gatedeval run drill.yaml -o {run}" in screens[-1]
    assert "once more to stop at once" in text
    assert "Traceback" not in text
    assert Store.read(run).finished() == (line_count(run), 128)
    assert [r["state"] for r in list_runs(folder) if r["name"] == "ctrl-c"] == ["interrupted"]


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_sigterm_to_the_group_and_a_second_ctrl_c(folder: Path) -> None:
    """SIGTERM to all processes, as a batch system sends it; Ctrl-C twice; then the same command finishes the run."""
    run = folder / "terminated"
    for signals, code, name in (([signal.SIGTERM], 143, "SIGTERM"), ([signal.SIGINT, signal.SIGINT], 130, "Ctrl-C")):
        session, before = Session(folder, "drill.yaml", run=run), line_count(run)
        assert session.wait_for(lambda: session.lines() > before), session.stderr[-2000:]  # noqa: B023
        for signum in signals:
            os.killpg(session.process.pid, signum)
            time.sleep(0.3)
        assert session.end(120) == code, session.stderr[-3000:]
        assert left_behind(session.process.pid) == []
        assert f"interrupted by {name}: {session.lines()} of 128 samples are finished" in session.stderr
        assert session.lines() > before
        assert session.stdout == ""
    kept = line_count(run)
    last = Session(folder, "drill.yaml", run=run)
    assert last.end() == 0, last.stderr[-3000:]
    assert f"{128 - kept} samples answered, {kept} found finished" in last.stderr
    assert line_count(run) == 128


# ------------------------------------------------------------------------------------------------ disks that fail


@contextlib.contextmanager
def small_disk(place: Path, *options: str) -> Iterator[Path]:
    """Mount a small file system; skips the test if this user may not."""
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", *options, "tmpfs", str(place)], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"mounting a small file system is refused here: {mounted.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def one_error(session: Session) -> str:
    """The one error message of a run that ended with exit status 2."""
    assert session.end() == 2, session.stderr[-3000:]
    assert "Traceback" not in session.stderr
    assert session.stdout == ""
    (message,) = [line for line in session.stderr.splitlines() if line.startswith("gatedeval: ")]
    assert session.stderr.splitlines()[-1] == message
    assert left_behind(session.process.pid) == []
    return message


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_full_disk_in_the_middle_of_a_run(folder: Path, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "-o", "size=8m") as disk:
        run = disk / "run"
        first = Session(folder, "drill.yaml", run=run, log=tmp_path / "log")
        assert first.wait_for(lambda: first.lines() >= 2), first.stderr[-2000:]
        with contextlib.suppress(OSError), (disk / "ballast").open("wb", buffering=0) as ballast:
            while True:
                ballast.write(bytes(4096))
        message = one_error(first)
        assert "the disk is full; free some space and give the same command again" in message
        kept = line_count(run)
        assert 2 <= kept < 128
        assert all(file.read_bytes().endswith(b"\n") for file in (run / "samples").iterdir() if file.stat().st_size)
        assert "Missing" in export_run(run, allow_partial=True), "what there is can be read"
        (disk / "ballast").unlink()
        again = Session(folder, "drill.yaml", run=run, log=tmp_path / "log")
        assert again.end() == 0, again.stderr[-3000:]
        assert f"{128 - kept} samples answered, {kept} found finished" in again.stderr
        assert line_count(run) == 128


def test_a_read_only_directory(folder: Path, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "-o", "ro,size=1m") as disk:
        session = Session(folder, "drill.yaml", run=disk / "run", log=tmp_path / "log")
        message = one_error(session)
        assert "is not writable; choose another output directory, or change its permissions" in message
        assert str(disk / "run") in message
        assert "starting vLLM" not in session.stderr, "refused before a model is loaded"


# ------------------------------------------------------------------------------------------------ 20 kills


def drill(cwd: Path, config: str, work: Path, seed: int, kills: int = 20) -> dict[str, Any]:
    """Start the run of `config` and kill it, `kills` times at random instants; then let it finish.

    A third of the kills falls before the first sample or after the last one, the others while samples run. Half of the
    kills hit the parent alone, the other half its whole process group.
    """
    chance, run = random.Random(seed), work / "killed" / "run"
    history: list[str] = []
    for n in range(kills):
        before = line_count(run)
        complete = before > 0 and len(set(Store.read(run).finished())) == 1
        phase = "end" if complete else "start" if n % 5 == 4 else "samples"
        session = Session(cwd, config, run=run)
        if phase == "samples":
            session.wait_for(lambda: session.lines() > before)  # noqa: B023  # called within the round
            time.sleep(chance.random() * 3)
        else:
            time.sleep(chance.random() * (6 if complete else 25))
        alone = chance.random() < 0.5
        hit = session.process.poll() is None
        if hit and alone:
            session.process.kill()
        elif hit:
            os.killpg(session.process.pid, signal.SIGKILL)
        session.end()
        orphans = left_behind(session.process.pid)
        whom = "the parent alone" if alone else "the group"
        history.append(f"{n + 1}: {phase}, {whom}, {before} -> {session.lines()} lines" + ("" if hit else ": was over"))
        print(history[-1], flush=True)
        assert not orphans, f"{history[-1]}: left behind {orphans}"
        assert "Traceback" not in session.stderr, session.stderr[-3000:]
    before = line_count(run)
    last = Session(cwd, config, run=run)
    assert last.end(3000) == 0, last.stderr[-3000:]
    hits = sum("was over" not in line for line in history)
    return {"run": run, "before": before, "last": last, "hits": hits}


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_killed_at_twenty_random_instants_the_table_is_the_same_byte_for_byte(folder: Path, tmp_path: Path) -> None:
    """No sample is lost or doubled, at most those in flight are answered again, and the table is the same."""
    seed = int(os.environ.get("GATEDEVAL_DRILL_SEED", "20261129"))
    config = os.environ.get("GATEDEVAL_DRILL_CONFIG")
    cwd, name = (ROOT, str(Path(config).resolve())) if config else (folder, "drill.yaml")
    print(f"seed {seed}")
    whole = Session(cwd, name, run=tmp_path / "whole" / "run")
    assert whole.end(3000) == 0, whole.stderr[-3000:]
    kills = int(os.environ.get("GATEDEVAL_DRILL_KILLS", "20"))
    done = drill(cwd, name, tmp_path, seed, kills)
    run, last = done["run"], done["last"]
    assert done["hits"] >= 0.75 * kills, "too many kills came too late: the drill proves little"

    assert last.stdout == whole.stdout
    for style, fmt in (("table5", "md"), ("table5", "csv"), ("tasks", "csv"), ("tasks", "json"), ("table5", "latex")):
        assert export_run(run, style, fmt) == export_run(whole.run, style, fmt), (style, fmt)
    assert (run / "cells.csv").read_bytes() == (whole.run / "cells.csv").read_bytes()

    store, planned = Store.read(whole.run), 0
    for cell in store.cells:
        wanted = read_lines(store.samples_path(cell))
        there = read_lines(Store.read(run).samples_path(cell))
        assert len({line["id"] for line in there}) == len(there) == len(wanted), f"{cell}: doubled or lost"
        assert {(x["id"], x["hash"]) for x in there} == {(x["id"], x["hash"]) for x in wanted}
        planned += len(wanted)
    counts = re.search(r"(\d+) samples answered, (\d+) found finished", last.stderr)
    assert counts is not None
    assert [int(n) for n in counts.groups()] == [planned - done["before"], done["before"]], "finished ones sent again"
    assert not list(run.rglob("*.tmp")), "a temporary file was left behind"


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]

"""The run directory: finished samples survive, and only samples of the current plan are read."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from harness.export import export_run
from harness.store import Store
from harness.types import Cell, GatedevalError
from tests.support import ROOT
from tests.support.killing import killed_after
from tests.support.sample_runs import sample, write_run

CELL = Cell("gated", "native", "ruler", "vt", 4096)
OTHER = Cell("gated", "native", "mmlu", "anatomy")


def opened(path: Path, planned: int | None = 3) -> Store:
    return Store.open(path, {"config": {}}, cells={CELL: planned, OTHER: None})


def python(code: str, *arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own, with the tests' helpers importable."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        text=True,
        capture_output=True,
        env=environment,
        timeout=120,
        **options,
    )  # type: ignore[call-overload]


def test_what_is_appended_is_read_back(tmp_path: Path) -> None:
    given = sample("0", {"score": 0.6}, needles=[3, 14])
    with opened(tmp_path / "r") as store:
        store.append(CELL, given)
        assert list(store.samples(CELL)) == [given]
    assert list(Store.read(tmp_path / "r").samples(CELL)) == [given]
    assert Store.read(tmp_path / "r").done(CELL) == {"0": given.hash}


def test_every_line_is_on_disk_at_once(tmp_path: Path) -> None:
    store = opened(tmp_path / "r")
    store.append(CELL, sample(0, {"score": 1.0}))
    # Another handle sees the whole line though the store is still open: nothing sits in a buffer of ours.
    assert store.samples_path(CELL).read_bytes().endswith(b"\n")
    store.close()


def test_samples_come_in_natural_order_and_the_last_line_of_an_id_wins(tmp_path: Path) -> None:
    with opened(tmp_path / "r", planned=None) as store:
        for id in ("10", "9", "0", "9"):
            store.append(CELL, sample(id, {"score": 0.0}))
        store.append(CELL, sample("9", {"score": 1.0}, hash="new"))
    read = Store.read(tmp_path / "r")
    assert [s.id for s in read.samples(CELL)] == ["0", "9", "10"]
    assert read.done(CELL)["9"] == "new-9"
    assert read.scores(CELL).scores.tolist() == [0.0, 1.0, 0.0]


@pytest.mark.parametrize("tail", [b'{"id":"1","hash":"h-1","scor', b'{"id":"1"}', b"\0\0\0", "é".encode()[:1]])
def test_a_torn_last_line_is_pending_again_and_repaired(tmp_path: Path, tail: bytes) -> None:
    with opened(tmp_path / "r") as store:
        store.append(CELL, sample(0, {"score": 1.0}))
        path = store.samples_path(CELL)
    whole = path.read_bytes()
    path.write_bytes(whole + tail)
    assert set(Store.read(tmp_path / "r").done(CELL)) == {"0"}
    assert path.read_bytes() == whole + tail, "reading repairs nothing"
    with opened(tmp_path / "r") as store:
        assert set(store.done(CELL)) == {"0"}
        store.append(CELL, sample(1, {"score": 0.0}))
        assert set(store.done(CELL)) == {"0", "1"}
    assert path.read_bytes().startswith(whole)
    assert path.read_bytes().count(b"\n") == 2


def test_a_line_without_a_hash_counts_nowhere(tmp_path: Path) -> None:
    """Its sample is pending again, so it must not be in any number either."""
    with opened(tmp_path / "r") as store:
        store.append(CELL, sample(0, {"score": 1.0}))
        path = store.samples_path(CELL)
    record = json.loads(path.read_text())
    del record["hash"]
    with path.open("a") as file:
        file.write(json.dumps({**record, "id": "1", "scores": {"score": 0.0}}) + "\n")
    read = Store.read(tmp_path / "r")
    assert set(read.done(CELL)) == set(read.known(CELL)) == {"0"}
    assert [s.id for s in read.samples(CELL)] == read.scores(CELL).ids == ["0"]
    assert read.scores(CELL).scores.tolist() == [1.0]
    assert read.summary(CELL).samples == 1


def test_a_torn_line_longer_than_a_block_is_cut_whole(tmp_path: Path) -> None:
    with opened(tmp_path / "r") as store:
        store.append(CELL, sample(0, {"score": 1.0}))
        path = store.samples_path(CELL)
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"id":"1","response":"' + b"x" * 200_000)
    with opened(tmp_path / "r") as store:
        store.append(CELL, sample(1, {"score": 1.0}))
        assert set(store.done(CELL)) == {"0", "1"}


def test_a_damaged_line_in_the_middle_is_pending_again_and_in_the_caption(tmp_path: Path) -> None:
    run = write_run(tmp_path / "r", n=3)
    path = next((run / "samples").glob("baseline__8k__gsm8k*"))
    lines = path.read_bytes().split(b"\n")
    lines[1] = b"\0" * len(lines[1])
    path.write_bytes(b"\n".join(lines))
    text = export_run(run)
    assert "Left out: 1 damaged line in the sample files" in text
    assert "baseline / 8k / gsm8k: 2 of 3 samples" in text


def test_odd_texts_survive(tmp_path: Path) -> None:
    odd = 'line\u2028sep \ud800 lone\x00 </script> \\N "q"\r\n\t中文'
    with opened(tmp_path / "r") as store:
        store.append(CELL, sample(0, {"score": 1.0}, odd=odd))
        store.append(CELL, sample(1, {"score": 0.0}))
    read = list(Store.read(tmp_path / "r").samples(CELL))
    assert read[0].extra["odd"] == odd.replace("\ud800", "\N{REPLACEMENT CHARACTER}"), (
        "half a character cannot be printed"
    )
    assert read[1].id == "1"


def test_nan_is_written_as_null_and_read_as_nan(tmp_path: Path) -> None:
    with opened(tmp_path / "r") as store:
        store.append(CELL, sample(0, {"score": float("nan")}, loglikelihood=float("-inf")))
        line = store.samples_path(CELL).read_text()
    json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    (read,) = Store.read(tmp_path / "r").samples(CELL)
    assert read.scores["score"] != read.scores["score"]


def test_resuming_keeps_samples_start_and_failures(tmp_path: Path) -> None:
    with opened(tmp_path / "r") as store:
        store.append(CELL, sample(0, {"score": 1.0}))
        store.fail(CELL, "engine died")
        start = store.manifest["start"]
    with opened(tmp_path / "r") as store:
        assert set(store.done(CELL)) == {"0"}
        assert store.failures == {CELL.key: "engine died"}
        assert store.manifest["start"] == start
        assert len(store.manifest["sessions"]) == 2


def test_a_failure_is_cleared_when_the_cell_completes(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "r", {}, cells={CELL: 2})
    store.fail(CELL, "out of memory")
    store.append(CELL, sample(0, {"score": 1.0}))
    assert store.finish() == "incomplete"
    assert Store.read(tmp_path / "r").failures == {CELL.key: "out of memory"}
    store = Store.open(tmp_path / "r", {}, cells={CELL: 2})
    store.append(CELL, sample(1, {"score": 1.0}))
    assert store.finish(note="x") == "complete"
    manifest = Store.read(tmp_path / "r").manifest
    assert manifest["failures"] == {}
    assert manifest["state"] == "complete"
    assert manifest["note"] == "x"
    assert manifest["end"] >= manifest["start"]


def test_nan_scores_are_a_failed_cell_never_zero(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "r", {}, cells={CELL: 2, OTHER: 1})
    store.append(CELL, sample(0, {"score": float("nan")}))
    store.append(CELL, sample(1, {"score": 1.0}))
    assert store.finish() == "incomplete"
    rows = (tmp_path / "r" / "cells.csv").read_text().splitlines()
    assert rows[0].startswith("model,context,benchmark,task,length,samples,score,")
    assert rows[1].startswith("gated,native,ruler,vt,4096,2,,score,2,")
    assert "1 of 2 samples have no score" in rows[1]
    assert rows[2].startswith("gated,native,mmlu,anatomy,0,0,,")


def test_lowering_and_raising_the_sample_count(tmp_path: Path) -> None:
    with opened(tmp_path / "r", planned=5) as store:
        for id in (0, 1, 4, 3):
            store.append(CELL, sample(id, {"score": 1.0}))
    with opened(tmp_path / "r", planned=3) as store:
        assert [s.id for s in store.samples(CELL)] == ["0", "1"], "ids beyond the plan do not fill its gaps"
        assert set(store.done(CELL)) == {"0", "1", "3", "4"}
    with opened(tmp_path / "r", planned=5) as store:
        assert [s.id for s in store.samples(CELL)] == ["0", "1", "3", "4"]


def test_expected_hashes_keep_stale_answers_out_of_every_number(tmp_path: Path) -> None:
    old = {str(i): f"old-{i}" for i in range(3)}
    new = {str(i): f"new-{i}" for i in range(3)}
    with opened(tmp_path / "r") as store:
        store.expect(CELL, old)
        for i in range(3):
            store.append(CELL, sample(i, {"score": 0.0}, hash="old"))
        assert store.done(CELL) == old
    with opened(tmp_path / "r") as store:  # other weights behind the same path; killed after one sample
        assert store.done(CELL) == old
        store.expect(CELL, new)
        assert store.done(CELL) == {}
        store.append(CELL, sample(1, {"score": 1.0}, hash="new"))
    half = Store.read(tmp_path / "r")
    assert half.scores(CELL).scores.tolist() == [1.0], "no mean over two different models"
    assert [s.id for s in half.samples(CELL)] == ["1"]
    with opened(tmp_path / "r") as store:  # the old weights again: nothing is done twice
        assert store.done(CELL) == {**old, "1": "new-1"}, "before this session calls `expect`: the last lines"
        assert store.known(CELL) == {"0": {"old-0"}, "1": {"old-1", "new-1"}, "2": {"old-2"}}
        store.expect(CELL, old)
        assert store.done(CELL) == old
        assert store.scores(CELL).scores.tolist() == [0.0, 0.0, 0.0]


def test_a_cell_outside_the_plan_and_a_reader_that_writes_are_refused(tmp_path: Path) -> None:
    with opened(tmp_path / "r") as store, pytest.raises(GatedevalError, match="not a planned cell"):
        store.append(Cell("x", "y", "ruler", "vt"), sample(0, {"score": 1.0}))
    with pytest.raises(GatedevalError, match="reading only"):
        Store.read(tmp_path / "r").append(CELL, sample(0, {"score": 1.0}))


def test_what_is_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(GatedevalError, match="no such directory"):
        Store.read(tmp_path / "nowhere")
    with pytest.raises(GatedevalError, match=r"no run\.json"):
        Store.read(tmp_path)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(GatedevalError, match="is damaged"):
        Store.read(tmp_path)
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(GatedevalError, match="no list of cells"):
        Store.read(tmp_path)


def test_names_that_would_collide_or_be_too_long_are_refused(tmp_path: Path) -> None:
    with pytest.raises(GatedevalError, match="share the file"):
        Store.open(tmp_path / "a", {}, cells={Cell("Gate", "c", "b", "t"): 1, Cell("gate", "c", "b", "t"): 1})
    with pytest.raises(GatedevalError, match="characters long"):
        Store.open(tmp_path / "b", {}, cells={Cell("é" * 100, "c", "b", "t"): 1})
    odd = Cell("../a/b", "c d", "b", "t\n")
    with Store.open(tmp_path / "c", {}, cells={odd: 1}) as store:
        store.append(odd, sample(0, {"score": 1.0}))
        assert store.samples_path(odd).resolve().parent == (tmp_path / "c" / "samples").resolve()


# ------------------------------------------------------------------------------------------------ one writer


def test_a_second_process_is_refused_with_the_first_ones_pid(tmp_path: Path) -> None:
    with opened(tmp_path / "r"):
        other = python(
            """
            import sys; from pathlib import Path
            from harness.store import Store; from harness.types import GatedevalError
            try: Store.open(Path(sys.argv[1]), {}, cells={})
            except GatedevalError as error: print(error)
            """,
            tmp_path / "r",
        )
        assert f"pid {os.getpid()}" in other.stdout, other.stderr
        with pytest.raises(GatedevalError, match="already open"):
            opened(tmp_path / "r")
        assert list(Store.read(tmp_path / "r").samples(CELL)) == [], "readers need no lock"
    opened(tmp_path / "r").close()


def test_a_crashed_process_leaves_no_lock_even_with_a_child_alive(tmp_path: Path) -> None:
    crashed = python(
        """
        import os, signal, sys, time; from pathlib import Path
        from harness.store import Store
        store = Store.open(Path(sys.argv[1]), {}, cells={})
        child = os.fork()
        if child == 0:            # an engine worker that outlives its parent
            os.close(1); os.close(2); time.sleep(20); os._exit(0)
        print(child, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        tmp_path / "r",
    )
    assert crashed.returncode == -signal.SIGKILL
    child = int(crashed.stdout)
    try:
        os.kill(child, 0)  # it is alive
        opened(tmp_path / "r").close()
    finally:
        os.kill(child, signal.SIGKILL)


# ------------------------------------------------------------------------------------------------ refusals


def test_a_full_disk_gives_one_clear_error_and_leaves_a_readable_run(tmp_path: Path) -> None:
    # The kernel's file size limit refuses a write in the middle of a line, as a full disk does.
    done = python(
        """
        import resource, sys; from pathlib import Path
        from tests.support.sample_runs import sample
        from harness.store import Store; from harness.types import Cell, GatedevalError
        cell = Cell("gated", "native", "ruler", "vt", 4096)
        store = Store.open(Path(sys.argv[1]), {}, cells={cell: 1000})
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, resource.RLIM_INFINITY))
        try:
            for i in range(1000): store.append(cell, sample(i, {"score": 1.0}))
        except GatedevalError as error: print(i, error)
        """,
        tmp_path / "r",
    )
    assert done.returncode == 0, done.stderr
    written, message = done.stdout.split(" ", 1)
    assert "cannot append to" in message
    assert "limit" in message
    assert message.count("\n") == 1
    read = Store.read(tmp_path / "r")
    cell = Cell("gated", "native", "ruler", "vt", 4096)
    assert len(read.done(cell)) == int(written) > 0
    assert read.samples_path(cell).read_bytes().endswith(b"\n"), "no torn line is left behind"
    with Store.open(tmp_path / "r", {}, cells={cell: 1000}) as store:
        store.append(cell, sample(written, {"score": 1.0}))
        assert len(store.done(cell)) == int(written) + 1


def test_no_space_left(tmp_path: Path) -> None:
    (tmp_path / "r" / "samples").mkdir(parents=True)
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full, the device that is always full")
    with opened(tmp_path / "r") as store:
        store.samples_path(CELL).symlink_to("/dev/full")
        with pytest.raises(GatedevalError, match="the disk is full; free some space"):
            store.append(CELL, sample(0, {"score": 1.0}))


def test_a_read_only_directory_gives_one_clear_error(tmp_path: Path) -> None:
    # Root may write anywhere, so the store runs as nobody. Paths above must let nobody through.
    place = tmp_path / "locked"
    place.mkdir(mode=0o555)
    for parent in [place, *place.parents]:
        if parent.stat().st_uid == os.getuid() and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o555)
    done = python(
        """
        import os, sys; from pathlib import Path
        from harness.store import Store; from harness.types import GatedevalError
        if os.getuid() == 0: os.setgid(65534); os.setuid(65534)
        try: Store.open(Path(sys.argv[1]) / "r", {}, cells={})
        except GatedevalError as error: print(error)
        """,
        place,
    )
    assert "is not writable; choose another output directory" in done.stdout, done.stderr
    assert done.stdout.count("\n") == 1


def test_the_manifest_is_never_half_written(tmp_path: Path) -> None:
    """Kill a process that rewrites run.json without pause: what is there is always whole."""
    path = tmp_path / "r"
    for seed in range(6):
        process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                textwrap.dedent(
                    """
                import sys; from pathlib import Path
                from harness.store import Store
                store = Store.open(Path(sys.argv[1]), {"pad": "x" * 200_000}, cells={})
                print("go", flush=True)
                i = 0
                while True: store.update_manifest(i=i); i += 1
                """
                ),
                str(path),
            ],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(random.Random(seed).random() * 0.05)
        process.kill()
        process.wait()
        process.stdout.close()
        assert len(json.loads((path / "run.json").read_text())["pad"]) == 200_000


WRITER = """
import sys, time; from pathlib import Path
from tests.support import sample_runs as runs
from harness.store import Store
settings = runs.config(lengths=(4096,), tasks=("niah_single_1", "vt"))
cells = runs.table5_cells(settings, 30)
store = Store.open(Path(sys.argv[1]), {"config": settings, "seed": 42}, cells=cells)
print("go", flush=True)
for cell in cells:
    answers = [runs.answer(cell, i, 0.6) for i in range(30)]
    store.expect(cell, {s.id: s.hash for s in answers})
    done = store.done(cell)
    for s in answers:
        if done.get(s.id) != s.hash:
            store.append(cell, s)
            time.sleep(0.0003)
print(store.finish())
"""


@pytest.mark.extended
def test_killed_at_twenty_instants_the_table_is_the_same_byte_for_byte(tmp_path: Path) -> None:
    """Acceptance 1, for the store alone: kill -9 twenty times, resume each time, and compare with a run in one go."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
    whole, killed = tmp_path / "whole" / "run", tmp_path / "killed" / "run"
    assert python(WRITER, whole).stdout.split() == ["go", "complete"]
    chance = random.Random(7)
    kills = 0
    for _ in range(20):
        process = subprocess.Popen([sys.executable, "-c", WRITER, str(killed)], stdout=subprocess.PIPE, env=environment)
        kills += killed_after(process, chance.random() * 0.03)
    assert kills >= 10, "the writer finished before it was killed: the test proves nothing"
    assert python(WRITER, killed).stdout.split()[-1] == "complete"
    for style in ("table5", "tasks"):
        for fmt in ("md", "csv", "json"):
            assert export_run(whole, style, fmt) == export_run(killed, style, fmt)
    assert (whole / "cells.csv").read_bytes() == (killed / "cells.csv").read_bytes()
    for file in sorted((whole / "samples").iterdir()):
        lines = (killed / "samples" / file.name).read_bytes().splitlines()
        assert sorted(lines) == sorted(file.read_bytes().splitlines()), "no sample is lost or doubled"


def test_errors_have_a_remedy() -> None:
    from harness.store.files import explain

    for number in (errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EIO):
        message = str(explain(OSError(number, os.strerror(number)), "write", Path("x")))
        assert message.startswith("cannot write x: ")
        assert ";" in message


def test_after_a_change_nothing_counts_until_the_samples_of_a_cell_are_known(tmp_path: Path) -> None:
    """A session under another config is killed before it has compared the second cell's samples."""
    cells: dict[Cell, int | None] = {CELL: 1, OTHER: 1}

    def session(seed: int, *expected: Cell) -> Store:
        store = Store.open(tmp_path / "r", {"config": {"seed": seed, "caption": [str(seed)]}}, cells=cells)
        for cell in expected:
            store.expect(cell, {"0": f"{seed}-0"})
        return store

    with session(1, *cells) as store:
        for cell in cells:
            store.append(cell, sample(0, {"score": 1.0}, hash="1"))
        assert store.finish() == "complete"
    with session(2, CELL) as store:
        store.append(CELL, sample(0, {"score": 0.0}, hash="2"))
        store.fail(OTHER, "the engine died")
        assert store.finish() == "incomplete", "the other cell has answers of the first config alone"
    read = Store.read(tmp_path / "r")
    assert [[s.hash for s in read.samples(cell)] for cell in cells] == [["2-0"], []]
    assert read.failures == {OTHER.key: "the engine died"}
    with session(2) as store:
        assert list(store.samples(OTHER)) == [], "the same config again does not make them right"
    with session(1, *cells) as store:
        assert store.finish() == "complete", "going back finds them"
    assert [[s.hash for s in Store.read(tmp_path / "r").samples(cell)] for cell in cells] == [["1-0"], ["1-0"]]

"""Samples produced ahead of the engine by another process, and the order in which they are sent (no engine)."""

from __future__ import annotations

import dataclasses
import os
import pickle
import random
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.config import from_dict
from harness.engine.encoding import Encoder
from harness.engine.requests import Completion, Prompt, SampleRequest
from harness.models.tokenizer import Tokenizer
from harness.run.order import BLOCK, deepest_first, in_windows, shared_tokens
from harness.run.plan import Plan, build
from harness.run.prefetching import Prefetcher, ProducerError
from harness.run.producer import send_events
from harness.run.producing import (
    Assignment,
    CellFailed,
    CellFinished,
    CellStarted,
    Event,
    SampleCached,
    produce,
)
from harness.run.scoring import scored_sample
from harness.store.files import to_line
from harness.types import Cell
from tests.support import ROOT


def plan(tiny: Path, *benchmarks: dict[str, Any], length: int = 2048, **more: Any) -> Plan:
    return build(
        from_dict(
            {
                "name": "p",
                "models": [{"label": "a", "path": str(tiny / "baseline")}],
                "contexts": [{"label": "c", "rope_theta": 1e6, "max_length": length}],
                "benchmarks": list(benchmarks),
                **more,
            }
        )
    )


NEEDLES = {"ruler": ["niah_single_1", "fwe"], "lengths": [512, 1024], "samples": 6}


def all_cells(made: Plan, files: dict[Cell, tuple[Path, ...]] | None = None) -> Assignment:
    """The assignment of every cell of a plan with one model and one setting."""
    return Assignment("a", "c", tuple(made.cells), "fingerprint", files or {})


def comparable(event: Event | None) -> Any:
    """The content of an event in a form that can be compared with `==`."""
    if isinstance(event, SampleRequest):
        request = event.request
        ids = list(request.ids) if isinstance(request, Prompt) else request.options
        return event.cell, event.id, ids, event.hash, event.prompt_hash, event.excerpt, event.extra, event.replaces
    return event


def hashes(made: Plan) -> dict[Cell, dict[str, str]]:
    """Cell -> sample id -> content hash."""
    return {e.cell: e.hashes for e in produce(made, all_cells(made)) if isinstance(e, CellFinished)}


# --- order --------------------------------------------------------------------------------------------------------


def common(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def haystacks(depths: list[int], length: int = 400) -> list[list[int]]:
    """Prompts over one haystack; prompt i has its own needle at depths[i]."""
    return [[*range(depth), 100_000 + i, *range(depth, length)] for i, depth in enumerate(depths)]


def test_shared_tokens_equals_a_comparison_of_all_pairs() -> None:
    rng = random.Random(1)
    for _ in range(50):
        prompts = [[rng.randint(0, 2) for _ in range(rng.randint(1, 12))] for _ in range(rng.randint(2, 9))]
        brute = [
            max(common(p, q) for j, q in enumerate(prompts) if j != i) for i, p in enumerate(prompts)
        ]  # fmt: skip
        assert shared_tokens(prompts) == brute
    assert shared_tokens([[70000, 1], [70000, 2], [5]]) == [1, 1, 0]  # ids beyond 16 bits, compared as numbers


def test_deepest_first_orders_by_the_depth_of_the_needles() -> None:
    depths = [40, 360, 200, 280, 120, 320]
    order = deepest_first(haystacks(depths))
    assert order is not None
    # the two deepest share the same prefix, up to the needle of the second
    assert set(order[:2]) == {1, 5}
    assert order[2:] == [3, 2, 4, 0]


def test_no_order_when_too_little_or_the_same_is_shared() -> None:
    assert deepest_first([[i, *range(400)] for i in range(8)]) is None  # nothing is shared
    assert deepest_first([[*range(20), i, *range(400)] for i in range(8)]) is None  # 20 tokens of a chat template
    assert deepest_first([[*range(300), 1000 + i] for i in range(8)]) is None  # all share the same: a few-shot prefix
    assert deepest_first([]) is None
    assert deepest_first([[1, 2, 3]]) is None


def computed(prompts: list[list[int]], blocks: int, size: int = BLOCK) -> int:
    """Tokens that a simulated engine computes: one prompt after the other, with a prefix cache of `blocks` blocks.

    The least recently used block is evicted first; of one prompt, its last block.
    """
    kept: dict[tuple[int, ...], None] = {}
    total = 0
    for ids in prompts:
        keys = [tuple(ids[: (i + 1) * size]) for i in range(len(ids) // size)]
        hits = 0
        while hits < len(keys) and keys[hits] in kept:
            hits += 1
        total += len(ids) - hits * size
        for key in reversed(keys):
            kept.pop(key, None)
            kept[key] = None
        while len(kept) > blocks:
            kept.pop(next(iter(kept)))
    return total


def test_deepest_first_computes_least_with_the_smallest_cache() -> None:
    """With a large cache every order finds the same prefixes; with a small one, only this order does."""
    rng = random.Random(3)
    prompts = haystacks([rng.randrange(0, 1600, 40) for _ in range(16)], 1600)
    order = deepest_first(prompts)
    assert order is not None
    ordered = [prompts[i] for i in order]
    roomy, tight = 16 * 100, 101
    shuffles = [rng.sample(prompts, len(prompts)) for _ in range(20)]
    best = computed(ordered, roomy)
    assert best == computed(ordered, tight)
    assert all(best <= computed(s, roomy) + 16 * BLOCK for s in shuffles)
    assert min(computed(s, tight) for s in shuffles) > best
    assert best <= 0.65 * sum(map(len, prompts))


def test_windows_yield_every_item_once_and_grow() -> None:
    prompts = haystacks([(37 * i) % 380 for i in range(60)])
    taken = list(in_windows(enumerate(prompts), lambda item: item[1], first=2000, largest=8000))
    assert sorted(i for i, _ in taken) == list(range(60))
    assert {i for i, _ in taken[:5]} == set(range(5))  # the first window: 5 prompts of 401 tokens
    assert {i for i, _ in taken[5:15]} == set(range(5, 15))  # then 4000 tokens
    source = iter(enumerate(prompts))
    first = next(in_windows(source, lambda item: item[1], first=2000, largest=8000))
    assert first[0] < 5
    assert next(source)[0] == 5  # nothing beyond the first window was read


def test_windows_end_when_the_order_does_not_matter() -> None:
    source = iter([(i, [i] * 100) for i in range(50)])
    stream = in_windows(source, lambda item: item[1], first=1000, largest=8000)
    assert [next(stream)[0] for _ in range(15)] == list(range(15))
    assert next(source)[0] == 15  # one by one after the first window


# --- producing ----------------------------------------------------------------------------------------------------


def test_order_changes_neither_ids_nor_prompts_nor_hashes(tiny: Path) -> None:
    ordered, plain = plan(tiny, NEEDLES), plan(tiny, NEEDLES, engine={"prefix_caching": False})
    streams = [[e for e in produce(p, all_cells(p)) if isinstance(e, SampleRequest)] for p in (ordered, plain)]
    ids = [[(e.cell, e.id) for e in stream] for stream in streams]
    assert ids[0] != ids[1]
    assert ids[1] == [(c, str(n)) for c in plain.cells for n in range(6)]  # without the prefix cache: by id
    assert [i for c, i in ids[0] if c.task == "fwe"] == [i for c, i in ids[1] if c.task == "fwe"]  # fwe shares nothing
    by_id = [{(e.cell, e.id): comparable(e) for e in stream} for stream in streams]
    assert by_id[0] == by_id[1]
    assert hashes(ordered) == hashes(plain)


def test_samples_with_an_answer_are_cached_and_not_pending(tiny: Path, tmp_path: Path) -> None:
    made = plan(tiny, NEEDLES)
    first = next(e for e in produce(made, all_cells(made)) if isinstance(e, SampleRequest) and e.id == "0")
    cell = first.cell
    assert cell is not None
    stored = scored_sample(first, Completion("0", "no", 1, "stop", 0.1), made.setup(cell.model))
    lines = [stored, dataclasses.replace(stored, id="1", hash="of another prompt")]
    file = tmp_path / "samples.jsonl"
    file.write_bytes(b"".join(to_line(dataclasses.asdict(line)) for line in lines))
    events = [e for e in produce(made, all_cells(made, {cell: (file,)})) if e.cell == cell]
    assert SampleCached(cell, stored.prompt_tokens) in events
    assert [type(e) for e in events].count(SampleCached) == 1
    assert {e.id: e.replaces for e in events if isinstance(e, SampleRequest)} == {
        "1": True, "2": False, "3": False, "4": False, "5": False,
    }  # fmt: skip


def test_nothing_is_encoded_twice(tiny: Path, shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One encoding per prompt; for a question, one of its context and one per option."""
    made = plan(
        tiny, NEEDLES, {"mmlu": {"subjects": ["anatomy"], "samples": 5}}, data=str(shared / "data"), length=8192
    )
    encoded: list[str] = []
    encode = Tokenizer.encode

    def counted(self: Tokenizer, text: str, *, special: bool = True) -> list[int]:
        encoded.append(text)
        return encode(self, text, special=special)

    monkeypatch.setattr(Tokenizer, "encode", counted)
    events = [e for e in produce(made, all_cells(made)) if isinstance(e, SampleRequest)]
    prompts = [e for e in events if isinstance(e.request, Prompt)]
    questions = [e for e in events if not isinstance(e.request, Prompt)]
    assert (len(prompts), len(questions)) == (24, 5)
    assert len(encoded) == 24 + 5 * (1 + 4)
    assert len(set(encoded)) == len(encoded)


def test_content_hashes_equal_those_of_earlier_versions(tiny: Path) -> None:
    """A run directory resumes only while they stay: these values were computed at commit db92fd7."""
    made = plan(tiny, NEEDLES)
    planned, [setting] = made.models["a"], made.config.contexts
    encoder = Encoder(made.setup("a").tokenizer, planned.checkpoint, setting, 2048, "float32")
    prompt = SampleRequest(id="0", label="k", prompt="a prompt", stop=("\n",))
    question = SampleRequest(id="1", label="k", options=(("a b", " c"), ("a b", " d e")))
    assert [encoder.hashes(encoder.encode(sample), "f") for sample in (prompt, question)] == [
        ("eeb994975ec3ac08256e3b84fdc9bf25", "c9c58efb49797814e00a77a0e2cf63ae"),
        ("bf7bf87fadf1dd6df6d13728caf2e46c", "b0fd098512cf370f4d4d582430586cfa"),
    ]


# --- the process --------------------------------------------------------------------------------------------------


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(pid: int, seconds: float = 60) -> bool:
    deadline = time.monotonic() + seconds
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not alive(pid)


def test_the_process_yields_the_same_events_and_ends_with_the_prefetcher(tiny: Path) -> None:
    """The same as `produce` here; also when polled, with room for one prompt, and for a second assignment."""
    made = plan(tiny, NEEDLES)
    here = [comparable(e) for e in produce(made, all_cells(made))]
    with Prefetcher(made, ahead=1) as prefetcher:
        assert [comparable(e) for e in prefetcher.events(all_cells(made))] == here
        pid = prefetcher.pid
        second = all_cells(made)
        prefetcher.prefetch(second)
        polled = [e for e in prefetcher.events(second, busy=lambda: True) if e is not None]
        assert [comparable(e) for e in polled] == here
        assert prefetcher.pid == pid
        sample = next(e for e in polled if isinstance(e, SampleRequest))
        assert sample.score(None, sample.references[0]) == {"score": 1.0, "word_bounded": 1.0}  # type: ignore[arg-type]
    assert prefetcher.pid is None
    assert pid is not None
    assert not alive(pid)


def test_a_library_that_prints_at_its_import_does_not_disturb_the_messages(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os; print('hello'); os.write(1, b'more' * 9)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    made = plan(tiny, NEEDLES)
    with Prefetcher(made) as prefetcher:
        events = [comparable(e) for e in prefetcher.events(all_cells(made))]
    assert events == [comparable(e) for e in produce(made, all_cells(made))]


def test_a_prompt_that_is_not_what_its_generator_counted_fails_its_cell(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = plan(tiny, NEEDLES)
    encode = Encoder.encode

    def loses_a_token(encoder: Encoder, sample: SampleRequest) -> Any:
        request = encode(encoder, sample)
        assert isinstance(request, Prompt)
        return replace(request, ids=request.ids[1:])

    monkeypatch.setattr(Encoder, "encode", loses_a_token)
    failed = [e for e in produce(made, all_cells(made)) if isinstance(e, CellFailed)]
    assert len(failed) == len(made.cells)
    assert re.search(r"counted \d+ prompt tokens, and \d+ would be sent", failed[0].error)


def test_a_killed_process_fails_its_cell_and_another_produces_the_rest(tiny: Path) -> None:
    made = plan(tiny, NEEDLES)
    with Prefetcher(made, ahead=1) as prefetcher:
        stream = prefetcher.events(all_cells(made))
        first = next(stream)
        assert isinstance(first, CellStarted)
        pid = prefetcher.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        events = [e for e in stream if e is not None]
    ends = {e.cell: e for e in events if isinstance(e, CellFinished | CellFailed)}
    assert list(ends) == list(made.cells)
    failed = [e for e in ends.values() if isinstance(e, CellFailed)]
    assert 1 <= len(failed) < len(ends)
    assert "died (signal 9); run again" in failed[0].error


def test_an_error_fails_its_cell_and_a_cancelled_assignment_leaves_no_process(tiny: Path) -> None:
    """A length that is too small for one task fails that cell. A caller can stop while the pipe is full."""
    made = plan(tiny, {"ruler": ["vt", "fwe"], "lengths": [300], "samples": 2})
    assert made.refusals
    made.cells = {Cell("a", "c", "ruler", task, 300): 2 for task in ("vt", "fwe")}
    here = [comparable(e) for e in produce(made, all_cells(made))]
    with Prefetcher(made) as prefetcher:
        events = [comparable(e) for e in prefetcher.events(all_cells(made))]
        assert events == here
        [failed] = [e for e in events if isinstance(e, CellFailed)]
        assert failed.cell.task == "vt"
        assert "vt at length 300" in failed.error
        pid = prefetcher.pid
        many = plan(tiny, {"ruler": ["fwe"], "lengths": [2048], "samples": 2000})
        prefetcher.plan = many
        prefetcher.close()
        stream = prefetcher.events(all_cells(many))
        assert isinstance(next(stream), CellStarted)
        second = prefetcher.pid
        stream.close()  # type: ignore[attr-defined]
        assert prefetcher.pid is None
    for number in (pid, second):
        assert number is not None
        assert not alive(number)


def test_a_bug_raises_an_error_with_the_traceback(tiny: Path) -> None:
    made = plan(tiny, NEEDLES)
    with Prefetcher(made) as prefetcher:
        nowhere = Assignment("a", "no such setting", tuple(made.cells), "f", {})
        with pytest.raises(ProducerError, match="Traceback"):
            list(prefetcher.events(nowhere))
        assert prefetcher.pid is None


def test_the_process_ends_when_its_parent_is_killed(tiny: Path) -> None:
    script = f"""
import sys, time
sys.path.insert(0, {str(ROOT)!r})
from tests.drills.test_prefetching import Prefetcher, NEEDLES, Path, all_cells, plan
made = plan(Path({str(tiny)!r}), NEEDLES)
prefetcher = Prefetcher(made, ahead=1)
stream = prefetcher.events(all_cells(made))
next(stream)
print(prefetcher.pid, flush=True)
time.sleep(600)
"""
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert alive(pid)
    parent.kill()
    parent.wait()
    assert gone(pid)


class _Live:
    """An object that cannot be pickled."""

    def __reduce__(self) -> Any:
        raise TypeError("a live object")


def test_a_cell_that_cannot_be_pickled_is_left_to_the_parent(tiny: Path) -> None:
    made = plan(tiny, NEEDLES)
    events = list(produce(made, all_cells(made)))
    unpicklable = next(iter(made.cells))
    for event in events:
        if isinstance(event, SampleRequest) and event.cell == unpicklable:
            event.extra["live"] = _Live()
    sent: list[Any] = []
    send_events(events, lambda data: sent.append(pickle.loads(data)))
    of_the_cell = [m for m in sent if getattr(m, "cell", None) == unpicklable]
    assert [type(m).__name__ for m in of_the_cell] == ["CellStarted", "CellNotPicklable"]
    assert type(sent[-1]).__name__ == "AssignmentFinished"
    assert len(sent) == 1 + 2 + sum(e.cell != unpicklable for e in events)


def test_a_later_sample_that_cannot_be_pickled_fails_its_cell(tiny: Path) -> None:
    made = plan(tiny, NEEDLES)
    events = list(produce(made, all_cells(made)))
    unpicklable = next(iter(made.cells))
    second = [e for e in events if isinstance(e, SampleRequest) and e.cell == unpicklable][1]
    second.extra["live"] = _Live()
    sent: list[Any] = []
    send_events(events, lambda data: sent.append(pickle.loads(data)))
    of_the_cell = [m for m in sent if getattr(m, "cell", None) == unpicklable]
    assert [type(m).__name__ for m in of_the_cell] == ["CellStarted", "SampleRequest", "CellFailed"]
    assert "from process to process (a live object)" in of_the_cell[-1].error


@pytest.mark.slow
def test_500_prompts_of_128k_stream_in_less_than_a_gigabyte(tiny: Path) -> None:
    """In the producing process and in the parent, although the prompts of a cell are ordered."""
    script = f"""
import resource, sys
sys.path.insert(0, {str(ROOT)!r})
from tests.drills.test_prefetching import Prefetcher, Path, SampleRequest, all_cells, plan
made = plan(Path({str(tiny)!r}), {{"ruler": ["niah_single_1"], "lengths": [131072], "samples": 500}}, length=131072)
taken = largest = 0
with Prefetcher(made) as prefetcher:
    for event in prefetcher.events(all_cells(made)):
        if isinstance(event, SampleRequest):
            taken += event.prompt_tokens
            status = open(f"/proc/{{prefetcher.pid}}/status").read()
            largest = max(largest, int(status.split("VmHWM:")[1].split()[0]))
print(taken, largest * 1024, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=580, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    tokens, child, parent = map(int, done.stdout.split())
    print(f"{tokens:,} tokens; peak of the producing process {child / 1e6:.0f} MB, of the parent {parent / 1e6:.0f} MB")
    assert tokens > 60e6
    assert child < 1e9
    assert parent < 1e9

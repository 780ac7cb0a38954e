"""Measure the speed of a plan's models on this device: about ten seconds per model beside the engine's start.

Prompts of random tokens (none of them is in the prefix cache) of growing length tell the linear and the quadratic part
of reading a prompt; answers, one and many at once, tell decoding. Then a few of the plan's own samples are answered,
which also tells how long answers are. Nothing of it is stored as a result.
"""

from __future__ import annotations

import random
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from harness.config import ContextSetting
from harness.cost.known import write_speeds
from harness.cost.work import Work, work_of
from harness.engine.encoding import Encoder
from harness.engine.engine import Engine
from harness.engine.precision import hashed_options
from harness.engine.requests import Answer, Completion, Prompt, Question, prompt_tokens
from harness.run.costs import Costs
from harness.run.estimate import duration
from harness.run.plan import Plan
from harness.types import Cell

SECONDS = 10.0
"""What one model's calibration takes, roughly: no step is begun that would go far beyond."""
_SAMPLES = 4  # of each task, at its smallest length
_SHORT, _ANSWER = 32, 24
_ALWAYS = 1024
"""Tokens: prompts up to this length are measured however slow the machine is just now."""
_ROUNDS = 4
"""Rounds of measurements at most: single ones are off where another process takes the cores for a moment."""


def measure(plan: Plan, costs: Costs, results: Path, say: Callable[[str], None], log: Path | None = None) -> None:
    """Calibrate every engine of the plan whose speed is not known, and write speeds.json into `results`.

    `say`: takes a line of progress. `log`: the file for what vLLM prints.

    Raises:
        GatedevalError: the plan cannot be run, or the folder cannot be written.
        EngineError: an engine does not start, or dies.
    """
    for label in costs.unmeasured():
        settings = [s for s in plan.config.contexts if plan.of(label, s.label)]
        if not settings:
            continue
        say(f"{label}: starting vLLM to measure its speed")
        since = time.monotonic()
        with Engine(plan.engines[label].model, settings, plan.config.engine, log=log) as engine:
            started = time.monotonic() - since
            say(f"{label}: vLLM started in {duration(started)}; measuring for about {SECONDS:.0f} s")
            record = _Calibration(plan, costs, label, engine).run(settings)
        write_speeds(results, {**record, "starts": [round(started, 3)]})


class _Calibration:
    """One model's measurements, until `SECONDS` are over."""

    def __init__(self, plan: Plan, costs: Costs, label: str, engine: Engine) -> None:
        self.plan, self.costs, self.label, self.engine = plan, costs, label, engine
        self._random = random.Random(0)
        self._observations: list[dict[str, Any]] = []
        self._end = 0.0
        self._longest = 0  # tokens of the longest prompt that was measured

    def run(self, settings: Sequence[ContextSetting]) -> dict[str, Any]:
        """The record of a model, without its start."""
        longest = max(settings, key=lambda s: self.plan.engines[self.label].max_lengths[s.label])
        since = time.monotonic()
        if self.engine.can_switch_to(longest) and self.engine.setting != longest:
            self.engine.set_context(longest)
        self.engine.self_check()
        switched = time.monotonic() - since
        self._end = time.monotonic() + SECONDS
        self._prompts([_SHORT] * 2, 2)  # the first requests are slower
        self._observations.clear()
        seqs = max(1, min(32, self._memory.together(2 * _SHORT, 32) if self._memory else 8))
        rounds = 0
        while rounds < 2 or (rounds < _ROUNDS and self._left() > SECONDS / 2):
            self._growing(rounds)
            for lengths, answer in (([_SHORT] * seqs, 1), ([_SHORT], _ANSWER), ([_SHORT] * seqs, _ANSWER)):
                self._prompts(lengths, answer)
            if not rounds:
                self._real(self.engine.setting)
            rounds += 1
        return {
            "key": dict(self.costs.models[self.label].key),
            "switches": [round(switched, 3)],
            "observations": self._observations,
        }

    @property
    def _memory(self) -> Any:
        return next((m for (name, _), m in self.plan.memory.items() if name == self.label), None)

    def _left(self) -> float:
        return self._end - time.monotonic()

    def _growing(self, round: int) -> None:
        """Prompts of 256 tokens and more, each twice the one before and the last as long as the setting allows.

        In the first round as long as a half of the time lasts; in later ones, those that took little time.
        """
        most = self.engine.max_length - 1
        length, took = min(256, most), 0.0
        while (not round and length <= _ALWAYS) or self._left() > (SECONDS / 2 if not round else 0.0) + 3 * took:
            took, self._longest = self._prompts([length], 1), max(self._longest, length)
            if length == most:
                break
            length = min(2 * length, most)
        if self._left() > 3 * took:
            self._prompts([max(1, length // 2)], _ANSWER)  # decoding after a long prompt

    def _prompts(self, lengths: Sequence[int], answer: int) -> float:
        """Answer random prompts of these lengths with exactly `answer` tokens; the seconds that it took."""
        longest = self.engine.max_length - answer
        vocabulary = int(self.plan.engines[self.label].checkpoint.config.get("vocab_size") or 256)
        prompts = [
            Prompt(i, self._ids(max(1, min(n, longest)), vocabulary), answer, stop_ids=())
            for i, n in enumerate(lengths)
        ]
        return self._observe(prompts, None)

    def _ids(self, length: int, vocabulary: int) -> array[int]:
        return array("I", (self._random.randrange(vocabulary) for _ in range(length)))

    def _observe(self, requests: Sequence[Prompt | Question], cell: Cell | None) -> float:
        """Answer requests as one stream and note their work; the seconds that it took."""
        since = time.monotonic()
        answers = list(self.engine.answer(iter(requests)))
        took = time.monotonic() - since
        completions = [a.tokens for a in answers if isinstance(a, Completion)]
        work = sum(map(self._work(len(requests), cell), answers), Work())
        self._observations.append(
            {
                "benchmark": cell.benchmark if cell else None,
                "task": cell.task if cell else None,
                "length": cell.length if cell else None,
                "samples": len(answers),
                "seconds": round(took, 4),
                "answer": sum(completions) / len(completions) if cell and completions else None,
                "work": replace(work, made=0.0).to_plain(),
            }
        )
        return took

    def _work(self, together: int, cell: Cell | None) -> Callable[[Answer], Any]:
        kv = self._memory.kv if self._memory else None
        load = self.plan.loads.get(cell) if cell else None
        return lambda answer: work_of(
            kv,
            tokens=answer.sent_tokens,
            cached=answer.cached_tokens,
            answer=answer.tokens if isinstance(answer, Completion) else 1,
            requests=load.requests if load else 1.0,
            together=float(together),
            batch=self.costs.batch(),
        )

    def _real(self, setting: ContextSetting) -> None:
        """A few of the plan's own samples: of each task, at its smallest length, as long as there is time.

        Of every benchmark one in any case, unless its prompts are far longer than those that were measured.
        """
        seen: set[str] = set()
        for cell in self._smallest(setting):
            late = self._left() <= 0
            if late and (cell.benchmark in seen or self.plan.loads[cell].tokens > 4 * self._longest):
                continue
            seen.add(cell.benchmark)
            since = time.monotonic()
            requests = list(islice(self._requests(cell, setting), 1 if late else _SAMPLES))
            self._note_making(requests, time.monotonic() - since)
            if requests:
                self._observe(requests, cell)

    def _note_making(self, requests: Sequence[Prompt | Question], took: float) -> None:
        """Note how long samples took to make. A CPU engine needs the same cores; a GPU works meanwhile."""
        devices = self.plan.devices
        if devices is not None and devices.kind == "cpu":
            work = Work(made=float(sum(map(prompt_tokens, requests))))
            self._observations.append({"samples": len(requests), "seconds": round(took, 4), "work": work.to_plain()})

    def _smallest(self, setting: ContextSetting) -> list[Cell]:
        """One cell of each task; tasks with the longest answers first, since they are the least known."""
        found: dict[tuple[str, str], Cell] = {}
        for cell in self.plan.of(self.label, setting.label):
            known = found.setdefault((cell.benchmark, cell.task), cell)
            if cell.length < known.length:
                found[cell.benchmark, cell.task] = cell
        return sorted(found.values(), key=lambda cell: (-self.plan.loads[cell].answer, cell.length))

    def _requests(self, cell: Cell, setting: ContextSetting) -> Iterator[Prompt | Question]:
        planned, setup = self.plan.engines[self.label], self.plan.setup(self.label)
        limit, options = planned.max_lengths[setting.label], self.plan.config.engine
        dtype, checkpoint = self.plan.dtype(cell), planned.checkpoint
        hashed = hashed_options(options, checkpoint, dtype)
        encoder = Encoder(setup.tokenizer, checkpoint, setting, limit, dtype, hashed, thinking=setup.thinking)
        for sample in self.plan.benchmark(cell).requests(cell, setup, limit):
            yield encoder.encode(sample)

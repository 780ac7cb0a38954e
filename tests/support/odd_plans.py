"""Random configs over odd tokenizers, for the property that what a plan accepts, a run sends."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.config import Config, from_dict, to_dict
from harness.engine.requests import SampleRequest
from harness.run.plan import Plan, build
from harness.run.producing import Assignment, CellFailed, produce
from tests.checkpoints import tokenizers as odd

Make = Callable[[str], Path]


def maker(tiny: Path, root: Path) -> Make:
    """A function from the name of an odd tokenizer to the folder of a checkpoint that has it; made once."""
    folders: dict[str, Path] = {}

    def folder(name: str) -> Path:
        if name not in folders:
            folders[name] = odd.roomy(tiny / "baseline", root / str(len(folders)))
            odd.ODD[name][0](folders[name])
        return folders[name]

    return folder


def config(folder: Path, shared: Path, **changes: Any) -> Config:
    facts = {
        "name": "odd",
        "data": str(shared / "data"),
        "models": [{"label": "m", "path": str(folder)}],
        "contexts": [{"label": "native", "max_length": 1200}],
        "benchmarks": [{"ruler": ["niah_single_1", "fwe"], "lengths": [1200], "samples": 4}],
    }
    return from_dict({**facts, **changes})


def events(plan: Plan) -> Iterator[Any]:
    """What a run would send, produced in this process."""
    for label in plan.models:
        for context in plan.config.contexts:
            if cells := tuple(plan.of(label, context.label)):
                yield from produce(plan, Assignment(label, context.label, cells, "fingerprint"))


def random_config(draw: random.Random, folder: Path, shared: Path) -> Config:
    """A config drawn from what a user may write; about half of them can be run."""
    length = draw.choice([300, 512, 800, 1024, 1200, 1536, 2048])
    tasks = draw.sample(
        ["niah_single_1", "niah_single_2", "niah_multikey_2", "niah_multikey_3", "niah_multivalue", "vt", "cwe", "fwe",
         "qa_1", "qa_2"], draw.randint(1, 3)
    )  # fmt: skip
    thinking = draw.random() < 0.2
    ruler = {
        "ruler": tasks, "lengths": [length], "samples": draw.choice([1, 5, 12]),
        "profile": draw.choice(["nvidia", "fair", "fair"]), "answer_prefix": draw.choice(["append", "drop"]),
        "answer_tokens": draw.choice([None, None, 16]),
    }  # fmt: skip
    others = [
        {"mmlu": {"subjects": ["anatomy", "astronomy"], "shots": draw.randint(0, 2), "samples": 3}},
        {"gsm8k": {"shots": draw.randint(0, 2), "samples": 3}},
        {"lm_eval": draw.choice(["demo_choice", "demo_words"]), "samples": 3},
    ]
    return config(
        folder,
        shared,
        seed=draw.randint(0, 99),
        chat_template=thinking or draw.random() < 0.4,
        contexts=[{"label": "native", "max_length": draw.choice([length, length, 2048])}],
        benchmarks=[ruler, *draw.sample(others, draw.randint(0, 2))],
        **({"thinking": True, "thinking_tokens": 100} if thinking else {}),
    )


TEMPLATES = [odd.CHATML, odd.PLAIN, odd.TRIMMED, odd.GLUED, odd.DATED, odd.SWITCHED, odd.ALWAYS_THINKING, odd.NO_SYSTEM]


def accepted_plans(make: Make, shared: Path, tmp_path: Path, wanted: int, seed: int) -> Iterator[Plan]:
    """As many random plans as wanted that have no refusal."""
    draw = random.Random(seed)
    names = [name for name, (_, words) in odd.ODD.items() if not words]
    accepted = 0
    for number in range(20 * wanted):
        folder = tmp_path / str(number)
        folder.mkdir(parents=True)
        for file in make(draw.choice(names)).iterdir():
            (folder / file.name).symlink_to(file)
        template = draw.choice(TEMPLATES)
        facts = json.loads((folder / "tokenizer_config.json").read_text())
        (folder / "tokenizer_config.json").unlink()
        (folder / "tokenizer_config.json").write_text(json.dumps({**facts, "chat_template": template}))
        plan = build(random_config(draw, folder, shared))
        if not plan.refusals and plan.cells:
            accepted += 1
            yield plan
        if accepted == wanted:
            return
    pytest.fail(f"only {accepted} of {20 * wanted} random plans were accepted: the draws are too odd to test anything")


def requests_of(plan: Plan) -> Iterator[SampleRequest]:
    """Everything that a run of the plan sends; a refusal fails the test."""
    made = dict.fromkeys(plan.cells, 0)
    for event in events(plan):
        assert not isinstance(event, CellFailed), (event, to_dict(plan.config))
        if isinstance(event, SampleRequest):
            made[event.cell] += 1  # type: ignore[index]
            yield event
    assert made == plan.cells

"""Retrieval prompts for the trained demo models, and the answers of vLLM to them.

    python -m tests.support.demo_models CHECKPOINT OUT.json

writes the answers of a checkpoint. Tests run this in a copy of the package with a deliberate fault in the plugin.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from harness.config import ContextSetting, EngineOptions, Model, Yarn
from harness.engine.engine import Engine
from harness.engine.requests import Prompt
from tasks.demo import DATA, MODELS
from tasks.demo.recipe import LONG

ANSWER = 12  # a space, seven digits, a full stop, the end
BASE = ContextSetting(label="base 1M", rope_theta=1e6, max_length=LONG)
YARN = ContextSetting(
    label="YaRN", rope_theta=1e6, yarn=Yarn(factor=4, original_max_position_embeddings=LONG), max_length=4 * LONG
)


@dataclass(frozen=True)
class Retrieval:
    """One prompt, the number that answers it, and the context setting."""

    setting: ContextSetting
    task: str
    length: int
    prompt: str
    answer: str


def retrievals(scale: int = 1) -> list[Retrieval]:
    """Needles by key, in prose and among other needles.

    `scale` times 16 prompts of 256 tokens and 4 of 2048 with base 1M, and 2 of 2048 and 2 of 4096 under YaRN.
    """
    from tasks.ruler import generate, load_tokenizer

    tokenizer = load_tokenizer(MODELS / "baseline/long")  # the same in all arms
    plan = [(BASE, 256, 8), (BASE, LONG, 2), (YARN, LONG, 1), (YARN, 2 * LONG, 1)]
    return [
        Retrieval(setting, task, length, sample.prompt, sample.outputs[0])
        for setting, length, samples in plan
        for task in ("niah_multikey_1", "niah_multikey_2")
        for sample in generate(
            task,
            tokenizer=tokenizer,
            length=length,
            samples=samples * scale,
            seed=11,
            data=DATA,
            profile="fair",
            answer_tokens=16,
        )
    ]


def encode(items: list[Retrieval]) -> list[list[int]]:
    """Token ids of every prompt."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(MODELS / "baseline/long/tokenizer.json"))
    return [tokenizer.encode(item.prompt).ids for item in items]


def arm(checkpoint: Path) -> Model:
    """A checkpoint of the demo as a model, in float32."""
    return Model(label="arm", path=str(checkpoint), dtype="float32")


def answers(live: Engine, items: list[Retrieval]) -> list[list[int]]:
    """Greedy token ids for every prompt, in order, without the end token."""
    ids, by_index = encode(items), {}
    for setting in (BASE, YARN):
        live.set_context(setting)
        prompts = [Prompt(i, ids[i], ANSWER) for i, item in enumerate(items) if item.setting == setting]
        by_index |= {answer.key: [t for t in answer.token_ids if t] for answer in live.generate(prompts)}
    return [by_index[i] for i in range(len(items))]


def right_answers(items: list[Retrieval]) -> list[list[int]]:
    """Token ids of the right answer to every prompt, full stop included."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(MODELS / "baseline/long/tokenizer.json"))
    return [tokenizer.encode(f" {item.answer}.").ids for item in items]


def likelihoods(live: Engine, items: list[Retrieval]) -> list[float]:
    """Log-likelihood of every right answer, in nats. It shows faults too small to change the likeliest token."""
    ids, right, by_index = encode(items), right_answers(items), {}
    for setting in (BASE, YARN):
        live.set_context(setting)
        pairs = [(i, ids[i], right[i]) for i, item in enumerate(items) if item.setting == setting]
        by_index |= {key: logprob for key, logprob, _ in live.score(pairs)}
    return [by_index[i] for i in range(len(items))]


def main(checkpoint: str, out: str) -> None:
    """Answer `retrievals()` with a checkpoint and write token ids and likelihoods."""
    with Engine(arm(Path(checkpoint)), [BASE, YARN], EngineOptions(enforce_eager=True)) as live:
        items = retrievals()
        Path(out).write_text(json.dumps([answers(live, items), likelihoods(live, items)]))


if __name__ == "__main__":
    main(*sys.argv[1:])

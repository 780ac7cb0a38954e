"""The demo's trained models as organisms: prompts whose right answers are known, answered by vLLM and by plain torch.

    python -m tests.support.demo_models CHECKPOINT OUT.json      answers through whatever `harness` is imported

is how the tests look at a plugin that was broken on purpose: a copy of the package, altered, in a process of its own.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from harness.config import ContextSetting, Model, Yarn
from harness.config import Engine as EngineOptions
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
class Asked:
    """One prompt, the number it asks for, and the context setting."""

    setting: ContextSetting
    task: str
    length: int
    prompt: str
    answer: str


def questions(scale: int = 1) -> list[Asked]:
    """Retrieval by key in prose and among other needles: `scale` times 16 of 256 and 4 of 2048 tokens, 2 under YaRN."""
    from tasks.ruler import generate, load_tokenizer

    tokenizer = load_tokenizer(MODELS / "baseline/long")  # the same in all arms
    plan = [(BASE, 256, 8), (BASE, LONG, 2), (YARN, LONG, 1), (YARN, 2 * LONG, 1)]
    return [
        Asked(setting, task, length, sample.prompt, sample.outputs[0])
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


def encode(asked: list[Asked]) -> list[list[int]]:
    """Token ids of every prompt."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(MODELS / "baseline/long/tokenizer.json"))
    return [tokenizer.encode(a.prompt).ids for a in asked]


def arm(checkpoint: Path) -> Model:
    """An arm's checkpoint as a model, in float32."""
    return Model(label="arm", path=str(checkpoint), dtype="float32")


def answers(live: Engine, asked: list[Asked]) -> list[list[int]]:
    """Greedy token ids for every prompt, in order, without the end token."""
    ids, found = encode(asked), {}
    for setting in (BASE, YARN):
        live.set_context(setting)
        prompts = [Prompt(i, ids[i], ANSWER) for i, a in enumerate(asked) if a.setting == setting]
        found |= {a.key: [t for t in a.token_ids if t] for a in live.generate(prompts)}
    return [found[i] for i in range(len(asked))]


def right_answers(asked: list[Asked]) -> list[list[int]]:
    """Token ids of the right answer to every prompt, full stop included."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(MODELS / "baseline/long/tokenizer.json"))
    return [tokenizer.encode(f" {a.answer}.").ids for a in asked]


def likelihoods(live: Engine, asked: list[Asked]) -> list[float]:
    """Log-likelihood of every right answer, nats: it moves where the likeliest token does not yet."""
    ids, wanted, found = encode(asked), right_answers(asked), {}
    for setting in (BASE, YARN):
        live.set_context(setting)
        pairs = [(i, ids[i], wanted[i]) for i, a in enumerate(asked) if a.setting == setting]
        found |= {key: logprob for key, logprob, _ in live.score(pairs)}
    return [found[i] for i in range(len(asked))]


def main(checkpoint: str, out: str) -> None:
    """Answer `questions()` with a checkpoint and write token ids and likelihoods."""
    with Engine(arm(Path(checkpoint)), [BASE, YARN], EngineOptions(enforce_eager=True)) as live:
        asked = questions()
        Path(out).write_text(json.dumps([answers(live, asked), likelihoods(live, asked)]))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Shared by tests: oracle folders, engines on them, and copies of checkpoints with deliberate changes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from harness.config import ContextSetting, EngineOptions, Model
from harness.engine.engine import Engine
from harness.engine.requests import Prompt, Question
from tests.support.in_process import EAGER, NATIVE, shared_engine


def oracle_model(shared: Path, folder: str, dtype: str = "float32") -> Model:
    """An oracle checkpoint, with a tokenizer from the shared folder (the oracles have none)."""
    return Model(
        label=folder,
        path=str(shared / "oracles" / folder),
        tokenizer=str(shared / "oracles/ruler/tokenizer_bpe4k"),
        dtype=dtype,  # type: ignore[arg-type]
    )


class Oracle:
    """The numbers of the authors' own code for one checkpoint."""

    def __init__(self, shared: Path, folder: str) -> None:
        data = np.load(shared / "oracles" / folder / "expected.npz")
        self.ids: list[int] = data["input_ids"][0].tolist()
        self.positions: list[int] = data["logits_positions"].tolist()
        logits = data["logits"][0].astype(np.float64)
        self.logprobs = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
        self.greedy: list[int] = data["greedy_tokens"].tolist()
        self.greedy_logprob = data["greedy_logprob"]
        self.inv_freq, self.scaling = data["rope_inv_freq"], float(data["rope_attention_scaling"])

    def measured(self, engine: Engine) -> np.ndarray:
        """Log-probability of every token at the oracle's positions, from the engine: (positions, vocabulary)."""
        vocabulary = self.logprobs.shape[1]
        questions = (
            Question(p, tuple((tuple(self.ids[: p + 1]), (token,)) for token in range(vocabulary)))
            for p in self.positions
        )
        rows = {choice.key: choice.logprobs for choice in engine.choose(questions)}
        return np.array([rows[p] for p in self.positions])

    def check_greedy(self, engine: Engine) -> None:
        """Check greedy decoding against the oracle's tokens: generate up to the end token, then score all of them."""
        [answer] = engine.generate([Prompt("greedy", self.ids, len(self.greedy))])
        assert list(answer.token_ids) == self.greedy[: len(answer.token_ids)]
        assert answer.finish_reason == "stop" or len(answer.token_ids) == len(self.greedy)
        [(_, logprob, greedy)] = engine.score([("greedy", self.ids, self.greedy)])
        assert greedy
        assert abs(logprob - float(self.greedy_logprob.sum())) <= 1e-3 * len(self.greedy)


def altered(source: Path, target: Path, tensors: Any = None, **config: Any) -> Path:
    """A copy of a checkpoint with config entries replaced (None: removed) and its tensors changed by a function."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(source, target)
    facts = json.loads((target / "config.json").read_text())
    for key, value in config.items():
        facts.pop(key, None)
        if value is not None:
            facts[key] = value
    (target / "config.json").write_text(json.dumps(facts))
    if tensors is not None:
        old = load_file(target / "model.safetensors")
        save_file(tensors(old), target / "model.safetensors", metadata={"format": "pt"})
    return target


@contextmanager
def started(model: Model, *settings: ContextSetting, options: EngineOptions = EAGER) -> Iterator[Engine]:
    """An engine for the length of a `with`: the shared one of the test process, or of its own processes with TP > 1."""
    if options.tensor_parallel_size == 1:
        yield shared_engine.get(model, *settings, options=options)
        return
    shared_engine.close()
    with Engine(model, settings or [NATIVE], options) as engine:
        yield engine

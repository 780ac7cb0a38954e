"""Each context setting of each model family through vLLM, against transformers on the same file.

The settings of one model are evaluated in turn, as a run does: in one engine where its rotary table can be replaced,
else in an engine for each. A native row that still has the extended table would be wrong by nats.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.config import ContextSetting, EngineOptions, Model, Yarn
from harness.engine.engine import Engine
from harness.engine.requests import Question
from harness.models.bpe import save_tokenizer, train_bpe
from tests.checkpoints import families
from tests.support.in_process import shared_engine

pytestmark = pytest.mark.engine

NATIVE = ContextSetting(label="native")
BASE = ContextSetting(label="base", rope_theta=1e6, max_length=512)
YARN = ContextSetting(
    label="YaRN", yarn=Yarn(factor=4, original_max_position_embeddings=families.POSITIONS), max_length=1024
)
SETTINGS = (NATIVE, BASE, YARN)
IDS = [int(i) for i in np.random.default_rng(0).integers(2, 400, size=240)]
POSITIONS = (120, 239)
TOKENS = range(0, 512, 8)
EVERY_DAY = ("llama", "gemma3")
"""Families of `make test`; the others are `extended`."""
TWO_RANKS = ("llama", "gemma2", "qwen3_moe")
"""Families that `extended` runs on two ranks; the others are `slow`."""


def rope_in_transformers(directory: Path, setting: ContextSetting) -> dict[str, Any] | None:
    """transformers' rope parameters for a setting; None: the checkpoint's own."""
    own = json.loads((directory / "config.json").read_text())["rope_parameters"]
    own = own.get("full_attention", own)
    partial = {k: own[k] for k in ("partial_rotary_factor",) if k in own}
    if setting.yarn:
        return {
            "rope_type": "yarn",
            "rope_theta": own["rope_theta"],
            **partial,
            "factor": setting.yarn.factor,
            "original_max_position_embeddings": families.POSITIONS,
            "attention_factor": 0.1 * math.log(setting.yarn.factor) + 1,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
        }
    return {"rope_type": "default", "rope_theta": setting.rope_theta, **partial} if setting.rope_theta else None


def engine_under(model: Model, setting: ContextSetting) -> Engine:
    """An engine under `setting`: the one for all settings where it can switch, else one of its own."""
    engine = shared_engine.get(model, *SETTINGS)
    if not engine.can_switch_to(setting):
        return shared_engine.get(model, setting)
    engine.set_context(setting)
    return engine


def written(family: str, directory: Path) -> tuple[Model, dict[str, np.ndarray]]:
    """A model of `family`, and transformers' log-probabilities under every setting, by label.

    Call it before an engine starts: vLLM alters transformers' classes in its process for some families.
    """
    words = (f"w {i}" for i in range(300))
    families.write(family, directory, lambda d: save_tokenizer(train_bpe(words, 400), d))
    wanted = {s.label: families.logprobs(directory, IDS, rope_in_transformers(directory, s)) for s in SETTINGS}
    return Model(label=family, path=str(directory), dtype="float32"), wanted


def check(engine: Engine, setting: ContextSetting, wanted: np.ndarray) -> None:
    """Compare the engine's log-probabilities with transformers', (positions, vocabulary)."""
    questions = [Question(p, tuple((tuple(IDS[: p + 1]), (t,)) for t in TOKENS)) for p in POSITIONS]
    rows = {choice.key: np.array(choice.logprobs) for choice in engine.choose(questions)}
    for position in POSITIONS:
        worst = float(np.abs(rows[position] - wanted[position][list(TOKENS)]).max())
        assert worst < 1e-3, f"{engine.model.label}, {setting.label}, position {position}: {worst} nats"


@pytest.mark.parametrize(
    "family",
    [pytest.param(f, marks=[] if f in EVERY_DAY else [pytest.mark.extended]) for f in families.FAMILIES],
)
def test_every_setting_of_a_family_is_transformers(tmp_path: Path, family: str) -> None:
    model, wanted = written(family, tmp_path / family)
    for setting in SETTINGS:
        check(engine_under(model, setting), setting, wanted[setting.label])


@pytest.mark.parametrize(
    "family",
    [pytest.param(f, marks=pytest.mark.extended if f in TWO_RANKS else pytest.mark.slow) for f in families.FAMILIES],
)
def test_on_two_ranks_too(tmp_path: Path, family: str) -> None:
    """Each rank has half of the heads, of the vocabulary and of every expert, in a process of its own."""
    model, wanted = written(family, tmp_path / family)
    shared_engine.close()
    pending = list(SETTINGS)
    while pending:
        with Engine(model, pending, EngineOptions(enforce_eager=True, tensor_parallel_size=2)) as engine:
            assert engine.facts["ranks"] == 2
            for setting in [s for s in pending if engine.can_switch_to(s)]:
                engine.set_context(setting)
                check(engine, setting, wanted[setting.label])
                pending.remove(setting)

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

from harness.config import ContextSetting, Model, Yarn
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


def rope_in_transformers(directory: Path, setting: ContextSetting) -> dict[str, Any] | None:
    """transformers' rope parameters for a setting; None: the checkpoint's own."""
    own = json.loads((directory / "config.json").read_text())["rope_parameters"]
    theta = own.get("full_attention", own)["rope_theta"]
    if setting.yarn:
        return {
            "rope_type": "yarn",
            "rope_theta": theta,
            "factor": setting.yarn.factor,
            "original_max_position_embeddings": families.POSITIONS,
            "attention_factor": 0.1 * math.log(setting.yarn.factor) + 1,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
        }
    return {"rope_type": "default", "rope_theta": setting.rope_theta} if setting.rope_theta else None


def engine_under(model: Model, setting: ContextSetting) -> Engine:
    """An engine under `setting`: the one for all settings where it can switch, else one of its own."""
    engine = shared_engine.get(model, *SETTINGS)
    if not engine.can_switch_to(setting):
        return shared_engine.get(model, setting)
    engine.set_context(setting)
    return engine


@pytest.mark.parametrize(
    "family",
    [pytest.param(f, marks=[] if f in EVERY_DAY else [pytest.mark.extended]) for f in families.FAMILIES],
)
def test_every_setting_of_a_family_is_transformers(tmp_path: Path, family: str) -> None:
    directory = families.write(
        family, tmp_path / family, lambda d: save_tokenizer(train_bpe((f"w {i}" for i in range(300)), 400), d)
    )
    model = Model(label=family, path=str(directory), dtype="float32")
    # before an engine: vLLM alters transformers' classes in its process for the families that it runs through them
    wanted = {s.label: families.logprobs(directory, IDS, rope_in_transformers(directory, s)) for s in SETTINGS}
    for setting in SETTINGS:
        engine = engine_under(model, setting)
        questions = [Question(p, tuple((tuple(IDS[: p + 1]), (t,)) for t in TOKENS)) for p in POSITIONS]
        rows = {choice.key: np.array(choice.logprobs) for choice in engine.choose(questions)}
        for position in POSITIONS:
            worst = float(np.abs(rows[position] - wanted[setting.label][position][list(TOKENS)]).max())
            assert worst < 1e-3, f"{family}, {setting.label}, position {position}: {worst} nats"

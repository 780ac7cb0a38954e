"""Published context settings in the live engine, against transformers with the same rope parameters on the same file.

Llama: all of them in one engine, whose rotary table is replaced. Gemma 3: an engine for each, whose own classes compute
the table of the full-attention layers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.config import ContextSetting, Model, Yarn
from harness.config.vocabulary import Llama3, LongRope
from harness.models.bpe import save_tokenizer, train_bpe
from harness.rope.tables import ntk_base
from tests.checkpoints import families
from tests.engine.test_families import IDS, check, rope_in_transformers
from tests.support.in_process import shared_engine

pytestmark = pytest.mark.engine

ORIGINAL = 64
"""Tokens: shorter than the prompts, so that transformers takes LongRoPE's long factors too."""
PAIRS = 16
SHORT, LONG = tuple(1.0 + i / 16 for i in range(PAIRS)), tuple(1.0 + i / 2 for i in range(PAIRS))
SETTINGS = {
    "linear": ContextSetting(label="linear", linear=4.0),
    "ntk": ContextSetting(label="ntk", ntk=4.0),
    "llama3": ContextSetting(
        label="llama3", llama3=Llama3(factor=8, original_max_position_embeddings=ORIGINAL), max_length=512
    ),
    "mscale": ContextSetting(
        label="mscale",
        yarn=Yarn(factor=8, original_max_position_embeddings=ORIGINAL, mscale=0.7, mscale_all_dim=1.0),
    ),
    "longrope": ContextSetting(
        label="longrope",
        longrope=LongRope(short_factor=SHORT, long_factor=LONG, original_max_position_embeddings=ORIGINAL, factor=16),
    ),
}


def in_transformers(name: str, theta: float) -> dict[str, Any]:
    """The parameters that a user of transformers would write for the setting."""
    more: dict[str, dict[str, Any]] = {
        "linear": {"rope_type": "linear", "factor": 4.0},
        "ntk": {"rope_type": "default", "rope_theta": ntk_base(theta, 4.0, 2 * PAIRS)},
        "llama3": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        "mscale": {"rope_type": "yarn", "factor": 8.0, "mscale": 0.7, "mscale_all_dim": 1.0},
        "longrope": {"rope_type": "longrope", "factor": 16.0, "short_factor": list(SHORT), "long_factor": list(LONG)},
    }
    own = more[name]
    original = {} if name in ("linear", "ntk") else {"original_max_position_embeddings": ORIGINAL}
    return {"rope_theta": theta, **original, **own}


@pytest.mark.parametrize("family", ["llama", pytest.param("gemma3", marks=pytest.mark.slow)])
def test_published_settings_are_transformers(tmp_path: Path, family: str) -> None:
    directory = families.write(
        family, tmp_path / family, lambda d: save_tokenizer(train_bpe((f"w {i}" for i in range(300)), 400), d)
    )
    theta = {"llama": 10000.0, "gemma3": 500000.0}[family]
    native = ContextSetting(label="native")
    wanted = {name: families.logprobs(directory, IDS, in_transformers(name, theta)) for name in SETTINGS}
    wanted["native"] = families.logprobs(directory, IDS, rope_in_transformers(directory, native))
    model = Model(label=family, path=str(directory), dtype="float32")
    # LongRoPE is the longest, so the first engine starts under it; native comes last: nothing of it may stay
    order = [*SETTINGS.values(), native]
    starts = set()
    for setting in order:
        engine = shared_engine.get(model, *order)
        if not engine.can_switch_to(setting):
            engine = shared_engine.get(model, setting)
        else:
            engine.set_context(setting)
        starts.add(id(engine))
        check(engine, setting, wanted[setting.label])
    assert len(starts) == (1 if family == "llama" else len(order))

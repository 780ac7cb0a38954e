"""120 random plans that `plan` accepts: the engine answers all of their samples, and none is refused on the way."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from harness.benchmarks.protocol import Setup
from harness.config import ContextSetting, Model
from harness.engine.requests import SampleRequest
from harness.run.scoring import scored_sample
from tests.checkpoints import tokenizers as odd
from tests.support.in_process import shared_engine
from tests.support.odd_plans import accepted_plans, maker, requests_of

pytestmark = [pytest.mark.engine, pytest.mark.extended]


@pytest.mark.parametrize("wanted", [8, pytest.param(120, marks=pytest.mark.slow)])
def test_random_plans_that_are_accepted_also_run(tiny: Path, shared: Path, tmp_path: Path, wanted: int) -> None:
    """The models of all plans have equal weights, so one engine answers for all of them: it takes token ids."""
    plans = list(accepted_plans(maker(tiny, tmp_path), shared, tmp_path / "plans", wanted=wanted, seed=7))
    first: list[tuple[Setup, SampleRequest]] = []  # of every cell
    for plan in plans:
        first += [(plan.setup("m"), request) for request in requests_of(plan) if request.id == "0"]
    assert len(first) == sum(len(plan.cells) for plan in plans)
    weights = odd.roomy(tiny / "baseline", tmp_path / "weights")
    engine = shared_engine.get(
        Model(label="m", path=str(weights), dtype="float32"), ContextSetting(label="native", max_length=2048)
    )
    keyed = [dataclasses.replace(r.request, key=n) for n, (_, r) in enumerate(first) if r.request is not None]
    answered = 0
    for answer in engine.answer(keyed):
        assert isinstance(answer.key, int)
        setup, sample = first[answer.key]
        assert scored_sample(sample, answer, setup).prompt_tokens == sample.prompt_tokens
        answered += 1
    assert answered == len(first) >= wanted

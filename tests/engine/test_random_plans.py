"""120 random plans that `plan` accepts: the engine answers all of their samples, and none is refused on the way."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.config import ContextSetting, Model
from harness.engine.requests import Choice, Completion
from harness.run.setting import scored_sample
from tests.checkpoints import tokenizers as odd
from tests.support.in_process import shared_engine
from tests.support.odd_plans import accepted_plans, maker, requests_of

pytestmark = [pytest.mark.engine, pytest.mark.extended]


def test_random_plans_that_are_accepted_also_run(tiny: Path, shared: Path, tmp_path: Path) -> None:
    """The models of all plans have equal weights, so one engine answers for all of them: it takes token ids."""
    weights = odd.roomy(tiny / "baseline", tmp_path / "weights")
    engine = shared_engine.get(
        Model(label="m", path=str(weights), dtype="float32"), ContextSetting(label="native", max_length=2048)
    )
    answered = 0
    for plan in accepted_plans(maker(tiny, tmp_path), shared, tmp_path / "plans", wanted=120, seed=7):
        pending = {request.label: request for request in requests_of(plan)}
        first = dict.fromkeys(request.cell for request in pending.values())
        few = [r for r in pending.values() if r.id == "0"]
        assert len(few) == len(first)
        for answer in engine.answer(request.request for request in few):
            assert isinstance(answer, Completion | Choice)
            sample = pending[str(answer.key)]
            assert scored_sample(sample, answer, plan.setup("m")).prompt_tokens == sample.prompt_tokens
            answered += 1
    assert answered >= 120

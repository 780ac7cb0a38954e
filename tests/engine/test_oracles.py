"""The gated models in vLLM against the authors' own numbers: every oracle folder, TP 1 and 2, eager and compiled.

A wrong packing, a missing gate, a missing bias or another rope changes some logit by 3 or more; the bound is 1e-3.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from harness.config import EngineOptions
from tests.support.engines import EAGER, Oracle, oracle_model, started

pytestmark = pytest.mark.engine

TP2 = EngineOptions(enforce_eager=True, tensor_parallel_size=2)
CHUNKED = EngineOptions(enforce_eager=True, max_num_batched_tokens=64, max_num_seqs=16)
COMPILED = EngineOptions()
EXTENDED = pytest.mark.extended
CASES = [
    pytest.param("a_baseline_gqa", "Qwen3ForCausalLM", EAGER, id="a-vllms-own-class"),
    pytest.param("b_headwise_gqa", "GatedQwen3ForCausalLM", EAGER, id="b-eager", marks=pytest.mark.slow),
    pytest.param("b_headwise_gqa", "GatedQwen3ForCausalLM", COMPILED, id="b-compiled", marks=pytest.mark.slow),
    pytest.param("c_elementwise_gqa", "GatedQwen3ForCausalLM", EAGER, id="c-eager"),
    pytest.param("c_elementwise_gqa", "GatedQwen3ForCausalLM", TP2, id="c-tp2", marks=pytest.mark.slow),
    pytest.param("e_elementwise_mqa", "GatedQwen3ForCausalLM", EAGER, id="e-eager"),
    pytest.param("e_elementwise_mqa", "GatedQwen3ForCausalLM", TP2, id="e-tp2-beyond-kv-heads", marks=EXTENDED),
    pytest.param("g_headwise_qkvbias", "GatedQwen3ForCausalLM", EAGER, id="g-eager"),
    pytest.param("g_headwise_qkvbias", "GatedQwen3ForCausalLM", TP2, id="g-tp2-o-bias-once", marks=pytest.mark.slow),
    pytest.param("i_elementwise_yarn", "GatedQwen3ForCausalLM", CHUNKED, id="i-yarn-chunked-prefill"),
    pytest.param("i_elementwise_yarn", "GatedQwen3ForCausalLM", COMPILED, id="i-yarn-compiled", marks=pytest.mark.slow),
    pytest.param("k32_headwise_tied_hd32", "GatedQwen3ForCausalLM", EAGER, id="k32-tied"),
]


@pytest.mark.parametrize(("folder", "architecture", "options"), CASES)
def test_logprobs_and_greedy_tokens(shared: Path, folder: str, architecture: str, options: EngineOptions) -> None:
    oracle = Oracle(shared, folder)
    with started(oracle_model(shared, folder), options=options) as engine:
        assert engine.facts["model_class"] == architecture
        assert engine.facts["ranks"] == options.tensor_parallel_size
        first = oracle.measured(engine)
        again = oracle.measured(engine)  # this time from the prefix cache
        oracle.check_greedy(engine)
    bound = 2e-3 if "yarn" in folder else 1e-3
    assert np.abs(first - oracle.logprobs).max() <= bound
    assert np.abs(again - oracle.logprobs).max() <= bound


def test_bfloat16_within_the_reference_s_own_rounding(shared: Path) -> None:
    oracle = Oracle(shared, "c_elementwise_gqa")
    with started(oracle_model(shared, "c_elementwise_gqa", "bfloat16")) as engine:
        assert engine.facts["dtype"] == "bfloat16"
        off = np.abs(oracle.measured(engine) - oracle.logprobs)
    assert off.mean() <= 0.2  # the reference itself, run in bfloat16: 0.04-0.10

"""The paper's other gates in vLLM: reference numbers, and random checkpoints against the plain-torch model."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from harness.config import EngineOptions, Model
from harness.engine.probing import probe
from harness.engine.requests import Question
from harness.models.reference import load
from harness.probe.plan import ProbePlan
from harness.probe.reference import probe_reference
from harness.probe.rows import choose_rows
from tests.support.engines import Oracle, oracle_model, started
from tests.support.in_process import EAGER
from tests.support.variants import FOLDERS, random_checkpoint, valid_gates

pytestmark = pytest.mark.engine

EXTENDED = pytest.mark.extended
TP2 = EngineOptions(enforce_eager=True, tensor_parallel_size=2)
COMPILED = EngineOptions(enforce_eager=False)
PARTS = 16  # of the list of all combinations of gates
COMPILED_TP2 = EngineOptions(enforce_eager=False, tensor_parallel_size=2)
EVERY_DAY = ("v1_value", "v6_sdpa")
CASES = [
    *(
        pytest.param(f, EAGER, id=Path(f).name, marks=() if any(n in f for n in EVERY_DAY) else pytest.mark.slow)
        for f in FOLDERS
    ),
    *(pytest.param(f, TP2, id=f"{Path(f).name}-tp2", marks=pytest.mark.slow) for f in FOLDERS),
    *(pytest.param(f, COMPILED, id=f"{Path(f).name}-compiled", marks=pytest.mark.slow) for f in FOLDERS),
    *(pytest.param(f, COMPILED_TP2, id=f"{Path(f).name}-compiled-tp2", marks=pytest.mark.slow) for f in FOLDERS),
]


@pytest.mark.parametrize(("folder", "options"), CASES)
def test_the_reference_numbers_of_every_variant(shared: Path, folder: str, options: EngineOptions) -> None:
    oracle = Oracle(shared, folder)
    expected = np.load(shared / "oracles" / folder / "expected.npz")
    with started(oracle_model(shared, folder), options=options) as engine:
        assert engine.facts["model_class"] == "GatedQwen3ForCausalLM"
        first = oracle.measured(engine)
        again = oracle.measured(engine)  # from the prefix cache
        oracle.check_greedy(engine)
        result = None
        if options.enforce_eager:
            ids = tuple(oracle.ids)
            result = probe(engine, ProbePlan(ids, choose_rows(len(ids), first_query=True)))
    assert np.abs(first - oracle.logprobs).max() <= 1e-3
    assert np.abs(again - oracle.logprobs).max() <= 1e-3
    if result is None:
        return
    assert np.abs(result.first.head - expected["first_token_attn_per_head"]).max() <= 1e-5
    assert np.abs(result.entropy.head - expected["attn_entropy_per_head"]).max() <= 1e-4
    assert np.abs(result.hidden[:, 0] - expected["hidden_max"]).max() <= 1e-3
    assert np.abs(result.small_after - expected["sdpa_small_share"]).max() <= 2e-4
    if "gate_mean_per_head" in expected:
        assert np.abs(result.gate_mean - expected["gate_mean_per_head"]).max() <= 1e-5


def check_against_plain_torch(folder: Path, options: EngineOptions) -> None:
    """Next-token log-probabilities and first-token attention of one text, in vLLM and in plain torch.

    Compiled code calls no hook, so that a probe is refused there: log-probabilities alone are compared.
    """
    ids = tuple(int(i) for i in np.random.default_rng(3).integers(0, 512, 40))
    model = load(folder)
    with torch.inference_mode():
        logprobs = model(torch.tensor([ids]))[0].log_softmax(-1)
    tokenizer = Path(__file__).parents[2] / "tasks/demo/models/baseline/long"
    with started(Model(label="v", path=str(folder), tokenizer=str(tokenizer), dtype="float32"), options=options) as e:
        if not options.enforce_eager:
            positions, tokens = (0, 9, 20, 39), range(0, 512, 4)
            asked = (Question(p, tuple((ids[: p + 1], (token,)) for token in tokens)) for p in positions)
            rows = {choice.key: choice.logprobs for choice in e.choose(asked)}
            found = np.array([rows[p] for p in positions])
            assert np.abs(found - logprobs[list(positions)][:, list(tokens)].numpy()).max() <= 1e-3
            return
        live = probe(e, ProbePlan(ids, choose_rows(len(ids))))
    ours = probe_reference(model, ids)
    wanted = -logprobs[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0].numpy()
    assert np.abs(live.losses - wanted).max() <= 1e-3
    assert np.abs(live.first.head - ours.first.numpy()).max() <= 1e-5
    if ours.gate_mean is not None:
        assert np.abs(live.gate_mean - ours.gate_mean.numpy()).max() <= 1e-5


def sampled_variants(count: int) -> list[dict[str, object]]:
    """Combinations in random order, so that `count` of them have every position, mode and activation several times."""
    drawn = random.Random(0)
    gates = drawn.sample(valid_gates(), count)
    return [
        {
            "attn_gate": {name: getattr(gate, name) for name in gate.__dataclass_fields__},
            "sandwich_norm": drawn.random() < 0.3,
            "qkv_bias": drawn.random() < 0.3,
            "use_qk_norm": drawn.random() < 0.7,
        }
        for gate in gates
    ]


@EXTENDED
def test_random_combinations_equal_the_plain_torch_model(tmp_path: Path) -> None:
    for number, config in enumerate(sampled_variants(8)):
        check_against_plain_torch(random_checkpoint(tmp_path / str(number), config), EAGER)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(PARTS))
def test_every_combination_equals_the_plain_torch_model(tmp_path: Path, part: int) -> None:
    """All of them take most of an hour on two cores, so in parts that can run side by side."""
    for number, gate in list(enumerate(valid_gates()))[part::PARTS]:
        config = {"attn_gate": {name: getattr(gate, name) for name in gate.__dataclass_fields__}}
        try:
            check_against_plain_torch(random_checkpoint(tmp_path / str(number), config), EAGER)
        except BaseException as error:
            error.add_note(f"combination {number}: {config}")
            raise


@pytest.mark.slow
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_key_and_value_gates_on_more_ranks_than_kv_heads(tmp_path: Path, kv_heads: int) -> None:
    """With one KV head, both ranks hold a copy of it and of its gate."""
    config = {"attn_gate": {"position": "value", "granularity": "headwise"}, "num_key_value_heads": kv_heads}
    check_against_plain_torch(random_checkpoint(tmp_path / "m", config), TP2)


def test_released_flags_with_a_sandwich_norm_and_an_sdpa_norm(tmp_path: Path) -> None:
    """Packed gate rows in q_proj, and norms beside them."""
    from harness.models.layout import Layout

    config = {"headwise_attn_output_gate": True, "sdpa_norm": True, "sandwich_norm": True}
    folder = random_checkpoint(tmp_path / "m", config | {"packed_rows": Layout(4, 2, 32, "headwise").q_rows})
    check_against_plain_torch(folder, EAGER)

"""What a plan says about memory and time: sizes of well-known models by hand, and a fit that finds a known speed."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.config import EngineOptions, Model, from_dict
from harness.config.cluster import ClusterOptions
from harness.cost.devices import GIB, Devices, batched_tokens, gpus_of, machine_memory, sequences, sharding
from harness.cost.known import SPEEDS, Records, write_speeds
from harness.cost.memory import gib, memory_of, refusals
from harness.cost.speed import Observation, Speed, fit
from harness.cost.work import QUANTITIES, Work, expected_work, work_of
from harness.engine.load import Load, load_of
from harness.engine.requests import Prompt, Question
from harness.models.checkpoint import Checkpoint
from harness.models.headers import Tensor
from harness.models.kv_cache import (
    KvLayers,
    LayerGroup,
    Sharding,
    bytes_per_token,
    element_bytes,
    layers_of,
    reserved_bytes,
)
from harness.models.weights import active_parameters, weight_bytes
from harness.run.budget import Budget, EqualPrecision, asked, fitting, largest_within, recorded
from harness.run.cost_log import CostLog
from harness.run.costs import Costs
from harness.run.costs_text import memory_text, time_text
from harness.run.plan import Plan, build
from harness.text import read_time
from harness.types import Cell, GatedevalError

H100 = Devices(kind="gpu", memory=80 * GIB, count=8, name="NVIDIA H100 80GB HBM3")
LLAMA_8B: dict[str, Any] = {
    "model_type": "llama", "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "hidden_size": 4096, "vocab_size": 128256,
}  # fmt: skip
GEMMA_27B: dict[str, Any] = {
    "model_type": "gemma3_text", "num_hidden_layers": 62, "num_attention_heads": 32, "num_key_value_heads": 16,
    "head_dim": 128, "hidden_size": 5376, "sliding_window": 1024, "sliding_window_pattern": 6,
}  # fmt: skip
MISTRAL_7B: dict[str, Any] = {**LLAMA_8B, "model_type": "mistral", "sliding_window": 4096}
DEEPSEEK_V3: dict[str, Any] = {
    "model_type": "deepseek_v3", "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128,
    "hidden_size": 7168, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
}  # fmt: skip


def layers(config: dict[str, Any]) -> KvLayers:
    found = layers_of(config)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("config", "element", "split", "wanted"),
    [
        (LLAMA_8B, 2, Sharding(), 131_072),  # 32 layers x 8 heads x (128 + 128) x 2 bytes: the well-known 128 KiB
        (LLAMA_8B, 1, Sharding(), 65_536),  # fp8
        (LLAMA_8B, 2, Sharding(tensor_parallel=4), 32_768),
        (LLAMA_8B, 2, Sharding(tensor_parallel=16), 16_384),  # a head on every rank, each twice
        (LLAMA_8B, 2, Sharding(pipeline_parallel=3), 11 * 8 * 256 * 2),  # stages of 11, 11 and 10 layers
        (DEEPSEEK_V3, 2, Sharding(), 61 * 576 * 2),
        (DEEPSEEK_V3, 2, Sharding(tensor_parallel=8), 61 * 576 * 2),  # every rank has the latent vectors
        (GEMMA_27B, 2, Sharding(), 62 * 16 * 256 * 2),
    ],
)
def test_bytes_of_a_token(config: dict[str, Any], element: float, split: Sharding, wanted: float) -> None:
    assert bytes_per_token(layers(config), element, split) == wanted


def test_a_latent_model_that_vllm_stores_as_heads_is_counted_as_heads() -> None:
    """MiniCPM3 has latent attention too; vLLM 0.32 expands it into full heads."""
    kv = layers({**DEEPSEEK_V3, "model_type": "minicpm3", "head_dim": 96})
    assert kv.groups == (LayerGroup(layers=61, heads=128, width=192),)


def test_a_window_bounds_what_is_reserved() -> None:
    """By hand: blocks of 16, 8,192 tokens in flight."""
    split = Sharding(block_size=16, in_flight=8192)
    page = 16 * 8 * 256 * 2
    full = reserved_bytes(layers(LLAMA_8B), 2, split, 131_072)
    assert full == 131_072 / 16 * 32 * page
    mistral = reserved_bytes(layers(MISTRAL_7B), 2, split, 131_072)
    assert mistral == (math.ceil((4096 - 1 + 8192) / 16) + 1) * 32 * page
    assert reserved_bytes(layers(MISTRAL_7B), 2, split, 1024) == (1024 / 16 + 1) * 32 * page


def test_layers_of_two_kinds_are_put_into_groups_of_equal_size() -> None:
    """Gemma 3 27B: 10 full and 52 sliding layers make 1 + 6 groups of 10 layers; 8 layers of the last are empty."""
    kv, split = layers(GEMMA_27B), Sharding(block_size=16, in_flight=8192)
    assert [(g.layers, g.window) for g in kv.groups] == [(52, 1024), (10, None)]
    assert kv.kind == "52 window 1,024 + 10 full"
    blocks = 131_072 // 16 + 6 * (math.ceil((1024 - 1 + 8192) / 16) + 1)
    assert reserved_bytes(kv, 2, split, 131_072) == blocks * 10 * 16 * 16 * 256 * 2


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({**LLAMA_8B, "model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False}, "32 full"),
        ({**LLAMA_8B, "model_type": "gemma2", "sliding_window": 4096}, "16 window 4,096 + 16 full"),
        ({**LLAMA_8B, "layer_types": ["linear_attention", "full_attention"] * 16}, "16 full + 16 without a KV cache"),
        ({**GEMMA_27B, "num_kv_shared_layers": 22}, "34 window 1,024 + 6 full"),
    ],
)
def test_which_layers_have_a_window(config: dict[str, Any], kind: str) -> None:
    assert layers(config).kind == kind


def test_a_config_that_does_not_say_it_gives_no_number() -> None:
    assert layers_of({"num_hidden_layers": 2}) is None
    assert layers_of({"num_hidden_layers": 2, "num_attention_heads": 4}) is None
    assert element_bytes("turboquant_4bit_nc", "bfloat16") is None
    assert [element_bytes(k, "bfloat16") for k in (None, "auto", "fp8_e4m3", "float32", "nvfp4")] == [
        2,
        2,
        1,
        4,
        9 / 16,
    ]


def checkpoint(config: dict[str, Any], tensors: dict[str, tuple[int, ...]], dtype: str = "bfloat16") -> Checkpoint:
    return Checkpoint(
        path=Path("m"),
        config=config,
        layout=None,
        architecture="X",
        tensors={name: Tensor(shape=shape, dtype=dtype) for name, shape in tensors.items()},
        weight_files=(),
    )


def test_weights_of_a_device() -> None:
    shapes: dict[str, tuple[int, ...]] = {f"model.layers.{i}.mlp.up_proj.weight": (64, 32) for i in range(4)}
    shapes |= {"model.embed_tokens.weight": (100, 32), "lm_head.weight": (100, 32), "model.norm.weight": (32,)}
    made = checkpoint({"num_hidden_layers": 4}, shapes)
    layer, embedding, norm = 64 * 32, 100 * 32, 32
    assert weight_bytes(made, "bfloat16", Sharding()) == 2 * (4 * layer + 2 * embedding + norm)
    assert weight_bytes(made, "float32", Sharding()) == 4 * (4 * layer + 2 * embedding + norm)
    assert weight_bytes(made, "bfloat16", Sharding(tensor_parallel=2)) == 4 * layer + 2 * embedding + norm
    assert weight_bytes(made, "bfloat16", Sharding(pipeline_parallel=2)) == 2 * (2 * layer + embedding)
    assert weight_bytes(made, "bfloat16", Sharding(), "fp8") == 4 * layer + 2 * (2 * embedding + norm)
    tied = checkpoint({"num_hidden_layers": 4, "tie_word_embeddings": True}, shapes)
    assert weight_bytes(tied, "bfloat16", Sharding()) == 2 * (4 * layer + embedding + norm)


def test_a_token_is_multiplied_with_the_chosen_experts_alone() -> None:
    shapes: dict[str, tuple[int, ...]] = {f"model.layers.0.mlp.experts.{i}.up_proj.weight": (8, 4) for i in range(8)}
    made = checkpoint({"num_experts": 8, "num_experts_per_tok": 2}, {**shapes, "model.layers.0.q.weight": (4, 4)})
    assert active_parameters(made) == 2 * 32 + 16


LLAMA_TENSORS: dict[str, tuple[int, ...]] = {
    f"model.layers.{i}.w.weight": (4096, 53_000) for i in range(32)
}  # about 7 billion parameters


def test_what_cannot_fit_is_refused_with_the_option_to_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)
    model = Model(label="m", path="m")
    made = checkpoint(LLAMA_8B, LLAMA_TENSORS)

    def refused(length: int, devices: Devices = H100, **options: Any) -> str:
        chosen = EngineOptions(**options)
        return "; ".join(refusals(memory_of(model, made, chosen, devices, length), chosen, "m", "c", 32))

    assert refused(131_072) == ""
    assert "131,072 tokens) take 16.0 GiB on each device, and engine.kv_cache_gib 8 gives" in refused(
        131_072, kv_cache_gib=8
    )
    assert "raise engine.kv_cache_gib, lower the context's max_length" in refused(131_072, kv_cache_gib=8)
    assert refused(131_072, kv_cache_gib=8, kv_cache_dtype="fp8_e4m3", tensor_parallel_size=2) == ""
    small = Devices(kind="gpu", memory=24 * GIB, count=2, name="RTX 4090")
    assert "the weights leave" in refused(131_072, small)
    assert "raise engine.gpu_memory_utilization or engine.tensor_parallel_size" in refused(131_072, small)
    tiny = Devices(kind="gpu", memory=8 * GIB, count=1, name="small")
    assert "its weights take 12.9 GiB on each GPU" in refused(4096, tiny)
    assert "ask for 4 GPUs, and there are 2" in refused(4096, small, tensor_parallel_size=4)
    assert "does not divide the 32 attention heads" in refused(4096, tensor_parallel_size=3)
    assert "use one of 1, 2, 4, 8, 16" in refused(4096, tensor_parallel_size=3)
    cpu = Devices(kind="cpu", memory=16 * GIB)
    assert "are more than this machine's 16.0 GiB" in refused(4096, cpu, kv_cache_gib=8)
    assert "lower engine.kv_cache_gib" in refused(4096, cpu, kv_cache_gib=8)


def test_a_plan_refuses_what_does_not_fit(tiny: Path) -> None:
    facts: dict[str, Any] = {
        "name": "p",
        "models": [{"label": "a", "path": str(tiny / "baseline")}],
        "contexts": [{"label": "long", "rope_theta": 1e6, "max_length": 131_072}],
        "benchmarks": [{"ruler": ["fwe"], "lengths": [512], "samples": 2}],
        "engine": {"kv_cache_gib": 0.01},
    }
    plan = build(from_dict(facts))
    assert any("engine.kv_cache_gib 0.01 gives" in r and "max_length" in r for r in plan.refusals)
    assert build(from_dict({**facts, "engine": {}})).refusals == []


def test_defaults_of_vllm_by_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    cpu = Devices(kind="cpu", memory=16 * GIB, cores=2)
    two = EngineOptions(tensor_parallel_size=2)
    assert [batched_tokens(o, d) for o, d in ((EngineOptions(), cpu), (two, cpu), (two, H100))] == [4096, 8192, 16384]
    assert [sequences(EngineOptions(), d) for d in (cpu, H100)] == [256, 1024]
    assert sequences(EngineOptions(max_num_batched_tokens=128), cpu) == 128
    assert sharding(EngineOptions(), cpu, latent=False).block_size == 128
    assert [sharding(EngineOptions(), d, latent=False).in_flight for d in (cpu, H100)] == [4096, 2 * 16384]
    assert sharding(EngineOptions(block_size=32), H100, latent=True).block_size == 32
    listing = "NVIDIA H100 80GB HBM3, 81559\nNVIDIA H100 80GB HBM3, 81559\n"
    found = gpus_of(listing, 4)
    assert found
    assert (found.count, found.memory) == (2, 81559 * 2**20)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    one = gpus_of(listing, 4)
    assert one
    assert one.count == 1
    assert gpus_of("No devices were found\n", 4) is None
    limit = tmp_path / "sys/fs/cgroup/memory.max"
    limit.parent.mkdir(parents=True)
    limit.write_text("1073741824\n")
    assert machine_memory(tmp_path) == GIB
    limit.write_text("max\n")
    assert machine_memory(tmp_path) > GIB / 2
    assert [gib(x) for x in (3 * GIB, 2**20 * 12, 512)] == ["3.0 GiB", "12.0 MiB", "0.5 KiB"]


# ---------------------------------------------------------------------------------------------------------- work


def test_work_is_counted_by_hand() -> None:
    """Two requests of 4 tokens, one token of each in the cache: queries 1, 2, 3 see 2 + 3 + 4 keys, twice."""
    work = work_of(None, tokens=8, cached=2, answer=3, requests=2, together=2, batch=6)
    assert (work.requests, work.computed, work.pairs, work.answers) == (2, 6, 15, 2)
    assert work.steps == 2 / 2 + 6 / 6
    kv = KvLayers(groups=(LayerGroup(layers=1, heads=1, width=2, window=2), LayerGroup(layers=1, heads=1, width=2)))
    assert work_of(kv, tokens=4, cached=0, answer=1).pairs == ((1 + 2 + 2 + 2) + (1 + 2 + 3 + 4)) / 2
    assert Work.from_plain(work.to_plain()) == work
    assert Work.from_plain({"requests": "x"}) == Work()


def test_what_prompts_share_is_counted_once() -> None:
    prompts = [Prompt(i, [1, 2, 3, 4, 10 + i], 7) for i in range(4)]
    load = load_of(prompts)
    assert load == Load(tokens=5.0, requests=1.0, shared=4.0, answer=7.0)
    work = expected_work(load, None, samples=4, answer=7, together=1, batch=4096, block=1)
    assert work.computed == pytest.approx(20 - 4 * 3.5 * 3 / 4), "half a block is lost, and the first finds nothing"
    assert (
        expected_work(load, None, samples=4, answer=7, together=1, batch=4096, block=3).computed == 20 - 4 * 3 * 3 / 4
    )
    assert expected_work(load, None, samples=4, answer=7, together=1, batch=4096, block=None).computed == 20
    question = Question("q", (((1, 2), (3, 4)), ((1, 2), (3, 5)), ((1, 2), (6,))))
    assert load_of([question]) == Load(tokens=5.0, requests=2.0, shared=2.0, answer=1.0)
    assert load_of([]) == Load(tokens=0.0)


def test_a_fit_finds_the_speed_and_predicts_another_plan() -> None:
    """Observations of a known speed, 5 % of noise: another mixture of work is predicted within 10 %."""
    rng = np.random.default_rng(0)
    real = Speed((1e-5, 2e-3, 3e-5, 2e-9, 4e-4, 8e-3, 1e-7))
    guess = Speed((1e-5, 1e-3, 1e-5, 1e-9, 1e-4, 3e-3, 1e-7))
    seen = []
    for length, answer, n in ((32, 1, 32), (32, 24, 1), (32, 24, 32), (1024, 1, 1), (8192, 1, 1), (16384, 1, 1)):
        work = work_of(None, tokens=length, cached=0, answer=answer, together=n) * n
        seen.append(Observation(work=work, seconds=real.seconds(work) * float(rng.normal(1, 0.05))))
    found = fit(seen, guess)
    for length, answer, n in ((4096, 16, 50), (32768, 32, 4), (200, 1, 1000)):
        work = work_of(None, tokens=length, cached=0, answer=answer, together=n) * n
        assert found.seconds(work) == pytest.approx(real.seconds(work), rel=0.15)
    assert fit([], guess) == guess
    assert min(found.coefficients) >= 0
    one = fit([Observation(work=work, seconds=7.0)], guess)
    assert one.seconds(work) == pytest.approx(7.0, rel=0.01), "one observation sets the scale"
    assert set(found.parts(work)) == set(QUANTITIES)


# ---------------------------------------------------------------------------------------------- known, predicted


def small_plan(tiny: Path, results: Path, **more: Any) -> Plan:
    return build(
        from_dict(
            {
                "name": "p",
                "results": str(results),
                "models": [{"label": "a", "path": str(tiny / "baseline")}],
                "contexts": [{"label": "native", "max_length": 2048}],
                "benchmarks": [{"ruler": ["fwe", "vt"], "lengths": [1024, 2048], "samples": 8}],
                **more,
            }
        )
    )


def record(plan: Plan, **more: Any) -> dict[str, Any]:
    """A record of a machine on which each prompt token takes a millisecond, answers are free and a start takes 10 s."""
    costs = Costs(plan)
    cell = next(iter(plan.cells))
    observation = {
        "benchmark": "ruler", "task": "fwe", "length": 512, "samples": 4, "seconds": 2.0, "answer": 5.0,
        "work": Work(computed=2000.0).to_plain(),
    }  # fmt: skip
    return {
        "key": dict(costs.models[cell.model].key),
        "starts": [10.0],
        "switches": [1.0],
        "observations": [observation],
        **more,
    }


def test_a_run_tells_the_next_plan_how_long_it_takes(tiny: Path, tmp_path: Path) -> None:
    plan = small_plan(tiny, tmp_path)
    unknown = Costs(plan)
    assert unknown.unmeasured() == ["a"]
    assert "--measure" in time_text(unknown, plan.cells)[0]
    run = tmp_path / "earlier" / "run.json"
    run.parent.mkdir()
    run.write_text(json.dumps({"cells": [], "cost": {"models": {"other label": record(plan)}}}))
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "run.json").write_text("{")
    costs = Costs(plan)
    assert costs.measured
    assert costs.models["a"].known.source == "1 earlier run"
    assert costs.answer(Cell("a", "native", "ruler", "fwe", 1024)) == 5
    assert costs.answer(Cell("a", "native", "ruler", "vt", 1024)) == 30, "no answer is known: its budget"
    tokens = sum(costs.work(cell, n).computed for cell, n in plan.cells.items())
    assert costs.total(plan.cells) >= 11 + 0.9 * tokens * 1e-3
    text = "\n".join(time_text(costs, plan.cells))
    assert "1 earlier run" in text
    assert "time (predicted)" in text
    other = small_plan(tiny, tmp_path, engine={"max_num_batched_tokens": 256})
    assert not Costs(other).measured, "another engine, another speed"


def test_a_session_on_a_cluster_tells_no_speed_of_one_engine(tiny: Path, tmp_path: Path) -> None:
    plan = small_plan(tiny, tmp_path)
    run = tmp_path / "earlier" / "run.json"
    run.parent.mkdir()
    run.write_text(json.dumps({"cells": [], "cost": {"models": {"other label": record(plan)}}}))
    for cluster, told in ((None, True), (ClusterOptions(engines=2), False)):
        plan.config = plan.config.model_copy(update={"cluster": cluster})
        log = CostLog(Costs(plan))
        assert (log.begin(plan.cells) is not None) is told
        log.started("a", 3.0)
        assert ("a" in log.record(None)["models"]) is told


def test_a_calibration_is_kept_and_a_run_is_better_than_one(tiny: Path, tmp_path: Path) -> None:
    plan = small_plan(tiny, tmp_path)
    write_speeds(tmp_path, record(plan, starts=[20.0]))
    write_speeds(tmp_path, record(plan, starts=[30.0]))
    assert len(json.loads((tmp_path / SPEEDS).read_text())) == 1, "the newer one replaces the older one"
    assert Costs(plan).models["a"].known.start == 30
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "run.json").write_text(json.dumps({"cost": {"models": {"a": record(plan)}}}))
    known = Costs(plan).models["a"].known
    assert known.start == 10
    assert known.source == "1 earlier run and a calibration"
    for damage in ("[", "{}", '["x", {"key": 1}]'):
        (tmp_path / SPEEDS).write_text(damage)
        assert Records(tmp_path).of({}).observations == ()


def test_the_budget_is_the_largest_plan_of_equal_precision_that_fits(tiny: Path, tmp_path: Path) -> None:
    plan = small_plan(tiny, tmp_path)
    write_speeds(tmp_path, record(plan))
    costs = Costs(plan)
    sizes = EqualPrecision(plan)
    counts, whole = sizes.counts, costs.total(plan.cells)
    assert counts(sizes.largest) == plan.cells
    assert fitting(costs, whole * 1.001).samples == (8,)
    for seconds in (costs.total(counts(6)) * 1.0001, costs.total(counts(10)) * 1.0001):
        size = largest_within(costs, seconds, counts, sizes.largest)
        assert costs.total(counts(size)) <= seconds < costs.total(counts(size + 1))
        assert fitting(costs, seconds).samples == sizes.samples(size)
    with pytest.raises(GatedevalError, match="engine starts are 11 s: raise the budget"):
        fitting(costs, 5.0)
    budget = Budget(seconds=60.0, half_width=None, samples=(3,), asked=asked(plan.config))
    smaller = budget.apply(plan.config)
    assert asked(smaller) == (3,)
    assert set(build(smaller).cells.values()) == {3}
    run = tmp_path / "run"
    run.mkdir()
    assert recorded(run, plan.config, 60.0) is None
    (run / "run.json").write_text(json.dumps({"cells": [], "budget": {"seconds": 60.0, "samples": 3, "asked": [8]}}))
    assert recorded(run, plan.config, 60.0) == budget, "a run of an older version has one number"
    record_of = {"seconds": 60.0, "half_width": 21.0, "samples": [3], "asked": [8]}
    (run / "run.json").write_text(json.dumps({"cells": [], "budget": record_of}))
    assert recorded(run, plan.config, 60.0) == dataclasses.replace(budget, half_width=21.0)
    assert recorded(run, plan.config, 61.0) is None
    assert recorded(run, smaller, 60.0) is None, "the config asks for other numbers now"


def test_budgets_as_people_write_them() -> None:
    assert [read_time(t) for t in ("2h", "90min", "1h30m", "45 s", "0.5h")] == [7200, 5400, 5400, 45, 1800]
    for wrong in ("", "2", "h", "2 weeks", "0h", "-1h", "1h nonsense"):
        with pytest.raises(ValueError, match="should be"):
            read_time(wrong)


def test_memory_as_a_table(tiny: Path, tmp_path: Path) -> None:
    plan = small_plan(tiny, tmp_path)
    lines = memory_text(Costs(plan))
    assert lines[0].startswith("memory on each device; the machine has")
    assert lines[1].split()[:4] == ["model", "context", "weights", "KV"]
    assert "(2,048)" in lines[3]
    plan.devices = None
    assert "nvidia-smi" in memory_text(Costs(plan))[0]

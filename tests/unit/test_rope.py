"""Context settings, compared with the oracles, transformers, and vLLM's own rotary classes and limits."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from harness.config import ContextSetting, Yarn
from harness.config.vocabulary import Llama3, LongRope
from harness.rope.context import Overrides, Rope, is_computable, max_length, overrides, rope, rope_of
from harness.types import GatedevalError

QWEN3 = {  # Qwen3's numbers: trained on 32768, config.json says 40960
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 512,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "vocab_size": 64,
    "rope_theta": 1000000.0,
    "max_position_embeddings": 40960,
    "torch_dtype": "float32",
}
YARN = Yarn(factor=4, original_max_position_embeddings=32768)
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def setting(**kw: Any) -> ContextSetting:
    return ContextSetting(label="c", **kw)


def simple(s: ContextSetting, positions: int = 32768, theta: float = 1e6, declared: Any = None, dim: int = 128) -> Rope:
    return rope(s, head_dim=dim, base_theta=theta, max_position_embeddings=positions, checkpoint_rope=declared)


# ---------------------------------------------------------------------------------------------- against the oracles


@pytest.mark.parametrize(
    "name",
    ["a_baseline_gqa", "e_elementwise_mqa", "i_elementwise_yarn", "k_headwise_tied_hd16", "k32_headwise_tied_hd32"],
)
def test_native_setting_gives_the_oracles_frequencies(shared: Path, name: str) -> None:
    folder = shared / "oracles" / name
    expected = np.load(folder / "expected.npz")
    got = rope_of(setting(), json.loads((folder / "config.json").read_text()))
    np.testing.assert_allclose(got.inv_freq, expected["rope_inv_freq"], rtol=3e-7)
    assert got.attention_scaling == pytest.approx(float(expected["rope_attention_scaling"]), rel=1e-7)


def test_yarn_follows_the_original_length_not_max_position_embeddings(shared: Path) -> None:
    folder = shared / "oracles" / "i_elementwise_yarn"
    config = json.loads((folder / "config.json").read_text())
    right, wrong = np.load(folder / "expected.npz"), np.load(folder / "expected_transformers448_yarn.npz")
    explicit = setting(yarn=Yarn(factor=4, original_max_position_embeddings=128), max_length=512)
    for got in (
        rope_of(setting(), config),
        rope_of(explicit, config),
    ):  # declared, and replaced by the same: not doubled
        np.testing.assert_allclose(got.inv_freq, right["rope_inv_freq"], rtol=3e-7)
        assert np.max(np.abs(got.inv_freq / wrong["rope_inv_freq"] - 1)) > 0.2
        assert got.attention_scaling == pytest.approx(1.13863, abs=1e-5)


# --------------------------------------------------------------------------- against transformers and vLLM's classes

CASES: dict[str, tuple[ContextSetting, Any, float]] = {
    "default 1e4": (setting(), None, 1e4),
    "default 1e6": (setting(), None, 1e6),
    "rope_theta": (setting(rope_theta=1e6, max_length=131072), None, 1e4),
    "yarn x4": (setting(yarn=YARN, max_length=131072), None, 1e6),
    "yarn x2.5, betas": (
        setting(yarn=Yarn(factor=2.5, original_max_position_embeddings=32768, beta_fast=16, beta_slow=2)),
        None,
        1e4,
    ),
    "yarn, factor given": (
        setting(yarn=Yarn(factor=4, original_max_position_embeddings=8192, attention_factor=1.0)),
        None,
        1e6,
    ),
    "linear x4": (setting(linear=4.0), None, 1e4),
    "linear x3": (setting(linear=3.0), None, 1e4),
    "dynamic x4": (setting(dynamic=4.0, max_length=131072), None, 1e4),
    "llama3 of the checkpoint": (setting(), LLAMA3, 5e5),
    "llama3": (setting(llama3=Llama3(factor=8, original_max_position_embeddings=8192), max_length=131072), None, 5e5),
    "llama3, bands": (
        setting(llama3=Llama3(factor=32, original_max_position_embeddings=8192, low_freq_factor=2, high_freq_factor=6)),
        None,
        5e5,
    ),
    "ntk x8": (setting(ntk=8.0, max_length=131072), None, 1e4),
    "yarn, mscale": (
        setting(yarn=Yarn(factor=40, original_max_position_embeddings=4096, mscale=0.707, mscale_all_dim=1.0)),
        None,
        1e4,
    ),
    "yarn, equal mscales": (
        setting(yarn=Yarn(factor=40, original_max_position_embeddings=4096, mscale=1.0, mscale_all_dim=1.0)),
        None,
        1e4,
    ),
}
SHORT = tuple(1.0 + 0.01 * i for i in range(64))
LONG = tuple(1.0 + 0.9 * i for i in range(64))
PHI3 = {"type": "longrope", "short_factor": list(SHORT), "long_factor": list(LONG)}


def longrope(**more: Any) -> LongRope:
    return LongRope(short_factor=SHORT, long_factor=LONG, original_max_position_embeddings=4096, **more)


@pytest.mark.parametrize("case", CASES)
def test_frequencies_equal_transformers(case: str) -> None:
    from transformers import Qwen3Config
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    context, declared, theta = CASES[case]
    got = simple(context, theta=theta, declared=declared)
    parameters = dict(got.parameters)
    kind = parameters["rope_type"]
    config = Qwen3Config(
        head_dim=128, hidden_size=512, num_attention_heads=4, max_position_embeddings=32768, rope_parameters=parameters
    )
    if kind in ("default", "ntk"):
        theta = parameters["rope_theta"] * parameters.get("factor", 1.0) ** (128 / 126)
        inv_freq, factor = 1.0 / theta ** (np.arange(0, 128, 2) / 128), 1.0
    else:
        tensor, factor = ROPE_INIT_FUNCTIONS[kind](config, None, seq_len=got.length)
        inv_freq = tensor.numpy()
    np.testing.assert_allclose(got.inv_freq, inv_freq, rtol=1e-6)
    assert got.attention_scaling == pytest.approx(factor, rel=1e-9)


LONGROPES = {
    "long": (setting(longrope=longrope(factor=32.0)), {}, "long"),
    "short": (setting(longrope=longrope(factor=32.0), max_length=4096), {}, "short"),
    "attention factor": (setting(longrope=longrope(factor=32.0, attention_factor=1.25)), {}, "long"),
    "the checkpoint's": (setting(), {"rope_scaling": PHI3, "original_max_position_embeddings": 4096}, "long"),
    "the checkpoint's, short": (
        setting(max_length=2048),
        {"rope_scaling": {**PHI3, "type": "su"}, "original_max_position_embeddings": 4096},
        "short",
    ),
}


@pytest.mark.parametrize("case", LONGROPES)
def test_longrope_equals_transformers_and_vllms_own_class(case: str) -> None:
    import torch
    from transformers import Phi3Config
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers import rotary_embedding
    from vllm.model_executor.layers.rotary_embedding import get_rope

    context, declared, which = LONGROPES[case]
    config = {**QWEN3, "rope_theta": 1e4, "max_position_embeddings": 131072, **declared}
    ours = rope_of(context, config)
    theirs = Phi3Config(
        hidden_size=512, num_attention_heads=4, head_dim=128, max_position_embeddings=131072,
        original_max_position_embeddings=4096, rope_parameters=dict(ours.parameters), pad_token_id=0,
    )  # fmt: skip
    inv_freq, factor = ROPE_INIT_FUNCTIONS["longrope"](theirs, None, seq_len=ours.length)
    np.testing.assert_allclose(ours.inv_freq, inv_freq.numpy(), rtol=1e-6)
    assert ours.attention_scaling == pytest.approx(factor, rel=1e-9)
    factors = np.array(LONG if which == "long" else SHORT)
    np.testing.assert_allclose(ours.inv_freq * factors, rope_of(setting(rope_theta=1e4), QWEN3).inv_freq, rtol=1e-12)

    replaced, own = (overrides(context, config, replaced=r).hf_overrides for r in (True, False))
    assert replaced["rope_parameters"] == {"rope_type": "default", "rope_theta": 1e4}, "ours is written over it"
    made = VllmConfig()
    rotary_embedding._ROPE_DICT.clear()  # vLLM keys a module by its parameters, and not by the longest length
    with set_current_vllm_config(made):
        made.model_config = SimpleNamespace(max_model_len=ours.length)  # type: ignore[assignment]
        parameters = own.get("rope_parameters", dict(ours.parameters))
        module = get_rope(128, 131072, rope_parameters=parameters, dtype=torch.float32)
    both = module.long_short_cos_sin_cache.numpy()
    ours.check_table(both[4096:] if module.use_long_rope else both[:4096], rows=ours.length)


@pytest.mark.parametrize("case", CASES)
def test_tables_equal_vllms(case: str) -> None:
    """Tables that vLLM builds from our overrides, as the engine does."""
    import torch
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers.rotary_embedding import get_rope

    context, declared, theta = CASES[case]
    config = {**QWEN3, "rope_theta": theta, "rope_scaling": declared, "max_position_embeddings": 32768}
    ours, given = rope_of(context, config), overrides(context, config)
    parameters = given.hf_overrides.get("rope_parameters", dict(ours.parameters))
    limit = given.hf_overrides.get("max_position_embeddings", 32768)
    with set_current_vllm_config(VllmConfig()):
        live = get_rope(128, limit, rope_parameters=dict(parameters), dtype=torch.float32).cos_sin_cache.numpy()
    assert live.shape[0] >= given.max_model_len
    positions = np.unique(np.concatenate([np.arange(512), np.linspace(0, given.max_model_len - 1, 500).astype(int)]))
    mirrored = ours.cos_sin(positions, arithmetic="float32")
    assert mirrored.shape == (len(positions), 128)
    columns = np.abs(live[positions] - mirrored).max(axis=0) > 2e-5
    # For an uneven base, torch's power may differ by one ulp from the correctly rounded one (in cos and sin).
    assert columns.sum() <= (2 if case.startswith("dynamic") else 0)
    assert ours.check_table(live, rows=given.max_model_len) < 0.02


def test_the_checkpoints_partial_rotary_factor_is_kept() -> None:
    config = {**QWEN3, "partial_rotary_factor": 0.5}
    got = rope_of(setting(yarn=YARN), config)
    assert got.rotary_dim == 64
    assert overrides(setting(yarn=YARN), config).hf_overrides["rope_parameters"]["partial_rotary_factor"] == 0.5


# --------------------------------------------------------------------------------------------- vLLM's limits, pinned


def model_config(tmp_path: Path, config: dict[str, Any], hf_overrides: Any, max_model_len: int | None) -> Any:
    """vLLM's own ModelConfig for a config.json, without an engine."""
    from vllm.config import ModelConfig

    (tmp_path / "config.json").write_text(json.dumps(config))
    return ModelConfig(
        model=str(tmp_path),
        tokenizer=str(tmp_path),
        skip_tokenizer_init=True,
        hf_overrides=hf_overrides,
        max_model_len=max_model_len,
        dtype="float32",
    )


def engine_table(made: Any) -> tuple[Any, Any]:
    """(rotary module, its table) that a Qwen3 layer of this ModelConfig gets."""
    import torch
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers.rotary_embedding import get_rope

    hf = made.hf_text_config
    with set_current_vllm_config(VllmConfig()):
        module = get_rope(
            128, hf.max_position_embeddings, rope_parameters=dict(hf.rope_parameters), dtype=torch.float32
        )
    return module, module.cos_sin_cache.numpy()


@pytest.mark.parametrize(
    "context",
    [
        setting(),
        setting(max_length=4096),
        setting(rope_theta=1e4, max_length=131072),
        setting(rope_theta=1e5),
        setting(yarn=YARN, max_length=131072),
        setting(yarn=YARN, rope_theta=1e5),
        setting(yarn=YARN, max_length=16384),
        setting(linear=2.0),
        setting(linear=4.0, max_length=131072),
        setting(dynamic=4.0, max_length=131072),
        setting(dynamic=2.0),
        setting(ntk=4.0, max_length=131072),
        setting(llama3=Llama3(factor=8, original_max_position_embeddings=8192), max_length=131072),
        setting(llama3=Llama3(factor=8, original_max_position_embeddings=8192)),
        setting(yarn=Yarn(factor=4, original_max_position_embeddings=32768, mscale=0.7, mscale_all_dim=1.0)),
    ],
    ids=lambda c: " ".join(f"{key}={value}" for key, value in c if value is not None and key != "label")[:60],
)
def test_vllm_takes_the_overrides(tmp_path: Path, context: ContextSetting) -> None:
    given = overrides(context, QWEN3)
    made = model_config(tmp_path, QWEN3, dict(given.hf_overrides), given.max_model_len)
    assert made.max_model_len == given.max_model_len == max_length(context, QWEN3)
    _, table = engine_table(made)
    assert table.shape[0] >= given.max_model_len
    rope_of(context, QWEN3).check_table(table, rows=given.max_model_len)


def test_raising_max_position_embeddings_does_not_apply_the_factor_twice(tmp_path: Path) -> None:
    """1.1386 is right; 1.0223 (the ratio 40960 / 32768 taken for the factor) is the known wrong value."""
    rope_parameters = {
        "rope_type": "yarn",
        "rope_theta": 1e6,
        "factor": 4.0,
        "original_max_position_embeddings": 32768,
    }
    tables = []
    for limit in (40960, 131072, 131072 * 4):
        raised = {"rope_parameters": rope_parameters, "max_position_embeddings": limit}
        made = model_config(tmp_path, QWEN3, raised, None)
        assert made.max_model_len == limit  # 0.32: as it is, neither x4 nor original x 4
        module, table = engine_table(made)
        assert module.mscale == pytest.approx(1.1386, abs=5e-5)
        assert abs(module.mscale - (0.1 * math.log(40960 / 32768) + 1)) > 0.1
        assert table.shape[0] == 131072  # original x factor, whatever max_position_embeddings says
        tables.append(table[:: 4096 + 1])
    np.testing.assert_array_equal(tables[0], tables[1])
    np.testing.assert_array_equal(tables[0], tables[2])
    with pytest.raises(Exception, match="max_model_len"):  # and without raising it, 131072 is refused
        model_config(tmp_path, QWEN3, {"rope_parameters": rope_parameters}, 131072)


def test_vllm_does_not_complete_an_override_so_ours_is_complete(tmp_path: Path) -> None:
    made = model_config(tmp_path, QWEN3, {"rope_parameters": {"rope_type": "default"}}, None)
    assert "rope_theta" not in made.hf_text_config.rope_parameters  # the base is silently lost: get_rope takes 1e4
    for context in (setting(rope_theta=2e6), setting(yarn=YARN), setting(linear=2.0), setting(dynamic=2.0)):
        made = model_config(tmp_path, QWEN3, dict(overrides(context, QWEN3).hf_overrides), None)
        assert made.hf_text_config.rope_parameters["rope_theta"] == (context.rope_theta or 1e6)
        assert made.hf_text_config.rope_parameters["rope_type"]


# ---------------------------------------------------------------------------------------------- what settings mean


def test_the_known_attention_factor() -> None:
    assert simple(setting(yarn=YARN)).attention_scaling == pytest.approx(1.1386, abs=5e-5)
    assert simple(setting(yarn=YARN), positions=40960).attention_scaling == pytest.approx(1.1386, abs=5e-5)


def test_the_base_survives_yarn() -> None:
    small, large = (simple(setting(yarn=YARN, rope_theta=t), theta=5e5).inv_freq for t in (1e4, 1e6))
    assert np.max(np.abs(large / small - 1)) > 0.5
    np.testing.assert_array_equal(large, simple(setting(yarn=YARN), theta=1e6).inv_freq)


def test_yarn_is_static_and_differs_from_off_at_every_length() -> None:
    on, off = simple(setting(yarn=YARN)), simple(setting())
    difference = np.abs(on.cos_sin(4096) - off.cos_sin(4096)).max(axis=1)
    assert difference.min() > 0.1  # position 0 too: the attention factor
    assert np.abs(on.cos_sin([131071]) - off.cos_sin([131071])).max() > 0.1


def test_native_keeps_declared_scaling_and_an_explicit_setting_replaces_it() -> None:
    declared = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    config = {**QWEN3, "rope_scaling": declared}
    assert rope_of(setting(), config).parameters["factor"] == 4.0
    assert max_length(setting(), config) == 131072
    plain = rope_of(setting(rope_theta=1e6), config)
    np.testing.assert_array_equal(plain.inv_freq, rope_of(setting(), QWEN3).inv_freq)
    twice = rope_of(setting(yarn=Yarn(factor=2, original_max_position_embeddings=32768)), config)
    once = rope_of(setting(yarn=Yarn(factor=2, original_max_position_embeddings=32768)), QWEN3)
    np.testing.assert_array_equal(twice.inv_freq, once.inv_freq)
    assert twice.attention_scaling == once.attention_scaling
    linear = rope_of(setting(linear=2.0), config)  # from the length the checkpoint was trained on
    np.testing.assert_allclose(linear.inv_freq * 2, rope_of(setting(), QWEN3).inv_freq)
    assert linear.length == 65536


def test_native_yarn_of_a_checkpoint_reaches_the_engine(tmp_path: Path) -> None:
    declared = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    config = {**QWEN3, "rope_scaling": declared}
    given = overrides(setting(), config)
    made = model_config(tmp_path, config, dict(given.hf_overrides), given.max_model_len)
    module, table = engine_table(made)
    assert (made.max_model_len, table.shape[0]) == (131072, 131072)
    assert module.mscale == pytest.approx(1.1386, abs=5e-5)
    replaced = overrides(setting(yarn=Yarn(factor=2, original_max_position_embeddings=32768)), config)
    module, table = engine_table(model_config(tmp_path, config, dict(replaced.hf_overrides), replaced.max_model_len))
    assert table.shape[0] == 65536
    assert module.mscale == pytest.approx(0.1 * math.log(2) + 1)


def test_new_style_rope_parameters_are_read() -> None:
    config = {k: v for k, v in QWEN3.items() if k != "rope_theta"}
    new = {**config, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}
    np.testing.assert_array_equal(rope_of(setting(), new).inv_freq, rope_of(setting(), QWEN3).inv_freq)


def test_native_needs_no_override_and_theta_may_go_beyond_the_checkpoint() -> None:
    assert dict(overrides(setting(), QWEN3).hf_overrides) == {}
    given = overrides(setting(rope_theta=1e6, max_length=131072), {**QWEN3, "max_position_embeddings": 4096})
    assert given.hf_overrides["max_position_embeddings"] == given.max_model_len == 131072
    assert overrides(setting(rope_theta=1e6), {**QWEN3, "max_position_embeddings": 4096}).max_model_len == 4096


@pytest.mark.parametrize(
    ("context", "numbers"),
    [
        (setting(ntk=2.0, max_length=131072), ["131072", "81920"]),
        (setting(longrope=longrope(factor=8.0), max_length=131072), ["131072", "32768"]),
        (setting(max_length=40961), ["40961", "40960"]),
        (setting(yarn=YARN, max_length=131073), ["131073", "131072", "32768"]),
        (setting(linear=2.0, max_length=131072), ["131072", "81920"]),
        (setting(dynamic=2.0, max_length=131072), ["131072", "81920"]),
    ],
)
def test_a_length_beyond_the_settings_reach_is_an_error_with_both_numbers(
    context: ContextSetting, numbers: list[str]
) -> None:
    for function in (rope_of, overrides, max_length):
        with pytest.raises(GatedevalError) as error:
            function(context, QWEN3)
        assert all(n in str(error.value) for n in numbers)


def test_overrides_that_disagree_with_their_length_cannot_be_made() -> None:
    with pytest.raises(GatedevalError, match=r"131072.*40960"):
        Overrides(hf_overrides={}, max_model_len=131072, reach=40960)


def test_unknown_rope_types_and_broken_configs_are_refused() -> None:
    with pytest.raises(GatedevalError, match="longrope"):
        rope_of(setting(), {**QWEN3, "rope_scaling": {"rope_type": "longrope", "factor": 4.0}})
    with pytest.raises(GatedevalError, match="max_position_embeddings"):
        rope_of(setting(), {k: v for k, v in QWEN3.items() if k != "max_position_embeddings"})
    with pytest.raises(GatedevalError, match="exclude one another"):
        rope_of(setting(linear=2.0, dynamic=2.0), QWEN3)
    with pytest.raises(GatedevalError, match="ntk and longrope exclude one another"):
        setting(ntk=2.0, longrope=longrope(factor=4.0))
    with pytest.raises(GatedevalError, match=r"short_factor has 64 numbers, and the model rotates 32 pairs"):
        rope_of(
            setting(
                longrope=longrope(
                    factor=32.0,
                ),
                max_length=2048,
            ),
            {**QWEN3, "head_dim": 64},
        )
    with pytest.raises(GatedevalError, match="short_mscale"):
        rope_of(setting(), {**QWEN3, "rope_scaling": {**PHI3, "short_mscale": 1.2}})


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Yarn(factor=4, original_max_position_embeddings=8, mscale=1.0), "belong together"),
        (
            lambda: Yarn(
                factor=4, original_max_position_embeddings=8, mscale=1.0, mscale_all_dim=1.0, attention_factor=1.0
            ),
            "attention_factor and mscale exclude one another",
        ),
        (
            lambda: Llama3(factor=4, original_max_position_embeddings=8, low_freq_factor=4),
            "high_freq_factor 4 must be above low_freq_factor 4",
        ),
        (
            lambda: LongRope(factor=4, original_max_position_embeddings=8, short_factor=(1.0,), long_factor=(1.0, 2.0)),
            "short_factor has 1 numbers and long_factor 2",
        ),
    ],
)
def test_settings_that_contradict_themselves_are_refused(make: Any, said: str) -> None:
    with pytest.raises(GatedevalError, match=said):
        make()


def test_a_text_under_multimodal_rope_has_the_default_angles() -> None:
    """Its positions are equal in time, height and width. vLLM still gets the sections of a native setting."""
    sections = {"rope_theta": 1e6, "mrope_section": [24, 20, 20], "mrope_interleaved": True}
    for kind in ({}, {"rope_type": "default"}, {"type": "mrope"}):
        config = {**QWEN3, "rope_scaling": {**sections, **kind}}
        plain = {**QWEN3, "rope_scaling": {"rope_theta": 1e6, "rope_type": "default"}}
        assert (rope_of(setting(), config).inv_freq == rope_of(setting(), plain).inv_freq).all()
        assert rope_of(setting(), config).parameters["mrope_section"] == [24, 20, 20]
        assert "mrope_section" not in rope_of(setting(yarn=YARN), config).parameters


@pytest.mark.parametrize("key", ["rope_theta", "partial_rotary_factors"])
def test_rope_parameters_of_every_layer_have_the_native_setting_alone(key: str) -> None:
    config = {**QWEN3, key: [0.5] * 4}
    assert max_length(setting(), config) == QWEN3["max_position_embeddings"]
    assert overrides(setting(max_length=1000), config) == Overrides(
        hf_overrides={}, max_model_len=1000, reach=QWEN3["max_position_embeddings"]
    )
    for other in (setting(rope_theta=1e6), setting(yarn=YARN), setting(linear=2.0)):
        with pytest.raises(GatedevalError, match=r"for every layer.*use a native context"):
            overrides(other, config)
    with pytest.raises(GatedevalError, match="1000000 is beyond the checkpoint's max_position_embeddings"):
        max_length(setting(max_length=1_000_000), config)


# -------------------------------------------------------------------------------------------------------- precision


@pytest.mark.parametrize("context", [setting(max_length=131072, rope_theta=1e4), setting(yarn=YARN)])
def test_the_last_position_is_exact_to_half_an_ulp(context: ContextSetting) -> None:
    got = simple(context)
    angles = 131071 * got.inv_freq
    exact = np.concatenate([np.cos(angles), np.sin(angles)]) * got.attention_scaling
    row = got.cos_sin([131071])
    assert row.dtype == np.float32
    assert np.abs(row[0] - exact).max() <= 2.0**-24 * got.attention_scaling
    single = np.abs(got.cos_sin([131071], arithmetic="float32")[0] - exact)
    assert 1e-4 < single.max() < 0.02  # what engines have there; still below bfloat16's own rounding, roughly
    assert np.all(single <= got.tolerance([131071])[0])


def test_check_table_finds_what_is_wrong() -> None:
    got = simple(setting(yarn=YARN))
    table = got.cos_sin(131072)
    assert got.check_table(table) == 0.0
    assert got.check_table(got.cos_sin(131072, arithmetic="float32")) < 0.02
    with pytest.raises(GatedevalError, match="shape"):
        got.check_table(table[:-1])
    with pytest.raises(GatedevalError, match="shape"):
        got.check_table(table[:, :64])
    with pytest.raises(GatedevalError, match="differs"):
        got.check_table(table * np.float32(1.0223 / 1.1386))
    with pytest.raises(GatedevalError, match="differs"):
        got.check_table(simple(setting(rope_theta=1e6, max_length=131072)).cos_sin(131072))
    broken = table.copy()
    broken[5, 3] = np.nan
    with pytest.raises(GatedevalError, match="differs"):
        got.check_table(broken)


def test_a_bfloat16_table_passes_and_positions_in_bfloat16_do_not() -> None:
    import torch

    got = simple(setting(rope_theta=1e6, max_length=8192))
    cast = torch.from_numpy(got.cos_sin(8192)).bfloat16().float().numpy()
    assert got.check_table(cast, dtype="bfloat16") < 0.004
    rounded = torch.arange(8192).bfloat16().float().numpy()  # a known fault: positions in bfloat16
    with pytest.raises(GatedevalError, match="differs"):
        got.check_table(got.cos_sin(rounded), dtype="bfloat16")


def test_context_imports_nothing_heavy() -> None:
    code = "import sys, harness.rope.context; print({'torch', 'vllm', 'transformers'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"


NESTED = {
    **{k: v for k, v in QWEN3.items() if k != "rope_theta"},
    "model_type": "gemma3_text",
    "architectures": ["Gemma3ForCausalLM"],
    "max_position_embeddings": 32768,
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 500000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    },
}


def test_an_override_replaces_the_full_attention_layers_and_keeps_the_others() -> None:
    given = overrides(setting(yarn=YARN, max_length=131072), NESTED).hf_overrides["rope_parameters"]
    linear = overrides(setting(linear=4.0), NESTED)
    assert linear.hf_overrides["max_position_embeddings"] == linear.max_model_len == 131072
    assert given["sliding_attention"] == NESTED["rope_parameters"]["sliding_attention"]  # type: ignore[index]
    assert given["full_attention"]["rope_type"] == "yarn"
    assert given["full_attention"]["rope_theta"] == 500000.0, "the checkpoint's base, not a default"
    assert rope_of(setting(yarn=YARN), NESTED).parameters["rope_theta"] == 500000.0


@pytest.mark.parametrize(
    ("config", "computable"),
    [
        (QWEN3, True),
        (NESTED, False),
        ({**QWEN3, "rope_scaling": {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [2.0]}}, True),
        ({**QWEN3, "rope_scaling": {"rope_type": "mrope", "mrope_section": [1, 2, 3]}}, True),
        ({**QWEN3, "rope_scaling": {"rope_type": "mrope"}}, False),
        ({**QWEN3, "rope_scaling": {"rope_type": "yarn", "factor": 2, "mrope_section": [1, 2, 3]}}, False),
        ({k: v for k, v in QWEN3.items() if k != "rope_theta"}, False),
        ({**QWEN3, "rope_parameters": {"rope_theta": 1e4, **LLAMA3}}, True),
        ({**QWEN3, "rope_parameters": {"rope_theta": 1e4, "mrope_section": [24, 20, 20]}}, True),
        ({**QWEN3, "rope_theta": [1e4, 5e6]}, False),
        ({**QWEN3, "partial_rotary_factors": [0.5, 1.0]}, False),
    ],
)
def test_which_native_tables_are_ours_to_compute(config: dict[str, Any], computable: bool) -> None:
    assert is_computable(config) is computable


def test_frequencies_that_are_read_back_are_compared() -> None:
    encoding = simple(setting(yarn=YARN))
    assert encoding.check_frequencies(encoding.inv_freq.astype(np.float32), encoding.attention_scaling) < 1e-6
    with pytest.raises(GatedevalError, match="rotary frequencies differ"):
        encoding.check_frequencies(simple(setting()).inv_freq, encoding.attention_scaling)
    with pytest.raises(GatedevalError, match="rotary frequencies differ"):
        encoding.check_frequencies(encoding.inv_freq, 1.0)
    with pytest.raises(GatedevalError, match="8 rotary frequencies, expected 64"):
        encoding.check_frequencies(encoding.inv_freq[:8], encoding.attention_scaling)

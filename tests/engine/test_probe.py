"""The probe in the live vLLM engine: against the authors' numbers, the plain-torch model, and transformers' on a real
model.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.config import ContextSetting, EngineOptions, Model, Yarn
from harness.engine.engine import Engine
from harness.engine.probing import probe
from harness.engine.requests import EngineError
from harness.export import export_run
from harness.models.bpe import save_tokenizer, train_bpe
from harness.probe.plan import ProbePlan
from harness.probe.reference import probe_reference
from harness.probe.rows import choose_rows
from harness.store.probes import Probes
from harness.types import GatedevalError
from tests.support import ROOT
from tests.support.engines import Oracle, oracle_model, started
from tests.support.in_process import EAGER, gatedeval

pytestmark = pytest.mark.engine

EXTENDED, SLOW = pytest.mark.extended, pytest.mark.slow
TP2 = EngineOptions(enforce_eager=True, tensor_parallel_size=2)
CHUNKED = EngineOptions(enforce_eager=True, max_num_batched_tokens=64, max_num_seqs=16)
FOLDERS = [
    pytest.param("a_baseline_gqa", EAGER, id="a"),
    pytest.param("b_headwise_gqa", EAGER, id="b", marks=SLOW),
    pytest.param("c_elementwise_gqa", EAGER, id="c"),
    pytest.param("c_elementwise_gqa", TP2, id="c-tp2", marks=SLOW),
    pytest.param("e_elementwise_mqa", EAGER, id="e", marks=SLOW),
    pytest.param("e_elementwise_mqa", TP2, id="e-tp2-beyond-kv-heads", marks=SLOW),
    pytest.param("g_headwise_qkvbias", EAGER, id="g", marks=EXTENDED),
    pytest.param("i_elementwise_yarn", CHUNKED, id="i-yarn-chunked-prefill"),
    pytest.param("k32_headwise_tied_hd32", EAGER, id="k32", marks=SLOW),
]


@pytest.mark.parametrize(("folder", "options"), FOLDERS)
def test_first_token_attention_gates_and_activations_are_the_authors(
    shared: Path, folder: str, options: EngineOptions
) -> None:
    ids = tuple(Oracle(shared, folder).ids)
    expected = np.load(shared / "oracles" / folder / "expected.npz")
    with started(oracle_model(shared, folder), options=options) as engine:
        result = probe(engine, ProbePlan(ids, choose_rows(len(ids), first_query=True)))
    assert result.exact
    assert np.abs(result.first.layer - expected["first_token_attn"]).max() <= 1e-5
    assert np.abs(result.first.head - expected["first_token_attn_per_head"]).max() <= 1e-5
    if "gate_mean" in expected:
        assert np.abs(result.gate_mean - expected["gate_mean_per_head"]).max() <= 1e-5
        assert np.abs(result.gate_mean.mean(axis=1) - expected["gate_mean"]).max() <= 1e-5
    else:
        assert result.gate_mean.size == 0
    if (file := shared / "oracles" / folder / "probe.npz").exists():
        more = np.load(file)
        gated = result.small_after if len(result.small_after) else result.small_before
        assert np.abs(result.hidden[:, 0] - more["hidden_max"]).max() <= 1e-3
        assert np.abs(result.entropy.head - more["attn_entropy_per_head"]).max() <= 1e-4
        assert np.abs(gated - more["sdpa_small_share"]).max() <= 2e-4


YARN = ContextSetting(
    label="YaRN", rope_theta=1e6, yarn=Yarn(factor=4, original_max_position_embeddings=512), max_length=2048
)


@pytest.mark.parametrize("arm", ["baseline", "headwise", "elementwise"])
def test_the_live_probe_equals_whole_matrices_in_plain_torch(tiny: Path, arm: str) -> None:
    """Maps, losses, distances, gate shares and the place of the largest activation, over several chunks of the
    prompt.
    """
    from harness.models.reference import load

    model = load(tiny / arm)
    vocabulary = model.config["vocab_size"]
    ids = tuple(int(i) for i in np.random.default_rng(1).integers(0, vocabulary, 300))
    ours = probe_reference(model, ids, YARN)
    plan = ProbePlan(ids, choose_rows(len(ids)), maps=((1, 3),))
    with started(Model(label=arm, path=str(tiny / arm), dtype="float32"), YARN, options=CHUNKED) as engine:
        live = probe(engine, plan)
        again = probe(engine, plan)  # the prefix cache is emptied before: nothing is skipped
    assert np.abs(live.first.head - ours.first.numpy()).max() <= 1e-5
    assert np.abs(live.entropy.head - ours.entropy.numpy()).max() <= 1e-4
    assert np.abs(live.distance.head - ours.distance.numpy()).max() <= 1e-2
    assert live.hidden[:, 0] == pytest.approx(ours.hidden.numpy(), rel=1e-4)
    assert live.final[0] == pytest.approx(ours.final, rel=1e-4)
    assert np.abs(live.losses - ours.losses.numpy()).max() <= 1e-3
    assert np.abs(live.maps[1, 3] - ours.attention[1, 3].numpy()).max() <= 1e-5
    assert np.abs(live.small_before - ours.small_before.numpy()).max() <= 1e-4
    if ours.gate_mean is not None and ours.gate_low is not None:
        assert np.abs(live.gate_mean - ours.gate_mean.numpy()).max() <= 1e-5
        assert np.abs(live.gate_low - ours.gate_low.numpy()).max() <= 1e-3
        assert np.abs(live.small_after - ours.small_after.numpy()).max() <= 1e-4
        per_head = 1 if arm == "headwise" else model.config["head_dim"]
        assert live.gate_histogram.sum() == live.gate_mean.size * len(ids) * per_head
    assert (again.first.head == live.first.head).all()
    assert (again.losses == live.losses).all()


def test_sampled_rows_contain_the_exact_mean(tiny: Path) -> None:
    ids = tuple(int(i) for i in np.random.default_rng(2).integers(0, 400, 1500))
    with started(Model(label="m", path=str(tiny / "elementwise"), dtype="float32"), YARN, options=CHUNKED) as engine:
        exact = probe(engine, ProbePlan(ids, choose_rows(len(ids)), perplexity=False))
        sampled = probe(engine, ProbePlan(ids, choose_rows(len(ids), exact_up_to=0, strata=100), perplexity=False))
    assert exact.exact
    assert not sampled.exact
    assert sampled.rows == 264
    for name in ("first", "entropy", "distance"):
        whole, part = getattr(exact, name), getattr(sampled, name)
        assert whole.error == 0 < part.error
        assert abs(part.mean - whole.mean) <= 4 * part.error
        assert (np.abs(part.layer - whole.layer) <= 5 * part.layer_error).all()
    assert (sampled.hidden == exact.hidden).all()  # activations are those of all tokens in both


def test_a_text_beyond_the_context_and_a_compiled_engine_are_refused(tiny: Path) -> None:
    with started(Model(label="m", path=str(tiny / "elementwise"), dtype="float32"), YARN, options=CHUNKED) as engine:
        with pytest.raises(GatedevalError, match="1 over the 2048"):
            probe(engine, ProbePlan((1,) * 2048, choose_rows(2048), perplexity=False))
        probe(engine, ProbePlan((1, 2, 3), choose_rows(3)))  # the refused probe left nothing behind
        with pytest.raises(EngineError, match="there is no layer 9"):
            probe(engine, ProbePlan((1, 2, 3), choose_rows(3), maps=((9, 0),)))
        probe(engine, ProbePlan((1, 2, 3), choose_rows(3)))
        engine.arguments["enforce_eager"] = False
        try:
            with pytest.raises(GatedevalError, match="enforce_eager: true"):
                probe(engine, ProbePlan((1, 2, 3), choose_rows(3)))
        finally:
            engine.arguments["enforce_eager"] = True


def test_the_command_makes_what_is_missing_and_prints_table_4(tmp_path: Path) -> None:
    out = tmp_path / "run"
    settings = ["-s", "probe.lengths=[1024]", "-s", "models.2.contexts=[YaRN]"]
    first = gatedeval("probe", ROOT / "configs/probe-demo.yaml", "-o", out, *settings, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert "5 probes made, 0 found finished" in first.stderr
    assert "| elementwise | elementwise | YaRN" in first.stdout
    records = Probes(out).records()
    assert [(r["model"], r["context"], r["length"]) for r in records] == [
        ("baseline", "base 1M", 1024), ("baseline", "YaRN", 1024), ("headwise", "base 1M", 1024),
        ("headwise", "YaRN", 1024), ("elementwise", "YaRN", 1024),
    ]  # fmt: skip
    assert records[0]["gate_mean"] is None
    assert 0 < records[4]["gate_mean"] < 1
    arrays = Probes(out).arrays(records[0])
    assert arrays["map_0_0"].sum(axis=1) == pytest.approx(np.ones(64), abs=1e-5)
    again = gatedeval("probe", ROOT / "configs/probe-demo.yaml", "-o", out, *settings, "-f", "json", cwd=tmp_path)
    assert "0 probes made, 5 found finished" in again.stderr
    assert [row["Model"] for row in json.loads(again.stdout)["rows"]] == [r["model"] for r in records]


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("probe.text=ruler:niah_singel_1", "no task 'niah_singel_1'; did you mean 'niah_single_1'"),
        ("probe.text=nofile.txt", "is no file (looked in the current directory and in"),
        ("probe.lengths=[16384]", "no context setting of any model reaches a length of 16384 tokens"),
        ("probe.lengths=[2048, 16384]", "(the longest has 8192); remove it from probe.lengths"),
        ("engine.pipeline_parallel_size=2", "set it to 1 (tensor_parallel_size divides a model's heads instead)"),
        ("probe.maps=[[9,0]]", "model 'baseline' has no layer 9"),
        ("probe.maps=[[0,99]]", "model 'baseline' has no head 99"),
        ("probe.lengths=[256]", "at length 256: its smallest text takes"),
    ],
)
def test_what_cannot_be_probed_is_refused_by_plan_run_and_probe_alike(tmp_path: Path, setting: str, words: str) -> None:
    for command in ("plan", "run", "probe"):
        where = [] if command == "plan" else ["-o", tmp_path / command]
        done = gatedeval(command, ROOT / "configs/probe-demo.yaml", "-s", setting, *where, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, ""), command
        assert words in done.stderr.splitlines()[-1], done.stderr
        assert "profile: fair" not in done.stderr, "a probe has no such key"
        assert not (tmp_path / command / "samples").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "config", "words"),
    [
        ("gpt_oss", {"num_local_experts": 4, "num_experts_per_tok": 2}, "a learned sink beside its keys"),
        (
            "deepseek_v3",
            {
                "num_key_value_heads": 4, "kv_lora_rank": 16, "q_lora_rank": None, "qk_rope_head_dim": 16,
                "qk_nope_head_dim": 16, "v_head_dim": 32, "n_routed_experts": 4, "num_experts_per_tok": 2,
                "moe_intermediate_size": 32, "n_group": 1, "topk_group": 1,
            },
            "latent attention (MLA)",
        ),
        ("mamba2", {"num_heads": 4, "state_size": 16, "n_groups": 1, "expand": 2}, "no attention layers"),
    ],
)  # fmt: skip
def test_a_family_that_cannot_be_measured_is_refused_before_an_engine_starts(
    tmp_path: Path, kind: str, config: dict[str, Any], words: str
) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {
        "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 32,
        "num_key_value_heads": 2, "vocab_size": 512, "max_position_embeddings": 256, "eos_token_id": 1,
    }  # fmt: skip
    made = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**sizes, **config}))
    made.save_pretrained(tmp_path / "m")
    save_tokenizer(train_bpe((f"w {i}" for i in range(300)), 400), tmp_path / "m")
    (tmp_path / "text.txt").write_text("w 12 " * 400)
    config_text = "name: p\nmodels: [{label: m, path: m}]\nprobe: {text: text.txt, lengths: [128]}\n"
    (tmp_path / "p.yaml").write_text(config_text)
    starts = Engine.starts
    done = gatedeval("probe", "p.yaml", "-o", tmp_path / "out", cwd=tmp_path)
    assert (done.returncode, done.stdout, Engine.starts) == (2, "", starts)
    assert f"model 'm' cannot be probed: it has {words}" in done.stderr.splitlines()[-1]


RUN = f"""
name: both
models: [{{label: gated, path: {ROOT}/tasks/demo/models/elementwise/long}}]
contexts:
  - {{label: base 1M, rope_theta: 1_000_000, max_length: 1024}}
  - label: YaRN
    rope_theta: 1_000_000
    yarn: {{factor: 4, original_max_position_embeddings: 2048}}
    max_length: 2048
benchmarks:
  - {{ruler: [niah_single_2], lengths: [512, 1024], samples: 3, profile: fair, answer_tokens: 16}}
probe: {{lengths: [256], perplexity: false}}
data: {ROOT}/tasks/demo/data
engine: {{dtype: float32, enforce_eager: true}}
"""


@pytest.mark.extended
def test_a_run_makes_its_probes_in_the_engine_that_answered_its_samples(tmp_path: Path) -> None:
    """One start for both; no score depends on the probes; a probe that is lost is made again, and nothing else."""
    (tmp_path / "both.yaml").write_text(RUN)
    (tmp_path / "plain.yaml").write_text("".join(x for x in RUN.splitlines(True) if not x.startswith("probe:")))
    both, plain = tmp_path / "both", tmp_path / "plain"
    starts = Engine.starts
    first = gatedeval("run", tmp_path / "both.yaml", "-o", both, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert Engine.starts == starts + 1
    assert "complete; 12 samples answered, 0 found finished; 2 probes made, 0 found finished" in first.stderr
    assert gatedeval("run", tmp_path / "plain.yaml", "-o", plain, cwd=tmp_path).returncode == 0
    assert (both / "cells.csv").read_bytes() == (plain / "cells.csv").read_bytes()
    table5, _, probes = first.stdout.partition("\n\n| Model")
    assert table5 + "\n" == export_run(plain)
    assert "| elementwise | YaRN" in probes
    assert "| gated | elementwise | base 1M | YaRN" in " ".join(export_run(both, "sinks").split())

    [lost] = [r for r in Probes(both).records() if r["context"] == "YaRN"]
    (both / "probe" / f"{lost['hash']}.npz").unlink()
    starts = Engine.starts
    again = gatedeval("run", tmp_path / "both.yaml", "-o", both, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert "gated: starting vLLM for the probe" in again.stderr
    assert "complete; 0 samples answered, 12 found finished; 1 probe made, 1 found finished" in again.stderr
    assert Engine.starts == starts + 1
    assert again.stdout == first.stdout
    third = gatedeval("run", tmp_path / "both.yaml", "-o", both, "-q", cwd=tmp_path)
    assert (third.returncode, third.stderr, third.stdout) == (0, "", first.stdout)
    assert Engine.starts == starts + 1


@pytest.mark.slow
def test_a_real_model_s_sinks_are_those_that_transformers_computes(shared: Path) -> None:
    """SmolLM2-135M in Llama form on the essays' first tokens; the numbers are of transformers' eager attention,
    float32.
    """
    subprocess.run([sys.executable, "scripts/build_smollm2.py"], cwd=ROOT, check=True)
    folder = ROOT / ".cache/smollm2/llama"
    essays = gzip.decompress((shared / "data/essays/ruler_PaulGrahamEssays.json.gz").read_bytes())
    from tokenizers import Tokenizer

    text = json.loads(essays)["text"][:40_000]
    ids = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text, add_special_tokens=False).ids
    expected = {512: (0.3137, 0.496), 1024: (0.2916, 0.489), 2048: (0.280, 0.485)}
    native = ContextSetting(label="native")
    with Engine(Model(label="m", path=str(folder), dtype="float32"), [native], EAGER) as engine:
        for length, (first, sinks) in expected.items():
            result = probe(engine, ProbePlan(tuple(ids[:length]), choose_rows(length)))
            assert result.first.mean == pytest.approx(first, abs=1e-4)
            assert result.sink_rate == pytest.approx(sinks, abs=5e-4)
            assert result.activations.mean() == pytest.approx(14_791, rel=1e-3)
            assert result.activations.max() == pytest.approx(25_206, rel=1e-3)

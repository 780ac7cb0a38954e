"""An engine checks itself: broken models fail with a sentence instead of scoring 0, and facts say what really ran."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from harness.config import ContextSetting, EngineOptions, Model
from harness.engine.engine import Engine
from harness.engine.requests import EngineError, Prompt, Question
from harness.engine.verification import check_rank, planned_dtype
from harness.models.checkpoint import inspect
from tests.support import ROOT
from tests.support.engines import altered
from tests.support.in_process import gatedeval, shared_engine, vllm_in_this_process
from tests.support.terminal import in_terminal

pytestmark = pytest.mark.engine

NATIVE = ContextSetting(label="native", max_length=512)
BASE = ContextSetting(label="base 2M", rope_theta=2e6, max_length=1024)


def nan_in_one_o_proj(tensors: dict) -> dict:
    name = next(name for name in tensors if "o_proj" in name)
    tensors[name].view(-1)[0] = float("nan")
    return tensors


def zeroed_o_proj(tensors: dict) -> dict:
    for name, tensor in tensors.items():
        if "o_proj" in name:
            tensor.zero_()
    return tensors


def zeroed_lm_head(tensors: dict) -> dict:
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone().zero_()
    return tensors


def zeroed_everything(tensors: dict) -> dict:
    return {name: tensor.zero_() for name, tensor in tensors.items()}


def constant(tensors: dict) -> dict:
    """Every token has the same embedding; the output layer is a real one."""
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    tensors["model.embed_tokens.weight"][:] = tensors["model.embed_tokens.weight"][7].clone()
    return tensors


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_sound_model_passes_and_its_cache_is_empty_afterwards(tiny: Path, dtype: str) -> None:
    model = Model(label="m", path=str(tiny / "headwise"), dtype=dtype)  # type: ignore[arg-type]
    engine = shared_engine.get(model, NATIVE, BASE)
    for setting in (NATIVE, BASE, NATIVE):
        engine.set_context(setting)
        engine.self_check()
    prompt = Prompt("p", [(7 * i) % 3000 + 40 for i in range(300)], 2)
    cached = [next(iter(engine.generate([prompt]))).cached_tokens for _ in range(2)]
    assert cached[0] == 0
    assert cached[1] > 0


@pytest.mark.parametrize(
    ("damage", "tied", "message"),
    [
        (nan_in_one_o_proj, True, "no numbers"),
        (zeroed_o_proj, True, "depend on the last token alone: attention has no effect"),
        (zeroed_lm_head, False, "every token has the same probability"),
        (zeroed_everything, True, "every token has the same probability"),
        (constant, False, "the same after every prompt"),
    ],
)
def test_a_broken_model_fails_its_self_check(
    tiny: Path, tmp_path: Path, damage: Callable[[dict], dict], tied: bool, message: str
) -> None:
    broken = altered(tiny / "headwise", tmp_path / "broken", damage, tie_word_embeddings=tied)
    engine = shared_engine.get(Model(label="m", path=str(broken), dtype="float32"), NATIVE)
    with pytest.raises(EngineError, match=message) as error:
        engine.self_check()
    assert str(error.value).startswith("self-check under context 'native': ")
    shared_engine.close()  # an engine with NaN in its logits is dead


def test_the_cells_of_a_broken_model_fail_and_no_score_is_printed(tiny: Path, tmp_path: Path) -> None:
    """Such a run was "complete" with a score of 0.00."""
    altered(tiny / "headwise", tmp_path / "broken", zeroed_o_proj)
    config = {
        "name": "r",
        "models": [{"label": "broken", "path": "broken"}, {"label": "sound", "path": str(tiny / "baseline")}],
        "contexts": [{"label": "a", "rope_theta": 1e6, "max_length": 1024}],
        "benchmarks": [{"ruler": ["fwe"], "lengths": [512], "samples": 2}],
    }
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(config))
    result = gatedeval("run", "c.yaml", "-o", "out", cwd=tmp_path)
    assert result.returncode != 0
    failures = json.loads((tmp_path / "out/run.json").read_text())["failures"]
    [error] = failures.values()
    assert "attention has no effect" in error
    assert "attention has no effect" in result.stderr
    rows = [line for line in result.stdout.splitlines() if "broken" in line]
    assert not any("0.0" in row for row in rows)
    log = (tmp_path / "out/engine.log").read_text()
    assert "broken" in log
    assert "sound" in log
    assert "INFO" in log
    for foreign in ("INFO", "WARNING", "Triton", "NUMA", "pid="):
        assert foreign not in result.stderr


def test_facts_name_what_changes_low_order_bits(tiny: Path) -> None:
    engine = shared_engine.get(Model(label="m", path=str(tiny / "headwise"), dtype="float32"), NATIVE, BASE)
    arithmetic = engine.facts["arithmetic"]
    assert {type(value) for value in arithmetic.values()} <= {str, int, float, bool, type(None)}
    import torch
    import vllm

    expected = {
        "vllm": vllm.__version__, "torch": torch.__version__, "dtype": "float32", "head_dtype": "float32",
        "enforce_eager": True, "tensor_parallel": 1, "pipeline_parallel": 1, "kv_cache_dtype": "auto",
        "quantization": None, "batch_invariant": False, "cuda_graphs": "NONE", "compilation": "NONE",
        "capability": None, "float32_matmul": None, "float32_triton": None, "model_runner": "v1",
    }  # fmt: skip
    assert {name: arithmetic[name] for name in expected} == expected
    assert arithmetic["attention"]
    assert arithmetic["device"]
    assert not [name for name in arithmetic if "thread" in name]
    assert engine.facts["enforce_eager"] is True, "what ran; the config says auto"


def test_float32_logits_of_a_model_in_16_bits(tiny: Path) -> None:
    """In bfloat16, logits near 1 are multiples of 1/128: log-probabilities of different tokens coincide."""
    ids = tuple((7 * i) % 3000 + 40 for i in range(60))
    question = Question("q", tuple((ids, (token,)) for token in range(100)))
    distinct = []
    for wanted in (False, True):
        options = EngineOptions(enforce_eager=True, float32_logits=wanted)
        model = Model(label="m", path=str(tiny / "headwise"), dtype="bfloat16")
        engine = shared_engine.get(model, NATIVE, options=options)
        assert engine.facts["arithmetic"]["head_dtype"] == ("float32" if wanted else "bfloat16")
        [choice] = engine.choose([question])
        distinct.append(len(set(choice.logprobs)))
    assert distinct[0] < distinct[1] == 100


def test_a_worker_in_another_dtype_is_refused(tiny: Path) -> None:
    checkpoint = inspect(tiny / "headwise")
    facts = {"model_class": checkpoint.architecture, "gates": ["headwise"], "dtype": "bfloat16"}
    check_rank(facts, 0, checkpoint, "bfloat16")
    with pytest.raises(EngineError, match="rank 1 runs in bfloat16, planned was float32"):
        check_rank(facts, 1, checkpoint, "float32")
    check_rank(facts, 0, checkpoint, planned_dtype({"dtype": "auto"}, checkpoint))
    assert planned_dtype({"dtype": "float32", "quantization": "fp8"}, checkpoint) is None
    assert planned_dtype({"dtype": "float32"}, checkpoint) == "float32"


def test_a_workers_error_is_an_engine_error(tiny: Path) -> None:
    """A bare exception of a worker ended the whole run, with the cells of all other models."""
    engine = shared_engine.get(Model(label="m", path=str(tiny / "headwise"), dtype="float32"), NATIVE, BASE)
    with pytest.raises(EngineError, match="gatedeval_check_rope failed in the engine"):
        engine.rpc("gatedeval_check_rope", {"no": "rope"}, 5)


def test_a_start_that_fails_says_why_and_what_to_change(tiny: Path, tmp_path: Path) -> None:
    """The cause was in the output of another process, and the message said "See root cause above"."""
    long = ContextSetting(label="long", rope_theta=1e6, max_length=2**21)
    options = EngineOptions(enforce_eager=True, kv_cache_gib=0.25)
    shared_engine.close()
    with vllm_in_this_process(), pytest.raises(EngineError) as error:
        Engine(Model(label="m", path=str(tiny / "baseline")), [long], options, log=tmp_path / "engine.log")
    assert "KV cache" in str(error.value)
    assert "engine.kv_cache_gib" in str(error.value)
    assert str(tmp_path / "engine.log") in str(error.value)


@pytest.mark.slow
def test_a_start_that_fails_in_another_process_says_why(tiny: Path, tmp_path: Path) -> None:
    long = ContextSetting(label="long", rope_theta=1e6, max_length=2**21)
    options = EngineOptions(enforce_eager=True, kv_cache_gib=0.25)
    shared_engine.close()
    with pytest.raises(EngineError) as error:
        Engine(Model(label="m", path=str(tiny / "baseline")), [long], options, log=tmp_path / "engine.log")
    assert "max seq len (2097152)" in str(error.value)
    assert "engine.kv_cache_gib" in str(error.value)
    assert "See root cause" not in str(error.value)
    assert "EngineCore failed to start" in (tmp_path / "engine.log").read_text()


@pytest.mark.extended
def test_a_closed_engine_has_no_process_left(tiny: Path, tmp_path: Path) -> None:
    """The next engine needs the memory; vLLM refuses to start while an old process holds it."""
    import psutil

    shared_engine.close()
    mine = psutil.Process()
    before = set(mine.children(recursive=True))
    model = Model(label="m", path=str(tiny / "headwise"), dtype="float32")
    engine = Engine(model, [NATIVE], EngineOptions(enforce_eager=True), log=tmp_path / "engine.log")
    engine.self_check()
    processes = set(mine.children(recursive=True)) - before
    assert len(processes) >= 2, "core and worker"
    engine.close()
    alive = [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    assert [p for p in alive if "resource_tracker" not in " ".join(p.cmdline())] == []
    assert not any(word in (tmp_path / "engine.log").read_text() for word in ("Traceback",))


@pytest.mark.slow
@pytest.mark.parametrize("columns", [80, 120])
def test_no_line_of_vllms_stands_between_the_bars(tiny: Path, tmp_path: Path, columns: int) -> None:
    """Lines of vLLM, Triton and NUMA tore the bars apart."""
    config = {
        "name": "r",
        "models": [{"label": "sound", "path": str(tiny / "baseline")}],
        "contexts": [{"label": "a", "rope_theta": 1e6, "max_length": 1024}],
        "benchmarks": [{"ruler": ["fwe"], "lengths": [512], "samples": 2}],
    }
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(config))
    shared_engine.close()
    command = [str(ROOT / "cli.py"), "run", "c.yaml", "-o", "out"]
    screens, code = in_terminal(command, cwd=tmp_path, columns=columns, env={"VLLM_LOGGING_LEVEL": "INFO"})
    assert code == 0, "\n".join(screens[-1])
    foreign = ("INFO", "WARNING", "Triton", "NUMA", "pid=", "Traceback", ".py:", "Warning")
    assert [line for screen in screens for line in screen if any(word in line for word in foreign)] == []
    assert "INFO" in (tmp_path / "out/engine.log").read_text()

"""Plain vLLM with the package installed, in short scripts like those of a user."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support.engines import Oracle, altered

pytestmark = pytest.mark.engine

SCRIPT = """
import json, sys
from vllm import LLM, SamplingParams
if __name__ == "__main__":
    path, ids = sys.argv[1], json.loads(sys.argv[2])
    llm = LLM(model=path, enforce_eager=True, dtype="float32", skip_tokenizer_init=True, max_logprobs=512,
              max_model_len=512)
    params = SamplingParams(max_tokens=1, temperature=0, logprobs=512, detokenize=False)
    row = llm.generate([{"prompt_token_ids": ids}], params, use_tqdm=False)[0].outputs[0].logprobs[0]
    print("ROW", json.dumps([row[t].logprob for t in range(512)]))
"""


def bare(tmp_path: Path, checkpoint: Path, ids: list[int], **env: str) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "bare.py"
    script.write_text(SCRIPT)
    defaults = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_NUM_OF_RESERVED_CPU": "0", "VLLM_LOGGING_LEVEL": "ERROR"}
    return subprocess.run(
        [sys.executable, str(script), str(checkpoint), json.dumps(ids)],
        env={**os.environ, **defaults, **env},
        capture_output=True,
        text=True,
        check=False,
    )


def row(result: subprocess.CompletedProcess[str]) -> np.ndarray:
    line = next((x for x in result.stdout.splitlines() if x.startswith("ROW ")), None)
    assert line is not None, result.stderr[-2000:]
    return np.array(json.loads(line.removeprefix("ROW ")))


@pytest.mark.slow
def test_released_format_loads_in_a_bare_script(shared: Path, tmp_path: Path) -> None:
    """Type qwen2, an auto_map to remote code, pytorch_model.bin: as people describe the released checkpoints."""
    import torch
    from safetensors.torch import load_file

    oracle = Oracle(shared, "b_headwise_gqa")
    source = altered(
        shared / "oracles/b_headwise_gqa",
        tmp_path / "m",
        model_type="qwen2",
        auto_map={"AutoConfig": "configuration_qwen3.Qwen3Config", "AutoModelForCausalLM": "modeling_qwen3.X"},
    )
    torch.save(load_file(source / "model.safetensors"), source / "pytorch_model.bin")
    (source / "model.safetensors").unlink()
    got = row(bare(tmp_path, source, oracle.ids))
    assert np.abs(got - oracle.logprobs[-1]).max() <= 1e-3


@pytest.mark.slow
def test_stock_vllm_would_load_a_released_checkpoint_silently_wrong(shared: Path, tmp_path: Path) -> None:
    """Why the plugin is needed: without it, vLLM narrows q_proj to the rows that it expects and reports no error."""
    oracle = Oracle(shared, "c_elementwise_gqa")
    got = row(bare(tmp_path, shared / "oracles/c_elementwise_gqa", oracle.ids, VLLM_PLUGINS=""))
    assert np.abs(got - oracle.logprobs[-1]).max() > 1


@pytest.mark.slow
def test_stock_vllm_refuses_what_gatedeval_writes(tiny: Path, tmp_path: Path) -> None:
    result = bare(tmp_path, tiny / "headwise", [1, 2, 3], VLLM_PLUGINS="")
    assert result.returncode != 0
    assert "GatedQwen3ForCausalLM" in result.stderr
    assert "not supported" in result.stderr or "are not supported" in result.stderr


@pytest.mark.extended
def test_a_flag_that_lies_is_refused_in_one_line(shared: Path, tmp_path: Path) -> None:
    lying = altered(
        shared / "oracles/c_elementwise_gqa",
        tmp_path / "m",
        headwise_attn_output_gate=True,
        elementwise_attn_output_gate=False,
    )
    result = bare(tmp_path, lying, [1, 2, 3])
    assert result.returncode != 0
    assert "flags say gate headwise (132 rows in q_proj" in result.stderr.splitlines()[-1]

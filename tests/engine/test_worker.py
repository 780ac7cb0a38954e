"""What vLLM's own code does with our numbers, in cases that a CPU engine does not reach by itself. No engine starts."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from harness.config import ContextSetting
from harness.engine.option_tree import padded
from harness.rope import context
from harness.types import GatedevalError

pytestmark = pytest.mark.engine  # imports vLLM

VOCABULARY = 300
LISTS = [[0, 1], list(range(100, 228)), [7], [0], list(range(0, 40, 2)), list(range(50, 67))]


def test_token_zero_keeps_its_log_probability_beside_lists_of_any_length() -> None:
    """vLLM's sampler, given the lists of six requests in one batch; the longest is as long as vLLM allows."""
    from vllm.v1.sample.sampler import Sampler

    torch.manual_seed(0)
    logprobs = torch.log_softmax(torch.randn(len(LISTS), VOCABULARY), dim=-1)
    asked = {request: padded(ids) for request, ids in enumerate(LISTS)}
    answer = Sampler().gather_specific_token_logprobs(logprobs, asked, logprobs.argmax(dim=-1))
    for request, ids in enumerate(LISTS):
        # as vLLM makes the mapping of an answer: a token's last column counts
        row = dict(zip(answer.logprob_token_ids[request].tolist(), answer.logprobs[request].tolist(), strict=True))
        assert [row[token] for token in ids] == pytest.approx(logprobs[request, ids].tolist())


def test_the_longest_list_is_vllm_s() -> None:
    from vllm.sampling_params import MAX_LOGPROB_TOKEN_IDS

    assert len(padded([0])) == MAX_LOGPROB_TOKEN_IDS


class Rotary(nn.Module):
    """A rotary module as vLLM makes it on ROCm: float32 and bfloat16, created under inference mode."""

    is_neox_style = True

    def __init__(self, table: torch.Tensor) -> None:
        super().__init__()
        with torch.inference_mode():
            self.register_buffer("cos_sin_cache", table.clone(), persistent=False)
            self.register_buffer("cos_sin_cache_bf16", table.to(torch.bfloat16), persistent=False)


@pytest.fixture
def rotary() -> Any:
    """(worker, its rotary module, the encoding of another setting)."""
    from harness.gated.worker import WorkerExtension

    def encoding(**setting: Any) -> Any:
        shape = {"head_dim": 32, "base_theta": 1e4, "max_position_embeddings": 64}
        return context.rope(ContextSetting(label="s", max_length=64, **setting), **shape)

    module = Rotary(torch.from_numpy(encoding().cos_sin(64)).float())
    worker: Any = WorkerExtension()
    worker.model_runner = SimpleNamespace(get_model=lambda: nn.ModuleList([module]))
    return worker, module, encoding(rope_theta=1e6)


def test_both_tables_of_a_rotary_module_are_replaced(rotary: Any) -> None:
    worker, module, wanted = rotary
    worker.gatedeval_set_rope(wanted.to_plain())
    table = torch.from_numpy(wanted.cos_sin(64))
    assert torch.equal(module.cos_sin_cache, table.float())
    assert torch.equal(module.cos_sin_cache_bf16, table.float().to(torch.bfloat16))
    assert worker.gatedeval_check_rope(wanted.to_plain(), 64) < 2**-8


def test_a_second_table_that_encodes_another_setting_is_an_error(rotary: Any) -> None:
    worker, module, wanted = rotary
    with torch.inference_mode():
        module.cos_sin_cache.copy_(torch.from_numpy(wanted.cos_sin(64)))  # bfloat16 keeps the first setting
    with pytest.raises(GatedevalError, match="rotary table differs"):
        worker.gatedeval_check_rope(wanted.to_plain(), 64)
    assert math.isfinite(worker.gatedeval_set_rope(wanted.to_plain()))


class Filled(nn.Module):
    """A layer that only a checkpoint gives values, as vLLM's linear layers, embeddings and experts."""

    def __init__(self, *shape: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.quant_method = SimpleNamespace(process_weights_after_loading=None)
        self.weight = nn.Parameter(torch.empty(*shape, dtype=dtype), requires_grad=False)


@pytest.fixture(params=[torch.float32, torch.bfloat16, torch.float16])
def model(request: Any) -> nn.ModuleDict:
    """Named like vLLM's; `lm_head` is `embed`; `norm` has values of its own; `experts` has padding in each expert."""
    dtype = request.param
    embed = Filled(8, 4, dtype=dtype)
    experts = Filled(3, 4, 4, dtype=dtype)
    experts.weight.weight_loader_numel = 3 * 3 * 4  # type: ignore[attr-defined]
    norm = nn.LayerNorm(4, bias=False, dtype=dtype)
    parts = {"embed": embed, "lm_head": embed, "qkv_proj": Filled(8, 4, dtype=dtype), "experts": experts, "norm": norm}
    made = nn.ModuleDict(parts)
    made.packed_modules_mapping = {"qkv_proj": ["q_proj", "k_proj", "v_proj"]}  # type: ignore[assignment]
    return made


NAMES = {"embed.weight", "qkv_proj.weight", "experts.weight", "norm.weight"}


def fill(model: Any, *, without: tuple[str, ...] = ()) -> None:
    """Write ones, as a checkpoint would, except into the padding of the experts."""
    for name in ("embed", "qkv_proj", "norm"):
        if name not in without:
            model[name].weight.data.fill_(1)
    model["experts"].weight.data[:, :3].fill_(1)


def test_padding_shared_matrices_and_nan_in_the_file_count_as_loaded(model: Any) -> None:
    from harness.gated.loading import Marks

    marks = Marks(model)
    fill(model)
    model["qkv_proj"].weight.data[2, 1] = float("nan")  # the checkpoint is broken in another way
    assert marks.unloaded(NAMES) == []
    assert torch.equal(model["experts"].weight[:, 3:], torch.zeros(3, 1, 4, dtype=model["experts"].weight.dtype))


def test_a_part_of_a_fused_matrix_and_one_expert(model: Any) -> None:
    from harness.gated.loading import Marks

    marks = Marks(model)
    fill(model, without=("qkv_proj",))
    model["qkv_proj"].weight.data[[0, 1, 2, 3, 6]] = 1.0
    model["experts"].weight.data = model["experts"].weight.data.clone()  # a loader may replace the memory
    model["experts"].weight.data[1] = marks_of(model["experts"].weight)
    assert marks.unloaded(NAMES) == [
        "qkv_proj.weight (rows 4-5, 7 of 8; made of q_proj, k_proj, v_proj)",
        "experts.weight",
    ]
    assert all(bool(torch.isfinite(p).all()) for p in model.parameters()), "the engine still runs a trial batch"


def marks_of(like: torch.Tensor) -> torch.Tensor:
    """One expert, marked as before loading."""
    from harness.gated.loading import _MARKS

    integer, mark = _MARKS[like.dtype]
    return torch.full(like.shape[1:], mark, dtype=integer).view(like.dtype)


@pytest.mark.parametrize(
    ("names", "unloaded"), [(NAMES, []), (NAMES - {"norm.weight"}, ["norm.weight"]), (None, ["norm.weight"])]
)
def test_a_norm_keeps_its_initial_value_if_the_model_needs_no_tensor(
    model: Any, names: set[str] | None, unloaded: list[str]
) -> None:
    from harness.gated.loading import Marks

    marks = Marks(model)
    fill(model, without=("norm",))
    assert marks.unloaded(names) == unloaded
    assert unloaded or torch.equal(model["norm"].weight, torch.ones(4, dtype=model["norm"].weight.dtype))

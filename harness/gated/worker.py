"""Methods that run inside every vLLM worker process: report the live model, and replace its rotary table.

vLLM adds `WorkerExtension` to its worker's base classes (`worker_extension_cls`), so the methods run in each rank,
beside the model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.gated.loading import UNLOADED  # importing it registers the loader, before the worker loads its model
from harness.gated.watchdog import follow_parent

if TYPE_CHECKING:
    import torch
    from torch import nn

    from harness.rope.tables import Rope


follow_parent()  # vLLM imports this module in every worker, whether or not it loads the plugins there


class WorkerExtension:
    """Methods that `Engine.rpc` calls in all ranks. Arguments and results are plain data."""

    def gatedeval_facts(self) -> dict[str, Any]:
        """The model in this rank: class, module, gates, dtype, device, shapes of its rotary tables.

        `unloaded`: the parameters, or parts of them, that no tensor of the checkpoint reached (see
        `harness.gated.loading`); None where another loader than ours, or a quantised model, gives no report.
        """
        from harness.gated.attention import GatedAttention

        model = self._gatedeval_model()
        parameters = list(model.parameters())
        return {
            "model_class": type(model).__name__,
            "model_module": type(model).__module__,
            "gates": sorted({m.gate_name for m in model.modules() if isinstance(m, GatedAttention)}),
            "dtype": str(parameters[0].dtype).removeprefix("torch."),
            "device": str(parameters[0].device),
            "unloaded": getattr(model, UNLOADED, None),
            "rope_tables": [list(m.cos_sin_cache.shape) for m in self._gatedeval_ropes()],  # type: ignore[arg-type]
        }

    def gatedeval_arithmetic(self) -> dict[str, Any]:
        """What of this rank's device and libraries changes low-order bits (`harness.gated.arithmetic`)."""
        from harness.gated.arithmetic import arithmetic

        return arithmetic(self._gatedeval_model())

    def gatedeval_set_rope(self, rope: dict[str, Any]) -> float:
        """Write the table of a context setting over the live one, in place, and read it back.

        In place, because compiled code and CUDA graphs hold the buffer's address. `rope`: `Rope.to_plain()`. Returns
        the largest absolute deviation of the table that was read back.

        Raises:
            ValueError: the model does not have exactly one rotary module.
            GatedevalError: the table that was read back is too short or wrong.
        """
        import torch
        from vllm.model_executor.layers import rotary_embedding

        from harness.rope.tables import Rope

        encoding, module = Rope.from_plain(rope), self._gatedeval_rope()
        # vLLM gives one module to all models with equal rope parameters. It must not give out an altered one.
        cache = rotary_embedding._ROPE_DICT
        for key in [k for k, cached in cache.items() if cached is module]:
            del cache[key]
        table: torch.Tensor = module.cos_sin_cache  # type: ignore[assignment]  # (positions, rotary_dim)
        fresh = torch.from_numpy(encoding.cos_sin(table.shape[0]))
        with torch.inference_mode():  # a buffer that was created under it cannot be written outside of it
            for live in _tables(module):
                live.copy_(fresh)
        return max(_deviation(encoding, live, min(encoding.length, table.shape[0])) for live in _tables(module))

    def gatedeval_check_rope(self, rope: dict[str, Any], rows: int) -> float:
        """The smallest deviation of a live rotary module from a context setting. Changes nothing.

        A model with one module must encode the setting. Of several (layer types), one must: the full-attention layers'.
        `rope`: `Rope.to_plain()`. `rows`: positions that a table must have at least.

        Raises:
            GatedevalError: no module encodes the setting, or its table has fewer rows.
            ValueError: the model has no rotary module that can be read.
        """
        import torch

        from harness.rope.tables import Rope

        encoding = Rope.from_plain(rope)
        deviations, first = [], None
        for module in self._gatedeval_ropes():
            try:
                deviations.append(max(_deviation(encoding, table, rows) for table in _tables(module)))
            except Exception as error:
                first = first or error
        for table in self._gatedeval_longropes():
            try:
                deviations.append(_deviation(encoding, table, rows))
            except Exception as error:
                first = first or error
        for module in self._gatedeval_model().modules():  # transformers' own modules compute angles as they go
            for layer_type in ("", "full_attention_"):
                inv_freq = getattr(module, f"{layer_type}inv_freq", None)
                scaling = getattr(module, f"{layer_type}attention_scaling", None)
                if isinstance(inv_freq, torch.Tensor) and scaling is not None:
                    try:
                        deviations.append(encoding.check_frequencies(inv_freq.float().cpu().numpy(), float(scaling)))
                    except Exception as error:
                        first = first or error
        if deviations:
            return min(deviations)
        raise first or ValueError("the model has no rotary table that can be read back")

    def gatedeval_probe_start(self, plan: dict[str, Any]) -> None:
        """Measure the next text that passes through this rank. `plan`: `harness.probe.plan.ProbePlan.to_plain()`.

        Raises:
            ValueError: the model has attention that cannot be measured, or an earlier probe was not finished.
        """
        from vllm.distributed import get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size

        from harness.probe.plan import ProbePlan
        from harness.probe.recorder import Recorder

        if getattr(self, "_gatedeval_recorder", None) is not None:
            raise ValueError("a probe is already running in this engine")
        recorder = Recorder(
            self._gatedeval_model(),
            ProbePlan.from_plain(plan),
            get_tensor_model_parallel_rank(),
            get_tensor_model_parallel_world_size(),
        )
        recorder.attach()
        self._gatedeval_recorder: Any = recorder

    def gatedeval_losses_start(self, ids: list[int]) -> None:
        """Compute the loss of every token of the next text: `ids`, of which the engine is sent all but the last.

        `gatedeval_probe_finish` ends it and returns the losses; `gatedeval_probe_cancel` ends it after a failure.

        Raises:
            ValueError: an earlier probe was not finished.
        """
        from harness.probe.losses import TextLosses

        if getattr(self, "_gatedeval_recorder", None) is not None:
            raise ValueError("a probe is already running in this engine")
        losses = TextLosses(self._gatedeval_model(), ids)
        losses.attach()
        self._gatedeval_recorder = losses

    def gatedeval_probe_cancel(self) -> None:
        """Remove the hooks of a probe that failed. Does nothing where no probe is running."""
        recorder, self._gatedeval_recorder = getattr(self, "_gatedeval_recorder", None), None
        if recorder is not None:
            recorder.detach()

    def gatedeval_probe_finish(self) -> Any:
        """End the probe; what this rank measured (`finish` of `Recorder` or `TextLosses`).

        Raises:
            ValueError: the text did not pass through the model as a whole.
        """
        recorder, self._gatedeval_recorder = self._gatedeval_recorder, None
        return recorder.finish()

    def _gatedeval_model(self) -> nn.Module:
        return self.model_runner.get_model()  # type: ignore[attr-defined]

    def _gatedeval_ropes(self) -> list[nn.Module]:
        """The distinct rotary modules of the model. In most models all layers share one."""
        modules: dict[int, nn.Module] = {}
        for module in self._gatedeval_model().modules():
            if hasattr(module, "cos_sin_cache") and hasattr(module, "is_neox_style"):
                modules[id(module)] = module
        return list(modules.values())

    def _gatedeval_longropes(self) -> list[torch.Tensor]:
        """The tables in use of vLLM's class for LongRoPE, which keeps the short and the long one in one buffer."""
        found = {}
        for module in self._gatedeval_model().modules():
            both = getattr(module, "long_short_cos_sin_cache", None)
            if both is not None:
                original = module.original_max_position_embeddings
                found[id(module)] = both[original:] if module.use_long_rope else both[:original]
        return list(found.values())

    def _gatedeval_rope(self) -> nn.Module:
        """The only rotary module of the model. Raises ValueError if there are several, or none."""
        ropes = self._gatedeval_ropes()
        if len(ropes) != 1:
            raise ValueError(
                f"the model has {len(ropes)} different rotary tables; only models with one can be re-based"
            )
        return ropes[0]


def _tables(module: nn.Module) -> list[torch.Tensor]:
    """The tables of a rotary module: vLLM has a second one in bfloat16 on ROCm, which its kernels read instead."""
    import torch

    buffers = (getattr(module, name, None) for name in ("cos_sin_cache", "cos_sin_cache_bf16"))
    return [buffer for buffer in buffers if isinstance(buffer, torch.Tensor)]


def _deviation(encoding: Rope, table: Any, rows: int) -> float:
    """The largest absolute deviation of a live table from `encoding`. Raises GatedevalError if it is wrong."""
    dtype = str(table.dtype).removeprefix("torch.")
    return encoding.check_table(table.float().cpu().numpy(), rows=rows, dtype=dtype, where="worker")

"""What the engine asks of every vLLM worker process: which model runs there, and new rotary tables in the live model.

vLLM mixes this class into its worker (`worker_extension_cls`), so its methods run in each rank, beside the model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

    from harness.rope.tables import Rope


class WorkerExtension:
    """Methods that `Engine` calls on all ranks through vLLM's collective RPC. Plain data in, plain data out."""

    def gatedeval_facts(self) -> dict[str, Any]:
        """Class and module of the model in this rank, parameter count, dtype, and the shapes of its rotary tables."""
        from harness.gated.attention import GatedAttention

        model = self._gatedeval_model()
        parameters = list(model.parameters())
        return {
            "model_class": type(model).__name__,
            "model_module": type(model).__module__,
            "gates": sorted({str(m.layout.gate) for m in model.modules() if isinstance(m, GatedAttention)}),
            "parameters": sum(p.numel() for p in parameters),
            "dtype": str(parameters[0].dtype).removeprefix("torch."),
            "device": str(parameters[0].device),
            "rope_tables": [list(m.cos_sin_cache.shape) for m in self._gatedeval_ropes()],  # type: ignore[arg-type]
        }

    def gatedeval_set_rope(self, rope: dict[str, Any]) -> float:
        """Write the tables of a context setting over the live ones, in place, and read them back.

        In place, since compiled code and CUDA graphs hold the buffer's address. Returns the largest absolute deviation
        read back. Raises GatedevalError when the live table is too short or reads back wrong.
        """
        import torch
        from vllm.model_executor.layers import rotary_embedding

        spec = _rope(rope)
        ropes = self._gatedeval_ropes()
        if len(ropes) != 1:
            raise ValueError(
                f"the model has {len(ropes)} different rotary tables; only models with one can be re-based"
            )
        worst = 0.0
        for module in ropes:
            # vLLM hands one module to every model of equal rope parameters: an altered one must not be handed out again
            cache = rotary_embedding._ROPE_DICT
            for key in [k for k, cached in cache.items() if cached is module]:
                del cache[key]
            table: torch.Tensor = module.cos_sin_cache  # type: ignore[assignment]
            fresh = torch.from_numpy(spec.cos_sin(table.shape[0]))
            for name in ("cos_sin_cache", "cos_sin_cache_bf16"):
                if isinstance(buffer := getattr(module, name, None), torch.Tensor):
                    buffer.copy_(fresh)
            dtype = str(table.dtype).removeprefix("torch.")
            live = table.float().cpu().numpy()
            worst = max(worst, spec.check_table(live, rows=min(spec.length, len(live)), dtype=dtype, where="worker"))
        return worst

    def gatedeval_check_rope(self, rope: dict[str, Any], rows: int) -> float:
        """Compare the live tables with a context setting without touching them; the largest absolute deviation.

        Raises GatedevalError when they are shorter than `rows` or encode something else.
        """
        spec = _rope(rope)
        worst = 0.0
        for module in self._gatedeval_ropes():
            table = module.cos_sin_cache
            dtype = str(table.dtype).removeprefix("torch.")
            worst = max(worst, spec.check_table(table.float().cpu().numpy(), rows=rows, dtype=dtype, where="worker"))  # type: ignore[operator]
        return worst

    def _gatedeval_model(self) -> nn.Module:
        return self.model_runner.get_model()  # type: ignore[attr-defined]

    def _gatedeval_ropes(self) -> list[nn.Module]:
        """The distinct rotary modules of the model (all layers usually share one)."""
        found: dict[int, nn.Module] = {}
        for module in self._gatedeval_model().modules():
            if hasattr(module, "cos_sin_cache") and hasattr(module, "is_neox_style"):
                found[id(module)] = module
        return list(found.values())


def _rope(data: dict[str, Any]) -> Rope:
    """A `Rope` from the plain data that crossed the process boundary."""
    import numpy as np

    from harness.rope.tables import Rope

    return Rope(
        np.asarray(data["inv_freq"], dtype=np.float64), data["attention_scaling"], data["parameters"], data["length"]
    )

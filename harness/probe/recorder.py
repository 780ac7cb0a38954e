"""Measure inside a live vLLM model: forward hooks on its attention, its decoder layers, and the model itself.

The hooks run in every tensor-parallel rank, on the rank's own heads, while one text passes through the model in
chunks of any size. They need eager mode: compiled code does not call them. Memory: the keys of every layer once more
(as large as half of the text's KV cache), one block of attention rows, one block of logits.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from harness.probe.attention import RowMeasures, measure_rows, weights
from harness.probe.losses import token_losses
from harness.probe.other_gates import GateSource, gate_source
from harness.probe.plan import ProbePlan
from harness.probe.tallies import Gates, Largest, Small


class AttentionLayer:
    """What is measured around one attention module."""

    def __init__(self, name: str, module: Any, parent: Any) -> None:
        self.name, self.module, self.parent = name, module, parent
        self.keys: Tensor | None = None
        self.seen = 0
        self.rows: list[RowMeasures] = []
        self.queries: list[Tensor] = []  # kept whole only where a map of this layer is asked for
        self.before, self.after, self.gates = Small(), Small(), Gates()

    def add(self, plan: ProbePlan, positions: Tensor, query: Tensor, key: Tensor, keep_queries: bool) -> None:
        """Take the next tokens' queries and keys, as the attention module gets them (normed and rotated)."""
        module = self.module
        q_THD = query.view(-1, module.num_heads, module.head_size)
        k_TKD = key.view(-1, module.num_kv_heads, module.head_size)
        tokens = q_THD.shape[0]
        if self.keys is None:
            self.keys = torch.empty((len(plan.ids), *k_TKD.shape[1:]), dtype=k_TKD.dtype, device=k_TKD.device)
        if self.seen + tokens > len(plan.ids):
            raise ValueError(
                f"{self.name} got more than the text's {len(plan.ids)} tokens: another request was running"
            )
        self.keys[self.seen : self.seen + tokens] = k_TKD
        at = positions[(positions >= self.seen) & (positions < self.seen + tokens)]
        if len(at):
            mine = q_THD[(at - self.seen).to(q_THD.device)]
            self.rows.append(measure_rows(mine, self.keys, at.to(q_THD.device), **self.form))
        if keep_queries:
            self.queries.append(q_THD.clone())
        self.seen += tokens

    @property
    def form(self) -> dict[str, Any]:
        """Scale, sliding window and soft cap of the attention scores."""
        impl = self.module.impl
        return {
            "scale": float(impl.scale),
            "window": self.module.sliding_window,
            "softcap": float(getattr(impl, "logits_soft_cap", None) or 0.0),
        }

    def map(self, head: int) -> list[list[float]]:
        """The whole attention map of one of this rank's heads: rows are queries, columns keys."""
        assert self.keys is not None
        q_THD = torch.cat(self.queries)
        at = torch.arange(q_THD.shape[0], device=q_THD.device)
        return weights(q_THD, self.keys, at, **self.form)[head].tolist()


class Recorder:
    """Measures one text in a live model. `attach`, run the text through the engine, `finish`.

    `model`: vLLM's model in this rank. `rank`, `ranks`: of tensor parallelism.

    Raises:
        ValueError: the model has attention that cannot be measured (the message says which and why).
    """

    def __init__(self, model: nn.Module, plan: ProbePlan, rank: int = 0, ranks: int = 1) -> None:
        self.model: Any = model
        self.plan, self.rank, self.ranks = plan, rank, ranks
        self.positions = torch.from_numpy(plan.rows.positions)
        self.attentions = find_attention(model)
        self.hidden = {name: Largest() for name in layer_names(self.attentions)}
        self.final = Largest()
        self.losses: list[Tensor] = []
        self.error: str | None = None
        self._undo: list[Any] = []
        mapped = {layer for layer, _ in plan.maps}
        self._keep = [i in mapped for i in range(len(self.attentions))]

    def attach(self) -> None:
        """Put the hooks in place."""
        modules = dict(self.model.named_modules())
        for index, layer in enumerate(self.attentions):
            self._hook(layer.module, self._on_attention(layer, self._keep[index]))
            parent = layer.parent
            if hasattr(parent, "apply_gate") and getattr(parent, "gate_dim", False):
                self._wrap_gate(layer)
            elif getattr(parent, "variant", None):
                self._hook(parent.o_proj, self._on_projection(layer))
            if (gate := getattr(parent, "attn_gate", None)) is not None:
                self._hook(gate, self._on_gate(layer))
            if (source := gate_source(parent)) is not None:
                self._hook(source.module, self._on_other_gate(layer, source))
                self._hook(parent.o_proj, self._on_projection(layer))
        for name, largest in self.hidden.items():
            self._hook(modules[name], self._on_layer(largest))
        self._hook(self.model, self._on_model)

    def detach(self) -> None:
        """Remove the hooks. Idempotent."""
        while self._undo:
            self._undo.pop()()

    def finish(self) -> dict[str, Any]:
        """Remove the hooks; what this rank measured, as plain data (`harness.probe.results.combine` reads it).

        Raises:
            ValueError: a hook failed, or the model did not see the whole text exactly once.
        """
        self.detach()
        if self.error:
            raise ValueError(self.error)
        length = len(self.plan.ids)
        for name, seen in [(a.name, a.seen) for a in self.attentions] + [(n, h.seen) for n, h in self.hidden.items()]:
            if seen != length:
                raise ValueError(
                    f"{name} saw {seen} of {length} tokens: is the model compiled, or was its prefix cached?"
                )
        measures: dict[str, list[Any]] = {}
        for index, name in enumerate(("first", "entropy", "distance")):
            values = torch.stack([torch.cat([r[index] for r in a.rows]) for a in self.attentions])  # (L, R, H)
            measures[name] = [values.float().cpu().numpy().tobytes(), list(values.shape)]
        gated = [a for a in self.attentions if a.gates.values]
        held = getattr(gated[0].parent, "attn_gate", None) if gated else None
        return {
            "rank": self.rank,
            "layers": [a.name for a in self.attentions],
            "measures": measures,
            "hidden": [h.to_plain() for h in self.hidden.values()],
            "final": self.final.to_plain(),
            "before": [a.before.to_plain() for a in self.attentions],
            "after": [a.after.to_plain() for a in self.attentions if a.after.count],
            "gates": [a.gates.to_plain() for a in gated],
            "first_gate": held.first_head if held is not None else None,  # ranks may hold copies of the same gates
            "maps": self._maps(),
            "losses": torch.cat(self.losses).cpu().numpy().tobytes() if self.losses else b"",
        }

    def _maps(self) -> list[Any]:
        """[layer, head, map] of those heads that this rank has."""
        found = []
        for layer, head in self.plan.maps:
            if not 0 <= layer < len(self.attentions):
                raise ValueError(f"there is no layer {layer}: the model has {len(self.attentions)}, counted from 0")
            local = self.attentions[layer].module.num_heads
            if not 0 <= head < local * self.ranks:
                raise ValueError(f"there is no head {head}: layer {layer} has {local * self.ranks}, counted from 0")
            if head // local == self.rank:
                found.append([layer, head, self.attentions[layer].map(head % local)])
        return found

    # --- hooks -----------------------------------------------------------------------------------------------------

    def _hook(self, module: nn.Module, function: Any) -> None:
        handle = module.register_forward_hook(self._guarded(function), with_kwargs=True)
        self._undo.append(handle.remove)

    def _guarded(self, function: Any) -> Any:
        """The hook, with its first error kept: an exception inside the model would end the engine."""

        def hook(module: Any, args: Any, kwargs: Any, output: Any) -> None:
            if self.error is None:
                try:
                    function(args, kwargs, output)
                except Exception as error:
                    self.error = f"{type(error).__name__}: {error}"

        return hook

    def _on_attention(self, layer: AttentionLayer, keep_queries: bool) -> Any:
        def hook(args: Any, kwargs: Any, output: Tensor) -> None:
            query, key = [*args, *(kwargs[n] for n in ("query", "key") if n in kwargs)][:2]
            if key is None:
                raise ValueError(f"{layer.name} reads another layer's keys, which is not measured")
            layer.add(self.plan, self.positions, query, key, keep_queries)
            layer.before.add(output)

        return hook

    def _on_layer(self, largest: Largest) -> Any:
        def hook(args: Any, kwargs: Any, output: Any) -> None:
            # vLLM's layers return the residual apart; the stream after the layer is the sum
            stream = output
            if isinstance(output, tuple):
                stream = output[0] if output[1] is None else output[0].float() + output[1].float()
            largest.add(stream)

        return hook

    def _on_gate(self, layer: AttentionLayer) -> Any:
        def hook(args: Any, kwargs: Any, output: Tensor) -> None:
            layer.gates.add(output.expand(args[0].shape[0], *output.shape[1:]))

        return hook

    def _on_other_gate(self, layer: AttentionLayer, source: GateSource) -> Any:
        def hook(args: Any, kwargs: Any, output: Any) -> None:
            layer.gates.add(source.values(output))

        return hook

    def _on_projection(self, layer: AttentionLayer) -> Any:
        def hook(args: Any, kwargs: Any, output: Any) -> None:
            layer.after.add(args[0])

        return hook

    def _wrap_gate(self, layer: AttentionLayer) -> None:
        """Measure around `GatedAttention.apply_gate`, which may work in place on both of its arguments."""
        parent = layer.parent
        original = parent.apply_gate

        def apply_gate(attn_out: Tensor, gate: Tensor) -> Tensor:
            values = torch.sigmoid(gate)
            output: Tensor = original(attn_out, gate)
            if self.error is None:
                try:
                    layer.gates.add(values.view(values.shape[0], parent.num_heads, -1))
                    layer.after.add(output)
                except Exception as error:
                    self.error = f"{type(error).__name__}: {error}"
            return output

        parent.apply_gate = apply_gate
        self._undo.append(lambda: parent.__dict__.pop("apply_gate", None))

    def _on_model(self, args: Any, kwargs: Any, output: Any) -> None:
        """Final hidden states (after the last norm): their largest value, and the next tokens' log-probabilities."""
        if not isinstance(output, Tensor):
            return  # a pipeline stage that is not the last
        start, ids = self.final.seen, self.plan.ids
        if start + len(output) > len(ids):
            raise ValueError(f"the model got more than the text's {len(ids)} tokens: another request was running")
        self.final.add(output)
        if not self.plan.perplexity:
            return
        self.losses += token_losses(self.model, output, ids[start + 1 : start + len(output) + 1])


def find_attention(model: nn.Module) -> list[AttentionLayer]:
    """The attention modules of a decoder, in the order of its layers.

    Raises:
        ValueError: there are none, or one of them computes something that the probe does not measure.
    """
    from vllm.model_executor.layers.attention import Attention

    modules = dict(model.named_modules())
    layers = []
    for name, module in modules.items():
        if isinstance(module, Attention):
            if getattr(module, "has_sink", False):
                raise ValueError(f"{name} has a learned sink beside its keys, which the probe does not measure")
            layers.append(AttentionLayer(name, module, modules[name.rpartition(".")[0]]))
    if len({layer.module.num_heads for layer in layers}) > 1:
        raise ValueError(f"{type(model).__name__} has layers with different numbers of heads, which is not measured")
    if not layers:
        raise ValueError(f"{type(model).__name__} has no attention layer that the probe knows how to measure")
    return layers


def layer_names(attentions: list[AttentionLayer]) -> list[str]:
    """The decoder layers that hold the attention modules: "model.layers.3.self_attn.attn" -> "model.layers.3"."""
    names = []
    for attention in attentions:
        parts = attention.name.split(".")
        number = next((i for i, part in enumerate(parts) if part.isdigit()), None)
        if number is None:
            raise ValueError(f"{attention.name} is in no numbered decoder layer")
        names.append(".".join(parts[: number + 1]))
    return names

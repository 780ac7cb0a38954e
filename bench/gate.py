"""The cost of the gate: the same model shape without a gate, with a headwise gate and with an elementwise gate.

It reports three numbers:

  total   wall time of a whole model with a gate over that of one without, measured in turn on engines that run side
          by side. An elementwise gate needs as many projection rows as the queries; no implementation can avoid this
          arithmetic.
  step    the gating itself (sigmoid and multiplication) as a share of the rest of its attention block (projections,
          norms, rotary, attention), timed inside the live model. This depends on the implementation; "the gate costs at
          most 2 %" is about this number.
  switch  wall time of the whole gated model with its gating step over that without it, in one engine that switches the
          step off and on in turn. The projection of the gate is computed in both.

Prefill is one prompt; decode is a batch of short prompts, per step. Weights are random: they do not affect the timing.
The default takes four minutes on two cores. On a GPU: --layers 28 --dtype bfloat16 --lengths 4096,8192,16384,32768
--compile

Ratios of whole models compare processes. On a CPU, two engines of the same model can differ by a fifth in single-token
steps, depending on where their memory lies, so small differences mean nothing. Step and switch are measured within one
process, without compilation: compiled code and CUDA graphs hold the gate that they were captured with.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common import CACHE, emit, graphics_card, note

from harness.config import ContextSetting, Model
from harness.types import Gate

ARMS: tuple[Gate, ...] = ("none", "headwise", "elementwise")
SHAPES = {  # hidden, intermediate, query heads, KV heads, head_dim
    "small": (1024, 3072, 16, 8, 64),
    "1.7b": (2048, 6144, 16, 8, 128),
}
VOCABULARY = 4096
ANSWER = 48  # decode steps


def checkpoint(shape: str, layers: int, gate: Gate, tokenizer: Path) -> Model:
    """A model of the shape with random weights, written once per machine."""
    import torch

    from harness.models.layout import gate_flags
    from harness.models.tiny import random_weights
    from harness.models.writing import write_checkpoint

    hidden, inner, heads, kv_heads, head_dim = SHAPES[shape]
    folder = CACHE / f"gate-{shape}-{layers}-{gate}"
    if not (folder / "config.json").exists():
        config = {
            "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers,
            "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim, "hidden_act": "silu",
            "rms_norm_eps": 1e-6, "rope_theta": 1e6, "max_position_embeddings": 40960, "tie_word_embeddings": True,
            "vocab_size": VOCABULARY, "torch_dtype": "bfloat16", "bos_token_id": None, "eos_token_id": 0,
            "use_qk_norm": True, **gate_flags(gate),
        }  # fmt: skip
        tensors = {name: tensor.to(torch.bfloat16) for name, tensor in random_weights(config, seed=0).items()}
        tensors["model.embed_tokens.weight"][0] = 0  # the end token is never the likeliest: every answer is full length
        write_checkpoint(folder, config, tensors)
    return Model(label=gate, path=str(folder), tokenizer=str(tokenizer))


# --- functions that run inside the worker (sent there by value) ------------------------------------------------------


def install_clocks(worker: Any) -> str:
    """Time every attention block, and the gating in it. Returns the class name of the blocks."""
    import time

    import torch

    cuda = torch.cuda.is_available()
    clocks: dict[str, list[float]] = {"block": [], "gate": []}
    worker.bench_clocks = clocks

    def now() -> float:
        if cuda:
            torch.cuda.synchronize()
        return time.perf_counter()

    def timed(inner: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            start = now()
            result = inner(*args, **kwargs)
            clocks[name].append(now() - start)
            return result

        return call

    kind = ""
    for name, module in worker.model_runner.get_model().named_modules():
        if name.endswith(".self_attn"):
            kind = type(module).__name__
            module.forward = timed(module.forward, "block")
            if hasattr(module, "apply_gate"):
                module.apply_gate = timed(module.apply_gate, "gate")
    return kind


def read_clocks(worker: Any) -> dict[str, list[float]]:
    """Seconds of every call since the last reading, in the order of the calls."""
    reading = {name: list(calls) for name, calls in worker.bench_clocks.items()}
    for calls in worker.bench_clocks.values():
        calls.clear()
    return reading


def switch_gates(worker: Any, on: bool) -> int:
    """Let every attention block apply its gate, or pass the attention output on. Returns the number of blocks."""
    blocks = [m for m in worker.model_runner.get_model().modules() if hasattr(m, "apply_gate")]
    for block in blocks:
        vars(block).pop("apply_gate", None)  # the method of the class again
        if not on:
            block.apply_gate = lambda attn_out, gate: attn_out
    return len(blocks)


# --- measuring -------------------------------------------------------------------------------------------------------


class Timed:
    """An engine, and the two workloads that are timed on it."""

    def __init__(self, engine: Any, seed: int = 0) -> None:
        self.engine, self.rng = engine, random.Random(seed)

    def _ids(self, count: int) -> list[int]:
        return [self.rng.randrange(1, VOCABULARY) for _ in range(count)]

    def prefill(self, length: int) -> float:
        """Seconds for a prompt of `length` tokens and one token of answer."""
        from harness.engine.requests import Prompt

        prompt = Prompt("p", self._ids(length), 1)
        start = time.perf_counter()
        list(self.engine.generate([prompt]))
        return time.perf_counter() - start

    def decode(self, batch: int) -> float:
        """Seconds per step of a batch of `batch` short prompts, their prefill (32 tokens each) included."""
        from harness.engine.requests import Prompt

        prompts = [Prompt(i, self._ids(32), ANSWER) for i in range(batch)]
        start = time.perf_counter()
        answers = list(self.engine.generate(prompts))
        assert all(a.tokens == ANSWER for a in answers)
        return (time.perf_counter() - start) / ANSWER


def walls(live: dict[Gate, Timed], what: Callable[[Timed], float], repeats: int) -> dict[str, dict[str, float]]:
    """Per gate: median seconds, median ratio to the model without a gate in the same turn, ratio of the fastest times.

    The order of the models rotates from turn to turn.
    """
    seen: dict[Gate, list[float]] = {arm: [] for arm in live}
    for timed in live.values():
        what(timed)  # warm
    order = list(live)
    for turn in range(repeats):
        for arm in order[turn % len(order) :] + order[: turn % len(order)]:
            seen[arm].append(what(live[arm]))
    found = {}
    for arm, values in seen.items():
        ratios = [v / base for v, base in zip(values, seen["none"], strict=True)]
        best = min(values) / min(seen["none"])
        found[str(arm)] = {"seconds": statistics.median(values), "ratio": statistics.median(ratios), "best": best}
    return found


def shares(timed: Timed, what: Callable[[Timed], float], repeats: int) -> float:
    """Time of the gating step over time of the rest of its attention block.

    The same work runs `repeats` times, with the same calls in the same order. The fastest time of each call counts,
    because other work on the machine only makes a call slower.
    """
    readings: list[dict[str, list[float]]] = []
    timed.engine.rpc(read_clocks)
    for _ in range(repeats):
        what(timed)
        readings.append(timed.engine.rpc(read_clocks)[0])
    if len({len(r["block"]) for r in readings}) > 1:  # vLLM formed other batches
        return statistics.median(sum(r["gate"]) / (sum(r["block"]) - sum(r["gate"])) for r in readings)
    best = {name: sum(map(min, zip(*(r[name] for r in readings), strict=True))) for name in ("gate", "block")}
    return best["gate"] / (best["block"] - best["gate"])


def switched(timed: Timed, what: Callable[[Timed], float], repeats: int) -> dict[str, float]:
    """Median seconds with the gating step, and the median ratio to the same work without it, in one engine.

    Which of the two runs first changes from turn to turn.
    """
    seen: dict[bool, list[float]] = {True: [], False: []}
    for turn in range(repeats):
        for on in (turn % 2 == 0, turn % 2 == 1):
            if not all(timed.engine.rpc(switch_gates, on)):
                raise SystemExit("this model has no gating step to switch off")
            seen[on].append(what(timed))
    timed.engine.rpc(switch_gates, True)
    ratios = [with_gate / without for with_gate, without in zip(seen[True], seen[False], strict=True)]
    return {"seconds": statistics.median(seen[True]), "ratio": statistics.median(ratios)}


def measure(args: argparse.Namespace) -> None:
    """Start the engines, measure wall times in turn, then the gating step inside each engine."""
    from harness.config import EngineOptions
    from harness.engine.engine import Engine
    from harness.models.tiny import make_tiny

    os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"  # functions are sent to our own workers, on this machine
    make_tiny(CACHE / "tiny")
    longest = max(args.lengths) + 64
    setting = ContextSetting(label="bench", max_length=longest)
    options = EngineOptions(
        enforce_eager=not args.compile, prefix_caching=False, max_num_batched_tokens=args.chunk,
        gpu_memory_utilization=0.25, kv_cache_gib=2,  # three engines run side by side
    )  # fmt: skip
    arms: tuple[Gate, ...] = ("none", *args.gates)
    live: dict[Gate, Timed] = {}
    try:
        for arm in arms:
            note(f"starting: {arm}")
            model = checkpoint(args.shape, args.layers, arm, CACHE / "tiny" / "baseline")
            model = Model(label=arm, path=model.path, tokenizer=model.tokenizer, dtype=args.dtype)
            live[arm] = Timed(Engine(model, [setting], options))
        jobs: dict[str, Callable[[Timed], float]] = {}
        for length in args.lengths:
            jobs[f"prefill {length}"] = lambda t, n=length: t.prefill(n)  # type: ignore[misc]
        for batch in args.batches:
            jobs[f"decode batch {batch}"] = lambda t, n=batch: t.decode(n)  # type: ignore[misc]
        total = {}
        for name, job in jobs.items():
            total[name] = walls(live, job, args.repeats)
            note(f"{name}: " + ", ".join(f"{a} {v['seconds']:.4g} s x{v['ratio']:.3f}" for a, v in total[name].items()))
        step: dict[str, dict[str, float]] = {}
        switch: dict[str, dict[str, dict[str, float]]] = {}
        if not args.compile:  # compiled, the step is part of a larger kernel and cannot be timed by itself
            for arm in arms[1:]:
                for name, job in jobs.items():
                    found = switch.setdefault(name, {})[str(arm)] = switched(live[arm], job, max(3, args.repeats))
                    note(f"{name}: {arm} with its gating step takes {found['ratio']:.3f} x the time without it")
                live[arm].engine.rpc(install_clocks)
                for name, job in jobs.items():
                    step.setdefault(name, {})[str(arm)] = shares(live[arm], job, max(3, args.repeats))
                    note(f"{name}: {arm} step {100 * step[name][str(arm)]:.2f} % of the rest of the attention block")
    finally:
        for timed in live.values():
            timed.engine.close()
    report(args, total, step, switch)


def report(
    args: argparse.Namespace, total: dict[str, Any], step: dict[str, dict[str, float]], switch: dict[str, Any]
) -> None:
    """One line and one JSON line."""
    parts = []
    for gate in args.gates:
        worst = max(step, key=lambda name: step[name][gate], default=None)
        inside = f"step at most {100 * step[worst][gate]:.2f} % of its attention block ({worst}); " if worst else ""
        ratios = ", ".join(f"{100 * (v[gate]['ratio'] - 1):+.1f} % {name}" for name, v in total.items())
        inside += "".join(f"switched on {100 * (v[gate]['ratio'] - 1):+.1f} % {name}, " for name, v in switch.items())
        parts.append(f"{gate}: {inside}whole model {ratios}")
    where = graphics_card() or f"CPU, {os.cpu_count()} cores"
    mode = "compiled" if args.compile else "eager"
    shape = f"{args.layers} layers of the {args.shape} shape, {args.dtype}, {mode}, {where}"
    names = ("hidden", "intermediate", "heads", "kv_heads", "head_dim")
    emit("gate", f"{'; '.join(parts)} ({shape}; median of {args.repeats} turns)",
         total=total, step=step, switch=switch, shape=dict(zip(names, SHAPES[args.shape], strict=True)),
         layers=args.layers, dtype=args.dtype, mode=mode, device=where)  # fmt: skip


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=list(SHAPES), default="1.7b")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--lengths", type=lambda s: [int(n) for n in s.split(",")], default=[4096, 8192])
    parser.add_argument("--batches", type=lambda s: [int(n) for n in s.split(",")], default=[1, 16])
    parser.add_argument("--gates", type=lambda s: s.split(","), default=list(ARMS[1:]))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--chunk", type=int, default=2048, help="tokens per engine step")
    parser.add_argument("--compile", action="store_true", help="compiled (on CUDA with graphs): whole models only")
    measure(parser.parse_args())


if __name__ == "__main__":
    main()

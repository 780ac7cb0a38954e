"""The effect of the order of samples: niah_single_2's prompts deepest first and in random order, same engine, in turn.

Prints, for both orders, the share of prompt tokens that vLLM computed (from its own counts) and the seconds: once with
a KV cache of gatedeval's usual size ("roomy"), once with one that holds little more than one prompt ("tight"). The
prefix cache is emptied before each pass. Answers should be the same in both orders (float32).
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from common import data_folder, emit, note, skip

from harness.config import ContextSetting, EngineOptions, Model, from_dict
from harness.engine.engine import Engine
from harness.engine.requests import Prompt, SampleRequest
from harness.run.plan import Plan, build
from harness.run.producing import Assignment, produce

BLOCK = 128  # tokens


def tight_cache(tokens: int) -> dict[str, int]:
    """vLLM's arguments for a KV cache that holds `tokens` tokens."""
    return {"block_size": BLOCK, "num_gpu_blocks_override": -(-tokens // BLOCK) + 1}


def prompts(plan: Plan) -> list[Prompt]:
    """The samples of the plan's one cell, in the order in which the runner sends them."""
    events = produce(plan, Assignment("model", "long", tuple(plan.cells), "", {}))
    found = [e.request for e in events if isinstance(e, SampleRequest)]
    assert all(isinstance(p, Prompt) for p in found)
    return found  # type: ignore[return-value]


def one_pass(engine: Engine, setting: ContextSetting, order: list[Prompt]) -> tuple[float, int, dict[Any, Any]]:
    """(seconds, prompt tokens from the cache, answers) of one pass that starts with an empty prefix cache."""
    engine.set_context(setting)
    start = time.perf_counter()
    answers = list(engine.generate(order))
    seconds = time.perf_counter() - start
    return seconds, sum(a.cached_tokens for a in answers), {a.key: a.token_ids for a in answers}


def compare(
    engine: Engine, setting: ContextSetting, deepest: list[Prompt], pairs: int, cache: str
) -> dict[str, dict[str, Any]]:
    """Both orders in turn: the share of prompt tokens that each computed, and the ratio of their times."""
    total = sum(len(p.ids) for p in deepest)
    shuffled = random.Random(7).sample(deepest, len(deepest))
    one_pass(engine, setting, deepest[:1])  # warm
    ratios, share, differ = [], {}, 0
    for pair in range(pairs):
        runs = {}
        for name in ("deepest", "random") if pair % 2 == 0 else ("random", "deepest"):
            runs[name] = one_pass(engine, setting, deepest if name == "deepest" else shuffled)
            share[name] = 1 - runs[name][1] / total
            note(f"{cache} cache, {name}: {share[name]:.1%} of {total:,} tokens computed, {runs[name][0]:.1f} s")
        ratios.append(runs["deepest"][0] / runs["random"][0])
        differ = sum(runs["deepest"][2][k] != v for k, v in runs["random"][2].items())
    return {cache: {"computed": share, "ratio": statistics.median(ratios), "ratios": ratios, "differ": differ}}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="checkpoint directory (default: a tiny one with random weights)")
    parser.add_argument("--data", type=Path, default=data_folder(), help="folder with the essays")
    parser.add_argument("--task", default="niah_single_2")
    parser.add_argument("--length", type=int, default=16384)
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--only", choices=("roomy", "tight"), help="only one size of cache")
    args = parser.parse_args()
    if args.data is None:
        skip("prefix", "no essays: set GATEDEVAL_DATA")
    with tempfile.TemporaryDirectory() as folder:
        model = args.model
        if model is None:
            from harness.models.tiny import make_tiny

            make_tiny(Path(folder))
            model = Path(folder) / "baseline"
        plan = build(
            from_dict(
                {
                    "name": "prefix",
                    "models": [{"label": "model", "path": str(model), "dtype": "float32"}],
                    "contexts": [{"label": "long", "rope_theta": 1e6, "max_length": args.length}],
                    "benchmarks": [{"ruler": [args.task], "lengths": [args.length], "samples": args.samples}],
                    "data": str(args.data),
                }
            )
        )
        plan.check()
        deepest, [setting] = prompts(plan), plan.config.contexts
        checkpoint, options = Model(label="m", path=str(model), dtype="float32"), EngineOptions(enforce_eager=True)
        found: dict[str, dict[str, Any]] = {}
        if args.only != "tight":
            with Engine(checkpoint, [setting], options) as engine:
                found |= compare(engine, setting, deepest, args.pairs, "roomy")
        if args.only != "roomy":
            arguments = tight_cache(args.length + args.length // 16)
            with Engine(checkpoint, [setting], options, arguments) as engine:
                found |= compare(engine, setting, deepest, args.pairs, "tight")
        parts = [
            f"{cache} cache: {one['computed']['deepest']:.1%} of the prompt tokens computed deepest first,"
            f" {one['computed']['random']:.1%} in random order, time x{one['ratio']:.3f}, {one['differ']} differ"
            for cache, one in found.items()
        ]
        emit("prefix", f"{args.task}, {args.length} tokens, {len(deepest)} samples; {'; '.join(parts)}", **found)


if __name__ == "__main__":
    main()

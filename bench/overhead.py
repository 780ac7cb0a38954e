"""The harness's overhead: `gatedeval run` against vLLM's own `LLM.generate` on the same token ids, in turn.

The ratio is (wall time of the whole command, without the engine's start) / (wall time of `generate`). Imports,
planning, producing samples, scoring, storing and the final table thus all count as overhead. What comes before and
after the answers takes about a second for any model, so the ratio is larger for a smaller model. By default the model
has random weights and 25 million parameters (`bench/gate.py`'s small shape); with --tiny, less than one million.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import CACHE, ROOT, emit, note

LENGTHS = (1024, 2048, 3072, 4096)
TASKS = ("niah_single_1", "fwe")  # RULER tasks that need no data files


def config_text(model: Path, tokenizer: Path, samples: int, eager: bool) -> str:
    """A config with `samples` samples of 1K to 4K tokens in total."""
    paths = f"path: {json.dumps(str(model))}, tokenizer: {json.dumps(str(tokenizer))}"
    each = max(1, samples // (len(LENGTHS) * len(TASKS)))
    return f"""
name: overhead
models: [{{label: model, {paths}, dtype: float32}}]
contexts: [{{label: base, rope_theta: 1000000, max_length: 4096}}]
benchmarks: [{{ruler: [{", ".join(TASKS)}], lengths: {list(LENGTHS)}, samples: {each}}}]
engine: {{enforce_eager: {str(eager).lower()}}}
"""


def dump_requests(config: Path, target: Path) -> int:
    """Write the token ids that the harness will send and vLLM's arguments; returns the number of prompts."""
    from harness.config import load
    from harness.engine.encoding import Encoder
    from harness.engine.engine import Engine
    from harness.engine.requests import Prompt
    from harness.run.plan import build

    plan = build(load(config))
    plan.check()
    [label] = plan.models
    planned, [setting] = plan.models[label], plan.config.contexts
    limit, setup = planned.max_lengths[setting.label], plan.setup(label)
    encoder = Encoder(setup.tokenizer, planned.checkpoint, setting, limit, planned.model.dtype)
    prompts = []
    for cell in sorted(plan.cells, key=lambda c: -c.length):
        for sample in plan.benchmark(cell).requests(cell, setup, limit):
            request = encoder.encode(sample)
            assert isinstance(request, Prompt)
            prompts.append((list(request.ids), request.max_tokens))
    with Engine(planned.model, plan.config.contexts, plan.config.engine) as engine:
        arguments = engine.arguments
    target.write_bytes(pickle.dumps({"prompts": prompts, "arguments": arguments}))
    return len(prompts)


def direct(requests: Path) -> dict[str, float]:
    """Give the dumped token ids to `LLM.generate`; its seconds, and prompt tokens that came from the prefix cache."""
    from vllm import LLM, SamplingParams

    given = pickle.loads(requests.read_bytes())
    llm = LLM(**given["arguments"])
    ids = [{"prompt_token_ids": list(prompt)} for prompt, _ in given["prompts"]]
    params = [SamplingParams(temperature=0.0, max_tokens=n) for _, n in given["prompts"]]
    start = time.perf_counter()
    outputs = llm.generate(ids, params, use_tqdm=False)
    seconds = time.perf_counter() - start
    return {
        "seconds": seconds,
        "prompt_tokens": sum(len(p) for p, _ in given["prompts"]),
        "cached_tokens": sum(o.num_cached_tokens or 0 for o in outputs),
        "answer_tokens": sum(len(o.outputs[0].token_ids) for o in outputs),
    }


def harness(config: Path, output: Path) -> dict[str, float]:
    """Seconds of the `gatedeval run` command: in all, for the engine's start, without it, and answering."""
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, str(ROOT / "cli.py"), "run", str(config), "-o", str(output), "-q"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    wall = time.perf_counter() - start
    engine = json.loads((output / "run.json").read_text())["models"]["model"]["engine"]
    start, answering = engine["start_seconds"], engine["answer_seconds"]
    return {"wall": wall, "start": start, "seconds": wall - start, "answering": answering}


def as_child(*arguments: str) -> str:
    """Run this script in another process, with the environment that the harness sets for vLLM; its last line."""
    env = {
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONWARNINGS": "ignore::FutureWarning,ignore:resource_tracker:UserWarning",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
    }
    command = [sys.executable, str(Path(__file__)), *arguments]
    done = subprocess.run(command, env={**env, **os.environ}, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.strip().splitlines()[-1]


def measure(args: argparse.Namespace, folder: Path) -> None:
    """Print one line per pair, and the median ratio."""
    model, tokenizer = args.model, args.model
    if model is None:
        from gate import checkpoint

        from harness.models.tiny import make_tiny

        make_tiny(CACHE / "tiny")
        model = tokenizer = CACHE / "tiny" / args.arm
        if not args.tiny:
            gate = "none" if args.arm == "baseline" else args.arm
            model = Path(checkpoint("small", 2, gate, tokenizer).path)
    config, requests = folder / "overhead.yaml", folder / "requests.pickle"
    config.write_text(config_text(model.resolve(), tokenizer.resolve(), args.samples, not args.compile))
    count = as_child("--dump", str(config), str(requests))
    ratios: list[float] = []
    answering: list[float] = []
    seconds: list[tuple[float, float, float]] = []
    for pair in range(args.pairs):
        runs: dict[str, dict[str, Any]] = {}
        for which in ("harness", "direct") if pair % 2 == 0 else ("direct", "harness"):
            if which == "harness":
                runs[which] = harness(config, folder / f"run{pair}")
            else:
                runs[which] = json.loads(as_child("--direct", str(requests)))
        ours, theirs = runs["harness"], runs["direct"]
        ratios.append(ours["seconds"] / theirs["seconds"])
        answering.append(ours["answering"] / theirs["seconds"])
        seconds.append((ours["seconds"], ours["answering"], theirs["seconds"]))
        note(
            f"pair {pair}: gatedeval run {ours['wall']:.1f} s - engine start {ours['start']:.1f} s"
            f" = {ours['seconds']:.1f} s, of which answering {ours['answering']:.1f} s;"
            f" LLM.generate {theirs['seconds']:.1f} s ({theirs['prompt_tokens']:.0f} prompt tokens,"
            f" {theirs['cached_tokens']:.0f} cached,"
            f" {theirs['answer_tokens']:.0f} answer tokens); ratio {ratios[-1]:.3f}"
        )
    ratio, inner = statistics.median(ratios), statistics.median(answering)
    fixed = statistics.median(ours - inside for ours, inside, _ in seconds)
    inside = statistics.median(theirs for _, _, theirs in seconds)
    size = "given" if args.model else "tiny" if args.tiny else "small"
    emit(
        "overhead",
        f"`gatedeval run` less its engine's start takes {ratio:.3f}x as long as `LLM.generate` ({inside:.0f} s) on the"
        f" same {count} prompts of 1K to 4K tokens ({size} model; median of {len(ratios)}; at most 1.05 is"
        f" asked for): {inner:.3f}x between the first request and the last answer, and {fixed:.1f} s before and after",
        ratio=ratio,
        answering=inner,
        fixed_seconds=fixed,
        ratios=ratios,
        seconds=seconds,
        bar=1.05,
    )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="checkpoint directory with its tokenizer (default: one is made)")
    parser.add_argument("--tiny", action="store_true", help="make one with less than a million parameters")
    parser.add_argument("--arm", default="baseline", help="what is made: baseline, headwise, elementwise")
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--compile", action="store_true", help="let vLLM compile the model (default: eager)")
    parser.add_argument("--dump", nargs=2, type=Path, metavar=("CONFIG", "TARGET"), help=argparse.SUPPRESS)
    parser.add_argument("--direct", type=Path, metavar="REQUESTS", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.dump:
        print(dump_requests(*args.dump))
    elif args.direct:
        print(json.dumps(direct(args.direct)))
    else:
        with tempfile.TemporaryDirectory() as folder:
            measure(args, Path(folder))


if __name__ == "__main__":
    main()

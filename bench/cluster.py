"""How many requests one driver can hand out and take back: a pool on Ray, with engines that answer at once.

Two engines on this machine, so driver and engines share its cores: the rates are per second of the driver's CPU time.
Asked for: 5,000 samples/s of MMLU's size, and 5 M prompt tokens/s in prompts of 32K.
"""

from __future__ import annotations

import argparse
import random
import time
from array import array
from collections.abc import Iterable, Iterator
from typing import Any

from common import emit, note, skip

SAMPLES_ASKED, TOKENS_ASKED = 5_000, 5_000_000


def questions(count: int) -> Iterator[Any]:
    """Of MMLU's size: 700 tokens of context, of which a subject's questions share 600, and four options of a token."""
    from harness.engine.requests import Question

    chance = random.Random(0)
    shots = [tuple(chance.randrange(150_000) for _ in range(600)) for _ in range(57)]
    for n in range(count):
        context = shots[n * 57 // count] + tuple(chance.randrange(150_000) for _ in range(100))
        yield Question(n, tuple((context, (option,)) for option in range(4)))


def prompts(count: int, tokens: int) -> Iterator[Any]:
    """Prompts of one length; each its own array, as the encoder makes them."""
    from harness.engine.requests import Prompt

    chance = random.Random(0)
    ids = array("I", (chance.randrange(150_000) for _ in range(tokens)))
    for n in range(count):
        own = array("I", ids)
        own[tokens // 2] = n
        yield Prompt(n, own, 128)


def measure(pool: Any, requests: Iterable[Any]) -> tuple[float, float]:
    """(seconds of the driver's CPU, seconds) for the answers to all of `requests`."""
    made = list(requests)
    since, cpu = time.perf_counter(), time.process_time()
    answered = sum(1 for _ in pool.answer(iter(made)))
    assert answered == len(made)
    return time.process_time() - cpu, time.perf_counter() - since


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=int, default=20_000)
    parser.add_argument("--prompts", type=int, default=1_000)
    parser.add_argument("--length", type=int, default=32_768)
    args = parser.parse_args()
    try:
        import ray  # noqa: F401
    except ImportError:
        skip("cluster", "Ray is not installed: pip install 'gatedeval[ray]'")
    from harness.cluster.on_ray import RayBackend
    from harness.cluster.pool import Pool
    from harness.config import ContextSetting, EngineOptions, Model
    from harness.config.cluster import ClusterOptions

    options = ClusterOptions(engines=2, cpus=1)
    backend = RayBackend(options, EngineOptions(), "harness.cluster.instant:InstantEngine")
    try:
        pool = Pool(backend, Model(label="none", path="none"), [ContextSetting(label="native")], EngineOptions())
        pool.self_check()
        list(pool.answer(questions(500)))  # what is imported and allocated once
        note(f"{args.questions} questions")
        cpu, wall = measure(pool, questions(args.questions))
        note(f"{args.prompts} prompts of {args.length} tokens")
        prompt_cpu, prompt_wall = measure(pool, prompts(args.prompts, args.length))
    finally:
        backend.close()
    samples, tokens = args.questions / cpu, args.prompts * args.length / prompt_cpu
    emit(
        "cluster",
        f"{samples:,.0f} samples/s of MMLU's size (asked for: {SAMPLES_ASKED:,}), {tokens / 1e6:.1f} M prompt tokens/s"
        f" at {args.length:,} tokens (asked for: {TOKENS_ASKED / 1e6:.0f} M) per second of the driver's CPU; in all"
        f" {args.questions / wall:,.0f} samples/s and {args.prompts * args.length / prompt_wall / 1e6:.1f} M tokens/s"
        " with driver and two engines on these cores",
        samples_per_cpu_second=samples,
        tokens_per_cpu_second=tokens,
        samples_per_second=args.questions / wall,
        tokens_per_second=args.prompts * args.length / prompt_wall,
    )


if __name__ == "__main__":
    main()

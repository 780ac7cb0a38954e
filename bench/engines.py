"""Two engines on two cores against one engine on one core: samples per second, and prompt tokens from the prefix cache.

5-shot MMLU (questions of a subject share their beginning) and RULER (the samples of a needle task share their haystack
up to the needle), by a model with random weights. All engines are started before; the two ways take turns, each time
with an empty prefix cache. The driver, which hands out requests and takes answers, runs on the same two cores, beside
one engine on a core of its own. Asked for: 1.7 times the samples per second, 90 % of one engine's cached tokens.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from common import data_folder, emit, note, skip

ASKED, CACHED_ASKED = 1.7, 0.9
SUBJECTS = ["anatomy", "astronomy", "college_biology", "econometrics", "world_religions"]
LARGER = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 8, "max_position_embeddings": 8192}


def checkpoint(folder: Path) -> Path:
    """A model of seven million parameters, large enough that engines compute and do not wait for the driver."""
    from harness.models.tiny import make_tiny, random_weights
    from harness.models.writing import write_checkpoint

    make_tiny(folder / "tiny")
    target, tiny = folder / "model", folder / "tiny/baseline"
    config = {**json.loads((tiny / "config.json").read_text()), **LARGER}
    write_checkpoint(target, config, random_weights(config, 0))
    for file in tiny.glob("*token*"):
        shutil.copy(file, target)
    return target


def requests_of(model: Path, data: Path, samples: int, length: int) -> list[Any]:
    """The requests of a run, in the order in which a run sends them."""
    from harness.config import from_dict
    from harness.engine.requests import SampleRequest
    from harness.run.plan import build
    from harness.run.producing import Assignment, produce

    plan = build(
        from_dict(
            {
                "name": "engines",
                "models": [{"label": "model", "path": str(model), "dtype": "float32"}],
                "contexts": [{"label": "native", "max_length": 8192}],
                "benchmarks": [
                    {"ruler": ["niah_single_2", "niah_multikey_1", "vt"], "lengths": [length], "samples": samples // 2},
                    {"mmlu": {"shots": 5, "subjects": SUBJECTS, "samples": samples}},
                ],
                "data": str(data),
            }
        )
    )
    plan.check()
    cells = tuple(sorted(plan.cells, key=lambda cell: -cell.length))
    events = produce(plan, Assignment("model", "native", cells, "", {}))
    return [event.request for event in events if isinstance(event, SampleRequest)]


def one_pass(pool: Any, settings: list[Any], requests: list[Any]) -> dict[str, float]:
    """Seconds, the driver's CPU seconds, and the part of the prompt tokens that came from a cache, empty before."""
    from harness.cluster.member import State

    for setting in reversed(settings):  # a change of setting empties the prefix cache
        pool.set_context(setting)
        pool._wait_for(lambda: all(member.state is State.READY for member in pool.members))
    since, cpu = time.perf_counter(), time.process_time()
    answers = list(pool.answer(iter(requests)))
    seconds, cpu = time.perf_counter() - since, time.process_time() - cpu
    assert len(answers) == len(requests)
    sent, cached = sum(a.sent_tokens for a in answers), sum(a.cached_tokens for a in answers)
    by_engine = {name: sum(a.engine == name for a in answers) for name in {a.engine for a in answers}}
    note(f"{len(pool.members)} engines: {seconds:.1f} s, {cached / sent:.1%} cached, {by_engine}, driver {cpu:.1f} s")
    return {"seconds": seconds, "driver_cpu": cpu, "cached": cached / sent, "load": os.getloadavg()[0]}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=20, help="per subject; half of it per RULER task")
    parser.add_argument("--length", type=int, default=2048, help="of RULER's prompts")
    parser.add_argument("--pairs", type=int, default=3)
    args = parser.parse_args()
    try:
        from ray.cluster_utils import Cluster as Nodes
    except ImportError:
        skip("engines", "Ray is not installed: pip install 'gatedeval[ray]'")
    if (data := data_folder()) is None:
        skip("engines", "no data: set GATEDEVAL_DATA")
    if len(os.sched_getaffinity(0)) < 2:
        skip("engines", "fewer than two cores")
    os.environ.update({"RAY_worker_niceness": "0", "VLLM_CPU_KVCACHE_SPACE": "1"})
    from harness.cluster.connection import Part
    from harness.cluster.on_ray import RayBackend
    from harness.cluster.pool import Pool
    from harness.cluster.turn import Turn
    from harness.config import ContextSetting, EngineOptions, Model
    from harness.config.cluster import ClusterOptions

    settings = [
        ContextSetting(label="native", max_length=8192), ContextSetting(label="other", rope_theta=5e5, max_length=8192)
    ]  # fmt: skip
    engine = EngineOptions(enforce_eager=True, dtype="float32")
    with tempfile.TemporaryDirectory() as folder:
        model = checkpoint(Path(folder))
        requests = requests_of(model, data, args.samples, args.length)
        note(f"{len(requests)} requests")
        nodes = Nodes(initialize_head=True, head_node_args={"num_cpus": 3, "object_store_memory": 200 * 2**20})
        backend = RayBackend(ClusterOptions(address=nodes.address, engines=3, cpus=1), engine)
        found: dict[int, list[dict[str, float]]] = {1: [], 2: []}
        try:
            entry = Model(label="model", path=str(model), dtype="float32")
            pools = {
                n: Pool(Part(backend, Turn(), lambda n=n: n), entry, settings, engine, cores=1, say=note)  # type: ignore[misc]
                for n in (1, 2)
            }
            for n, pool in pools.items():
                one_pass(pool, settings, requests[:: len(requests) // 8])  # warm
                assert all(len(member.cores) == 1 for member in pool.members), n
            assert len({member.cores for member in pools[2].members}) == 2
            for _ in range(args.pairs):
                for n, pool in pools.items():
                    found[n].append(one_pass(pool, settings, requests))
        finally:
            backend.close()
            nodes.shutdown()
    ratios = [one["seconds"] / two["seconds"] for one, two in zip(found[1], found[2], strict=True)]
    cached = {n: statistics.mean(each["cached"] for each in runs) for n, runs in found.items()}
    speedup, kept = statistics.median(ratios), cached[2] / cached[1]
    emit(
        "engines",
        f"two engines on two cores answer {speedup:.2f} times the samples/s of one engine on one core (asked for:"
        f" {ASKED}; pairs: {', '.join(f'{r:.2f}' for r in ratios)}); {cached[2]:.1%} of the prompt tokens were cached,"
        f" against {cached[1]:.1%}: {kept:.0%} of them (asked for: {CACHED_ASKED:.0%})",
        speedup=speedup,
        ratios=ratios,
        cached_kept=kept,
        passes={str(n): runs for n, runs in found.items()},
    )


if __name__ == "__main__":
    main()

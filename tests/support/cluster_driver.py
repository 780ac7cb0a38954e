"""`python -m tests.support.cluster_driver MODELS RUN SAMPLES`: a run on `--cluster local`, with engines without vLLM.

Signals are handled as `gatedeval run` does.
"""

from __future__ import annotations

import sys
from pathlib import Path

from harness.cluster.connection import Cluster
from harness.cluster.on_ray import RayBackend
from harness.config import EngineOptions
from harness.config.cluster import ClusterOptions
from harness.run.signals import Stopped, stop_on_signals
from tests.support.cluster_runs import ENGINE, models_of, plan, run_on


def main(models: Path, path: Path, samples: int) -> int:
    made = plan(models, samples=samples)
    options = ClusterOptions(engines=2, cpus=1)
    try:
        with (
            stop_on_signals(lambda name: f"ended at once after {name}"),
            Cluster(lambda: RayBackend(options, EngineOptions(), ENGINE), models_of(made)) as cluster,
        ):
            state, tally = run_on(cluster, made, path)
    except Stopped as stopped:
        print(f"stopped by {stopped.name}")
        return stopped.code
    print(state, tally.asked, tally.reused)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])))

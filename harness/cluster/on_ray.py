"""Engines as Ray actors. Ray is imported when a cluster is connected, not before (`harness.cluster.joining`).

An engine within a node is one actor with all its GPUs: Ray gives an actor devices of one node. An engine that needs
more GPUs than any node has gets a placement group, and vLLM's own Ray executor.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import re
import subprocess
import time
from collections.abc import Sequence
from typing import Any

from harness.cluster import reaper
from harness.cluster.backend import ActorLost, Handle, Ref, unwrapped
from harness.cluster.joining import connect, import_ray, signals_kept
from harness.cluster.worker import ENGINE
from harness.config import EngineOptions
from harness.config.cluster import ClusterOptions
from harness.text import counted
from harness.types import GatedevalError, first_line

_CORES = 4  # of a CPU engine, where the config names neither engines nor cores
_CALLS = 8  # at once per actor: a poll that waits, a call that starts or ends an engine, batches


class RayBackend:
    """Connects to a cluster, or starts one on this machine; `close` ends what was started.

    `engine`: the class that answers (see `harness.cluster.worker.ENGINE`).

    Raises:
        GatedevalError: no Ray, no cluster at the address, or it has less than the options ask for.
    """

    def __init__(self, cluster: ClusterOptions, options: EngineOptions, engine: str = ENGINE) -> None:
        self.cluster, self._engine = cluster, engine
        self._ray = import_ray()
        self._handles: list[Any] = []
        self._groups: dict[int, Any] = {}  # slot -> its placement group
        self._places: dict[str, str] = {}
        self._reaper: subprocess.Popen[bytes] | None = None
        if cluster.address == "local":
            self._reaper = reaper.start(os.getpid(), os.path.dirname(self._ray.__file__))
        try:
            connect(self._ray, cluster.address)
            self.gpus = self._gpus_per_engine(options)
            self.spans = self.gpus > max(self._per_node("GPU"), default=0)
            self.cpus = self._cpus_per_engine()
            self.cores = 0 if self.gpus else self.cpus
            self._check()
        except BaseException:
            self.close()
            raise

    # --- what the cluster has -------------------------------------------------------------------------------------

    def _per_node(self, what: str) -> list[int]:
        """GPUs or CPUs of every node that is alive."""
        return [int(node["Resources"].get(what, 0)) for node in self._ray.nodes() if node["Alive"]]

    def _gpus_per_engine(self, options: EngineOptions) -> int:
        needed = options.tensor_parallel_size * options.pipeline_parallel_size
        asked = self.cluster.gpus
        if asked is None:
            return needed if sum(self._per_node("GPU")) else 0
        if asked not in (0, needed):
            raise GatedevalError(
                f"cluster.gpus: {asked} GPUs per engine, but an engine of tensor_parallel_size"
                f" {options.tensor_parallel_size} and pipeline_parallel_size {options.pipeline_parallel_size} takes"
                f" {needed}; set these, or leave cluster.gpus out"
            )
        return asked

    def _cpus_per_engine(self) -> int:
        if self.cluster.cpus is not None:
            return self.cluster.cpus
        if self.gpus:
            return 1
        per_node = [cores for cores in self._per_node("CPU") if cores]
        if self.cluster.engines is None:
            return min([_CORES, *per_node])
        engines_on_a_node = -(-self.cluster.engines // max(1, len(per_node)))
        return max(1, min(per_node, default=1) // engines_on_a_node)

    def room(self) -> int:
        """Engines that the cluster has room for now, whoever uses it."""
        if self.spans:
            return sum(self._per_node("GPU")) // self.gpus
        pairs = zip(self._per_node("GPU"), self._per_node("CPU"), strict=True)
        return sum(min(g // self.gpus if self.gpus else c, c // self.cpus) for g, c in pairs)

    def _check(self) -> None:
        gpus, cores, where = sum(self._per_node("GPU")), sum(self._per_node("CPU")), self._where()
        engines = self.cluster.engines or 1
        if self.gpus * engines > gpus:
            raise GatedevalError(
                f"{counted(engines, 'engine')} with {counted(self.gpus, 'GPU')} each: not possible, {where} has"
                f" {counted(gpus, 'GPU')}: lower cluster.engines or the engine's parallel sizes, or add nodes"
            )
        if self.cpus * engines > cores:
            raise GatedevalError(
                f"{counted(engines, 'engine')} with {counted(self.cpus, 'core')} each: not possible, {where} has"
                f" {counted(cores, 'core')}: lower cluster.engines or cluster.cpus, or add nodes"
            )
        if not self.room():
            size = counted(self.cpus, "core") + (f" and {counted(self.gpus, 'GPU')}" if self.gpus else "")
            raise GatedevalError(f"no node of {where} has {size} for an engine; lower cluster.cpus")

    def _where(self) -> str:
        nodes = counted(len(self._per_node("CPU")), "node")
        return "this machine" if self.cluster.address == "local" else f"the cluster ({nodes})"

    def wanted(self) -> int:
        """The configured number of engines, else as many as there is room for."""
        return self.cluster.engines or self.room()

    # --- engines --------------------------------------------------------------------------------------------------

    def spawn(self, slot: int) -> Handle:
        """A new actor for the engine number `slot`; Ray places it when a node has room."""
        actor = importlib.import_module("gatedeval_app.remote").RemoteEngine  # above this layer, as an entry point is
        options: dict[str, Any] = {"num_gpus": self.gpus, "num_cpus": self.cpus, "scheduling_strategy": "SPREAD"}
        if self.spans:
            options |= {"num_gpus": 0, "scheduling_strategy": self._across_nodes(slot)}
        handle = self._ray.remote(actor).options(max_concurrency=_CALLS, **options).remote(self._engine)
        self._handles.append(handle)
        return handle

    def _across_nodes(self, slot: int) -> Any:
        """Where vLLM's Ray executor finds its GPUs: a placement group of one bundle per GPU."""
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        if slot not in self._groups:
            bundles = [{"CPU": self.cpus, "GPU": 1}, *[{"CPU": 1, "GPU": 1}] * (self.gpus - 1)]
            self._groups[slot] = placement_group(bundles, strategy="PACK")
        return PlacementGroupSchedulingStrategy(self._groups[slot], 0, placement_group_capture_child_tasks=True)

    def further_arguments(self) -> dict[str, Any]:
        """vLLM's Ray executor, where an engine spans nodes."""
        return {"distributed_executor_backend": "ray"} if self.spans else {}

    def call(self, handle: Handle, method: str, *arguments: Any) -> Ref:
        """Call a method of the actor's worker."""
        return handle.call.remote(method, *arguments)

    def wait(self, refs: Sequence[Ref], seconds: float) -> list[Ref]:
        """The calls that have ended."""
        if not refs:
            time.sleep(seconds)
            return []
        ready, _ = self._ray.wait(list(refs), num_returns=1, timeout=seconds)
        if ready:
            ready, _ = self._ray.wait(list(refs), num_returns=len(refs), timeout=0)
        return list(ready)

    def result(self, ref: Ref) -> Any:
        """What a call returned."""
        try:
            return unwrapped(self._ray.get(ref))
        except self._ray.exceptions.RayError as error:
            text = str(error)
            if missing := re.search(r"No module named '(gatedeval_app|harness|ray)[^']*'", text):
                raise GatedevalError(
                    f"a node of the cluster has no gatedeval ({missing[0]}): install the same version on every node"
                ) from error
            raise ActorLost(_cause(text)) from error

    def kill(self, handle: Handle) -> None:
        """Kill the actor's process. Its engine's processes end with it (`harness.gated.watchdog`)."""
        with contextlib.suppress(Exception):
            self._ray.kill(handle, no_restart=True)
        with contextlib.suppress(ValueError):
            self._handles.remove(handle)

    def close(self) -> None:
        """Kill every actor, and leave the cluster; one that was started here ends."""
        if self._ray.is_initialized():
            self._leave()
        if self._reaper is not None:
            reaper.end(self._reaper)
            self._reaper = None

    def _leave(self) -> None:
        for handle in list(self._handles):
            self.kill(handle)
        for group in self._groups.values():
            with contextlib.suppress(Exception):
                self._ray.util.remove_placement_group(group)
        with signals_kept():
            self._ray.shutdown()


def _cause(text: str) -> str:
    """One line of Ray's many about an actor that has died."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    for pattern in (
        r"Worker (?:unexpectedly )?exits[^.]*\.[^.\n]*",
        r"[Tt]he actor (?:is dead|died) because[^.\n]*",
        r"[Nn]ode (?:was |is )?(?:dead|died|terminated)[^.\n]*",
        r"\w*Error: [^\n]*",
    ):
        if found := re.search(pattern, text):
            return found[0].strip()
    return first_line(RuntimeError(text))

"""Engines as Ray actors. Nothing else of the package imports Ray, and this does so when a cluster is connected.

An engine within a node is one actor with all its GPUs: Ray gives an actor devices of one node. An engine that needs
more GPUs than any node has gets a placement group, and vLLM's own Ray executor.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import re
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

from harness.cluster import reaper
from harness.cluster.backend import ActorLost, Handle, Ref, unwrapped
from harness.cluster.worker import ENGINE
from harness.config import EngineOptions
from harness.config.cluster import ClusterOptions
from harness.text import counted
from harness.types import GatedevalError, first_line

NO_RAY = "a cluster needs Ray, which is not installed here: pip install 'gatedeval[ray]', or leave --cluster out"
_CONNECT_SECONDS = 5.0
_CORES = 4  # of a CPU engine, where the config names neither engines nor cores
_OBJECT_STORE = 1 << 30  # bytes of shared memory that a local Ray may use: batches of token ids pass through it
_CALLS = 8  # at once per actor: a poll that waits, a call that starts or ends an engine, batches


class RayBackend:
    """Connects to a cluster, or starts one on this machine; `close` ends what was started.

    `engine`: the class that answers (see `harness.cluster.worker.ENGINE`).

    Raises:
        GatedevalError: no Ray, no cluster at the address, or it has less than the options ask for.
    """

    def __init__(self, cluster: ClusterOptions, options: EngineOptions, engine: str = ENGINE) -> None:
        self.cluster, self._engine = cluster, engine
        self._ray = _import_ray()
        self._handles: list[Any] = []
        self._groups: dict[int, Any] = {}  # slot -> its placement group
        self._places: dict[str, str] = {}
        self._reaper: subprocess.Popen[bytes] | None = None
        if cluster.address == "local":
            self._reaper = reaper.start(os.getpid(), os.path.dirname(self._ray.__file__))
        try:
            _connect(self._ray, cluster.address)
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
                f"{counted(engines, 'engine')} of {counted(self.gpus, 'GPU')} each were asked for, {where} has"
                f" {counted(gpus, 'GPU')}: lower cluster.engines or the engine's parallel sizes, or add nodes"
            )
        if self.cpus * engines > cores:
            raise GatedevalError(
                f"{counted(engines, 'engine')} of {counted(self.cpus, 'core')} each were asked for, {where} has"
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
        with _signals_kept():
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


def check_address(address: str) -> None:
    """Refuse what can be refused without Ray and without a network.

    Raises:
        GatedevalError: Ray is not installed, or `address` is no address.
    """
    if importlib.util.find_spec("ray") is None:
        raise GatedevalError(NO_RAY)
    host, _, port = address.rpartition(":")
    if "://" in address:
        raise GatedevalError(
            f"--cluster {address}: give HOST:PORT, and start gatedeval on a node of the cluster; Ray's client (ray://)"
            " has no shared memory for prompts"
        )
    if address not in ("auto", "local") and not (host and port.isdigit() and 0 < int(port) < 65536):
        raise GatedevalError(f"--cluster {address}: write auto, local, none, or HOST:PORT such as 10.0.0.1:6379")


def _import_ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's default, 15, leaves engines on a CPU behind all else
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise GatedevalError(f"{NO_RAY} ({first_line(error)})") from error
    return ray


def _connect(ray: Any, address: str) -> None:
    """Connect to the cluster at `address`; "local" starts one on this machine, which ends with this process.

    Raises:
        GatedevalError: there is none.
    """
    if ray.is_initialized():
        raise GatedevalError("this process is connected to a Ray cluster already; call ray.shutdown() first")
    common = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": True}
    if address == "local":
        store = min(_OBJECT_STORE, _shared_memory() // 2)
        more: dict[str, Any] = {"include_dashboard": False, "object_store_memory": max(store, 80 * 2**20)}
    else:
        more = {}
        if address != "auto":
            _check_reachable(address)
    # Ray prints errors of its processes across the progress bars; the pool says in a line what matters. The name
    # is none of Ray's documented ones: without it the lines appear.
    if hasattr(ray._private.worker, "print_to_stdstream"):
        ray._private.worker.print_to_stdstream = lambda *arguments, **more: None
    with _signals_kept():
        try:
            ray.init(address, **common, **more)
        except (ConnectionError, ValueError, RuntimeError, OSError, TimeoutError) as error:
            with contextlib.suppress(Exception):
                ray.shutdown()
            if address == "auto":
                raise GatedevalError(
                    "--cluster auto: no Ray cluster runs on this machine, and RAY_ADDRESS names none; start one with"
                    " `ray start --head`, or use --cluster local"
                ) from error
            raise GatedevalError(f"--cluster {address}: cannot connect to Ray: {first_line(error)}") from error


def _check_reachable(address: str) -> None:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS) as connection:
            if os.environ.get("RAY_USE_TLS") != "1":
                _check_grpc(connection)
    except (OSError, OverflowError) as error:
        raise GatedevalError(
            f"--cluster {address}: no Ray cluster answers there ({first_line(error)}); `ray status` on its head node"
            " says where it is"
        ) from error


def _check_grpc(connection: socket.socket) -> None:
    """Raise OSError where the other side does not speak Ray's protocol, gRPC: Ray itself would try for minutes.

    HTTP/2 (RFC 9113, section 3.4): both sides begin with a SETTINGS frame, whose type, 4, is in its fourth byte.
    """
    connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0")
    if connection.recv(9)[3:4] != b"\4":
        raise OSError("what listens there is no Ray")


def _shared_memory() -> int:
    """Bytes that are free where Ray keeps its objects."""
    try:
        facts = os.statvfs("/dev/shm")
    except OSError:
        facts = os.statvfs(tempfile.gettempdir())
    return facts.f_bavail * facts.f_frsize


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Within this, Ray may install its handlers of signals; afterwards ours are back (`harness.run.signals`)."""
    names = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {s: signal.getsignal(s) for s in names}
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # not the main thread: then Ray has installed none either
            for s, handler in before.items():
                signal.signal(s, handler)

"""A run's cluster: connected before the first sample, its processes divided among the models that it answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from harness.cluster.backend import Backend, Ref
from harness.cluster.node import description
from harness.cluster.pool import Pool
from harness.cluster.roster import Roster
from harness.cluster.shares import Share, divide
from harness.cluster.standing import standing
from harness.cluster.turn import Turn
from harness.config import ContextSetting, EngineOptions, Model
from harness.config.cluster import ClusterOptions
from harness.cost.requests import RequestCosts
from harness.models.checkpoint import Checkpoint


class Part:
    """One model's part of a run's backend: so many engines as are `wanted`, and waits in which other models work."""

    def __init__(self, backend: Backend, turn: Turn, wanted: Callable[[], int]) -> None:
        self._backend, self._turn = backend, turn
        self.cores, self.wanted = backend.cores, wanted
        self.spawn, self.call, self.result, self.kill = backend.spawn, backend.call, backend.result, backend.kill
        self.further_arguments, self.close = backend.further_arguments, backend.close

    def wait(self, refs: Sequence[Ref], seconds: float) -> list[Ref]:
        """See `Backend.wait`."""
        with self._turn.released():
            return self._backend.wait(refs, seconds)


class Cluster:
    """Starts pools of engines, for several models at once. A context manager: at its end, nothing of it runs.

    `connect`: what connects to the cluster; the first start of an engine calls it, so a finished run needs no cluster.
    `models`: the run's models with their checkpoints; every node has to see them. `costs`: label -> what its requests
    take; None: in proportion to tokens. `say`: takes a line for the user. `same_versions`: whether a node with other
    versions is refused.

    Threads that use it at the same time do so under its `turn`. `waiting`: models that are not admitted yet; while
    there are some, no model gets further engines. `on_room`: called, under the turn, where engines may have become
    free.
    """

    def __init__(
        self,
        connect: Callable[[], Backend],
        models: Iterable[tuple[Model, Checkpoint]],
        *,
        costs: Mapping[str, RequestCosts] | None = None,
        say: Callable[[str], None] = lambda line: None,
        same_versions: bool = True,
    ) -> None:
        self._connect, self.say = connect, say
        self.models = {model.label: (model, checkpoint) for model, checkpoint in models}
        self.costs = dict(costs or {})
        self.backend: Backend | None = None
        self.turn, self.roster = Turn(), Roster()
        self.shares: dict[str, Share] = {}
        self.pools: dict[str, Pool] = {}
        self.waiting = 0
        self.on_room: Callable[[], None] = lambda: None
        self._node = description() if same_versions else None
        self._check: list[dict[str, Any]] | None = None

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def engines(self) -> int:
        """How many engines there can be now; connects to the cluster."""
        if self.backend is None:
            self.backend = self._connect()
        return max(1, self.backend.wanted())

    def admit(self, label: str, left: Callable[[], float], most: int) -> None:
        """A model is answered from now on. `left`: its work that is not done; `most`: engines that it can use."""
        self.shares.setdefault(label, Share(left, most))

    def leave(self, label: str) -> None:
        """A model's engines are stopped, and others may have its processes."""
        self.shares.pop(label, None)
        self.pools.pop(label, None)

    def start(self, model: Model, contexts: Sequence[ContextSetting], options: EngineOptions) -> Pool:
        """The engines of a model that was admitted, as `harness.run.session.EngineFactory` starts one."""
        label, since = model.label, time.monotonic()
        self.engines()
        assert self.backend is not None
        if self._check is None:
            self._check = [{**m.model_dump(), "fingerprint": c.fingerprint()} for m, c in self.models.values()]
        self.pools[label] = Pool(
            Part(self.backend, self.turn, lambda: self._wanted(label)),
            model,
            contexts,
            options,
            roster=self.roster,
            check=self._check,
            node=self._node,
            cores=self.backend.cores,
            costs=self.costs.get(label),
            say=self.say,
        )
        self.shares[label].begins(time.monotonic(), time.monotonic() - since)
        return self.pools[label]

    def start_one(self, model: Model, contexts: Sequence[ContextSetting], options: EngineOptions) -> Pool:
        """One engine of a model, while no other model has any."""
        self.shares.clear()
        self.pools.clear()
        self.admit(model.label, lambda: 0.0, 1)
        return self.start(model, contexts, options)

    def _wanted(self, label: str) -> int:
        """The engines of a model that was admitted. Those that have become free are given away first."""
        now, all_of_them = time.monotonic(), self.engines()
        if all_of_them > sum(share.given for share in self.shares.values()):
            self.on_room()
            grow = {
                name: share
                for name, share in self.shares.items()
                if not share.given or (not self.waiting and share.worth_more(now))
            }
            others = sum(share.given for name, share in self.shares.items() if name not in grow)
            given = divide(
                all_of_them - others,
                {name: share.left() for name, share in grow.items()},
                {name: share.most for name, share in grow.items()},
                {name: share.given for name, share in grow.items()},
            )
            for name, share in grow.items():
                share.given = given[name]
        return max(1, self.shares[label].given)

    def standing(self) -> str:
        """What the engines of the present models do, for the progress line; empty before the first."""
        return standing(self.pools.values())

    def close(self) -> None:
        """End all processes."""
        backend, self.backend = self.backend, None
        if backend is not None:
            backend.close()


def on_ray(cluster: ClusterOptions, options: EngineOptions) -> Callable[[], Backend]:
    """What connects a `Cluster` to Ray.

    Raises:
        GatedevalError: Ray is not installed, or the address is none. What needs the cluster is told at the connection.
    """
    from harness.cluster.joining import check_address
    from harness.cluster.on_ray import RayBackend

    check_address(cluster.address)
    return lambda: RayBackend(cluster, options)

"""A run's cluster: connected before the first sample, its processes used by one model's engines after the other's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from harness.cluster.backend import Backend
from harness.cluster.costs import CostModel
from harness.cluster.member import Member
from harness.cluster.pool import Pool
from harness.cluster.worker import description
from harness.config import ContextSetting, EngineOptions, Model
from harness.config.cluster import ClusterOptions
from harness.models.checkpoint import Checkpoint


class Cluster:
    """Starts pools of engines, one model at a time. A context manager: at its end, nothing of it runs.

    `connect`: what connects to the cluster; the first start of an engine calls it, so a finished run needs no cluster.
    `models`: the run's models with their checkpoints; every node has to see them. `say`: takes a line for the user.
    `same_versions`: whether a node with other versions is refused.
    """

    def __init__(
        self,
        connect: Callable[[], Backend],
        models: Iterable[tuple[Model, Checkpoint]],
        *,
        say: Callable[[str], None] = lambda line: None,
        same_versions: bool = True,
    ) -> None:
        self._connect, self.say = connect, say
        self.models = {model.label: (model, checkpoint) for model, checkpoint in models}
        self.backend: Backend | None = None
        self.members: list[Member] = []
        self.pool: Pool | None = None
        self._node = description() if same_versions else None
        self._check: list[dict[str, Any]] | None = None

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def start(self, model: Model, contexts: Sequence[ContextSetting], options: EngineOptions) -> Pool:
        """The engines of a model, as `harness.run.session.EngineFactory` starts one."""
        if self.backend is None:
            self.backend = self._connect()
        if self._check is None:
            self._check = [{**m.model_dump(), "fingerprint": c.fingerprint()} for m, c in self.models.values()]
        _, checkpoint = self.models[model.label]
        self.pool = Pool(
            self.backend,
            model,
            contexts,
            options,
            members=self.members,
            check=self._check,
            node=self._node,
            cores=self.backend.cores,
            costs=CostModel.of(checkpoint.parameters, checkpoint.config),
            say=self.say,
        )
        return self.pool

    def standing(self) -> str:
        """What the engines of the present model do, for the progress line; empty before the first."""
        return "" if self.pool is None else self.pool.standing()

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
    from harness.cluster.on_ray import RayBackend, check_address

    check_address(cluster.address)
    return lambda: RayBackend(cluster, options)

"""The `cluster` entry of a config: on which Ray cluster a run's engines are, how many, and how large."""

from __future__ import annotations

from pydantic import Field

from harness.config.fields import Entry, Natural, Positive, Text


class ClusterOptions(Entry):
    """No answer depends on these: they are in no hash, and a run may change them from session to session."""

    address: Text = Field(default="local", pattern=r"^\S+$")  # auto, local, or HOST:PORT
    engines: Positive | None = None  # in all, which the models share; None: as many as there is room for
    gpus: Natural | None = None  # per engine; None: tensor x pipeline parallel where the cluster has GPUs
    cpus: Positive | None = None  # cores per engine; None: all of a node's, shared by its engines

"""The run directory: append-only samples, manifest, resume, merging, import. See `harness.store.run`."""

from harness.store.run import Store

__all__ = ["Store"]

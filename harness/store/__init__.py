"""The run directory: append-only samples, manifest, resume, merging, import. See `harness.store.run`."""

from harness.store.importing import import_predictions
from harness.store.listing import interruption_message, list_runs, rebuild
from harness.store.merging import merge
from harness.store.run import Store

__all__ = ["Store", "import_predictions", "interruption_message", "list_runs", "merge", "rebuild"]

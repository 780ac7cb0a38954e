"""The run directory: append-only samples, manifest, resume, merging, import. See `harness.store.run`."""

from harness.store.importing import import_predictions
from harness.store.merging import list_runs, merge, rebuild
from harness.store.run import Store, last_words

__all__ = ["Store", "import_predictions", "last_words", "list_runs", "merge", "rebuild"]

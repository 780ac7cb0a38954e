"""The demo: three small models of the paper's architecture, their texts, their training, their evaluation sets."""

from pathlib import Path

DATA = Path(__file__).parent / "data"
"""A data folder (`harness.data.folder`) with the demo's own haystack and sentence splitter."""

MODELS = Path(__file__).parent / "models"
"""The trained checkpoints: MODELS / arm / stage. An arm is one of the three models: baseline, headwise, elementwise."""

"""YAML -> validated, frozen config: the vocabulary of the project."""

from harness.config.loading import from_dict, load, to_dict
from harness.config.overrides import Options
from harness.config.table import TableOptions
from harness.config.vocabulary import (
    SCALINGS,
    BenchmarkEntry,
    Config,
    ContextSetting,
    EngineOptions,
    Model,
    Yarn,
    stretched_length,
)

__all__ = [
    "SCALINGS",
    "BenchmarkEntry",
    "Config",
    "ContextSetting",
    "EngineOptions",
    "Model",
    "Options",
    "TableOptions",
    "Yarn",
    "from_dict",
    "load",
    "stretched_length",
    "to_dict",
]

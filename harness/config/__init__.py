"""YAML -> validated, frozen config: the vocabulary of the project."""

from harness.config.loading import Config, Engine, from_dict, load, to_dict
from harness.config.vocabulary import Benchmark, ContextSetting, Model, Yarn

__all__ = ["Benchmark", "Config", "ContextSetting", "Engine", "Model", "Yarn", "from_dict", "load", "to_dict"]

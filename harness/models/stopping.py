"""The token ids that end an answer. gatedeval names them in every request, so that what is hashed is what is sent.

vLLM 0.32 takes them by itself from three places: the tokenizer's end-of-text token (`renderers/base.py`) and, added to
it, `eos_token_id` of generation_config.json, or of config.json where there is no generation_config.json
(`transformers_utils/config.py`). Its engine argument `generation_config="vllm"` leaves out the sampling parameters
of that file, but not its `eos_token_id`. The rule here is the same, with one difference: a model class's default
`eos_token_id`, which no file names, does not count.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.models.checkpoint import Checkpoint
from harness.models.json_files import read_object
from harness.models.tokenizer import Tokenizer
from harness.types import GatedevalError

GENERATION_CONFIG = "generation_config.json"


def stop_ids(checkpoint: Checkpoint, tokenizer: Tokenizer) -> tuple[int, ...]:
    """The token ids that end an answer, ascending. Empty: only the token limit and stop strings end it.

    Raises:
        GatedevalError: generation_config.json cannot be read, an `eos_token_id` is no token id, or the tokenizer cannot
            be loaded.
    """
    named = {*declared_ids(checkpoint.path, checkpoint.config), *([] if (own := tokenizer.eos_id) is None else [own])}
    rows = checkpoint.config.get("vocab_size")  # an id beyond them is never generated, and vLLM refuses to look for it
    return tuple(sorted(id for id in named if not isinstance(rows, int) or id < rows))


def declared_ids(directory: Path, config: Mapping[str, Any]) -> tuple[int, ...]:
    """`eos_token_id` of generation_config.json, else of config.json (`config`), as ascending token ids.

    Raises:
        GatedevalError: generation_config.json cannot be read, or the entry is no token id.
    """
    file = directory / GENERATION_CONFIG
    if not file.is_file():
        return config_ids(directory, config)
    return _ids(read_object(file, "; correct the file, or remove it").get("eos_token_id"), file)


def config_ids(directory: Path, config: Mapping[str, Any]) -> tuple[int, ...]:
    """`eos_token_id` of config.json, as ascending token ids. Raises GatedevalError where it is no token id."""
    return _ids(config.get("eos_token_id"), directory / "config.json")


def _ids(value: Any, file: Path) -> tuple[int, ...]:
    given = value if isinstance(value, list) else [] if value is None else [value]
    if wrong := [id for id in given if not isinstance(id, int) or isinstance(id, bool) or id < 0]:
        raise GatedevalError(f"{file}: eos_token_id holds {wrong[0]!r}; a token id is a whole number from 0 up")
    return tuple(sorted(set(given)))

"""Tokenizers for RULER's tests, made once per session."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from harness.models.tokenizer import Tokenizer, load_tokenizer
from tests.support import tokenizers as tokenizers_made


@cache
def _made(kind: str) -> Tokenizer:
    return load_tokenizer(getattr(tokenizers_made, kind)())


@pytest.fixture(scope="session")
def made() -> Callable[[str], Tokenizer]:
    """A tokenizer by its kind: qwen, gpt2, llama, unigram, unigram_plain, crossing."""
    return _made


@pytest.fixture(scope="session")
def bpe4k(shared: Path) -> Tokenizer:
    return load_tokenizer(shared / "oracles" / "ruler" / "tokenizer_bpe4k")


@pytest.fixture(scope="session")
def bpe4k_bos(shared: Path) -> Tokenizer:
    return load_tokenizer(shared / "oracles" / "ruler" / "tokenizer_bpe4k_bos")

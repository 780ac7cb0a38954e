"""RULER (Hsieh et al. 2024, arXiv 2404.06654): NVIDIA's samples, byte for byte, generated for any tokenizer."""

from harness.models.tokenizer import load_tokenizer
from tasks.ruler.generation import generate
from tasks.ruler.protocol import ANSWER_TOKENS, NEEDS, REVISION, TASKS
from tasks.ruler.request import Request
from tasks.ruler.sample import RulerSample, Validity
from tasks.ruler.scoring import WORD_BOUNDED, score, scores

__all__ = [
    "ANSWER_TOKENS",
    "NEEDS",
    "REVISION",
    "TASKS",
    "WORD_BOUNDED",
    "Request",
    "RulerSample",
    "Validity",
    "generate",
    "load_tokenizer",
    "score",
    "scores",
]

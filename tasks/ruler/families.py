"""From a task's name to its family, with the data that it reads."""

from __future__ import annotations

from functools import partial

from harness.types import GatedevalError
from tasks.ruler.common_words import CommonWords, more_words
from tasks.ruler.counting import Counter
from tasks.ruler.family import Draws, Family
from tasks.ruler.frequent_words import FrequentWords
from tasks.ruler.haystack import load_essay
from tasks.ruler.needle import Niah
from tasks.ruler.protocol import SETTINGS
from tasks.ruler.qa import QuestionAnswering, load_documents
from tasks.ruler.request import COMBINED, Request
from tasks.ruler.variable_tracking import VariableTracking


def make_family(request: Request, counter: Counter, draws: Draws, limit: int) -> Family:
    """The task's family at the request's length. `limit`: tokens that a prompt may take.

    Raises:
        GatedevalError: a data set is missing or broken, or has fewer questions than there are samples.
    """
    task, settings, data = request.task, SETTINGS[request.task], request.data
    match settings["family"]:
        case "niah":
            essay = load_essay(data) if settings["haystack"] == "essay" else None
            return Niah(settings, request.length, limit, counter, draws, essay)
        case "vt":
            return VariableTracking(settings["num_hops"], request.length, limit, counter, draws)
        case "cwe":
            more = None if request.words == COMBINED else partial(more_words, data, request.words)
            return CommonWords(settings, request.length, limit, counter, draws, more)
        case "fwe":
            return FrequentWords(settings, limit, counter, draws)
        case _:
            documents = load_documents(settings["dataset"], data)
            if request.samples > len(documents.questions):
                raise GatedevalError(
                    f"RULER {task}: {request.samples} samples wanted, its data has {len(documents.questions)} questions"
                )
            return QuestionAnswering(documents, limit, counter, draws)

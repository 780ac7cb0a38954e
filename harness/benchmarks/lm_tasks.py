"""lm-eval's own tasks, one document at a time: loading, local data in place of the hub, prompts, scores.

Prompts and scores are lm-eval's to the byte. One thing in lm-eval is patched: it compiles a Jinja template at every
render, which is most of the time it takes to build a prompt; here compiled templates are cached.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import jinja2

from harness.benchmarks.lm_names import OUR_TASKS
from harness.benchmarks.rolling import ROLLING, of_text
from harness.data.folder import DataFolder
from harness.data.network import hub_is_reachable
from harness.engine.encoding import generation_request
from harness.engine.requests import Choice, Completion, SampleRequest
from harness.text import well_formed
from harness.types import GatedevalError, did_you_mean, first_line

_log = logging.getLogger("gatedeval")
FEWSHOT_SEED = 1234  # lm-eval's own default for drawn examples


@functools.cache
def cache_templates() -> None:
    """Compile each lm-eval template once, and let none print a null. Same templates, so otherwise the same bytes."""
    from lm_eval import utils

    utils.env.finalize = _not_null
    utils.env.from_string = functools.lru_cache(maxsize=4096)(utils.env.from_string)


class NullField(ValueError):
    """A template met a null in a document."""


def _not_null(value: Any) -> Any:
    """What Jinja prints for an expression: the value, unless it is null, which it would print as "None"."""
    if value is None:
        raise NullField("a field of the document is null, and would be sent as 'None'")
    return value


@functools.cache
def task_manager(folder: Path | None) -> Any:
    """lm-eval's index of tasks: of one folder, or (None) of all folders, which takes seconds."""
    from lm_eval.tasks import TaskManager

    cache_templates()
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    if folder is None:
        return TaskManager(include_path=str(OUR_TASKS))
    return TaskManager(include_defaults=False, include_path=str(folder))


def _lookup(name: str) -> Any:
    """The index that lists a task or group. Raises GatedevalError, with the most similar name, when none does."""
    import lm_eval.tasks

    root = Path(lm_eval.tasks.__file__).parent
    for folder in dict.fromkeys((root / name, root / name.split("_")[0], OUR_TASKS)):
        if folder.is_dir() and name in task_manager(folder).task_index:
            return task_manager(folder)
    manager = task_manager(None)
    if name not in manager.task_index:
        raise GatedevalError(f"lm-eval has no task {name!r}{did_you_mean(name, manager.all_tasks)}")
    return manager


@functools.lru_cache(maxsize=128)
def load_tasks(name: str, shots: int | None, local: Callable[..., Any] | None = None) -> dict[str, LmEvalTask]:
    """The task `name`, or every task of the group `name`, with `shots` examples (None: the task's own number).

    `local`: a function that returns the task's splits from local files instead of the hub.

    Raises:
        GatedevalError: no such task, or its data cannot be loaded.
    """
    manager = _lookup(name)
    if local is None and name not in task_manager(OUR_TASKS).task_index:
        hub_is_reachable()  # if not, `datasets` reads its cache at once
    overrides: dict[str, Any] = {} if shots is None else {"num_fewshot": shots}
    if local is not None:
        overrides["custom_dataset"] = local
    entry = manager.task_index[name]
    try:
        if overrides and not getattr(entry, "children", None):
            built = manager._factory.build(entry, overrides=overrides, registry=manager.task_index)
            tasks = {name: built} if not isinstance(built, dict) else built
        else:
            tasks = manager.load([name])["tasks"]
    except Exception as error:
        if isinstance(error, GatedevalError):
            raise
        found = f"{type(error).__name__}: {first_line(error):.200}"
        if isinstance(error, jinja2.TemplateError | NullField):  # lm-eval renders the first document when it loads
            raise GatedevalError(
                f"lm-eval task {name!r}: its first document does not fit its template ({found}); mend one of them"
            ) from error
        raise GatedevalError(
            f"lm-eval task {name!r}: its data cannot be loaded ({found})."
            " It comes from the hub: run once with a network so that it is cached, or leave the task out"
        ) from error
    for task in tasks.values():
        if shots is not None:
            task.set_config("num_fewshot", shots)
    return {task_name: LmEvalTask(task_name, task) for task_name, task in tasks.items()}


def local_task(benchmark: str, subject: str | None, shots: int, data: DataFolder) -> LmEvalTask:
    """lm-eval's task for a subject of "mmlu", or for "gsm8k" (`subject` None), with local data if there is any."""
    name = f"{benchmark}_{subject}" if subject else benchmark
    splits = _Splits(benchmark, subject, data)
    return load_tasks(name, shots, splits if splits.local else None)[name]


class _Splits:
    """lm-eval's `custom_dataset`: a task's splits from the data folder. Hashed by its key, for `load_tasks`."""

    def __init__(self, benchmark: str, subject: str | None, data: DataFolder) -> None:
        self.benchmark, self.data, self.subject = benchmark, data, subject
        self.local = data.root is not None or all(data.locate(name) for name in self.module.DATA)
        self.key = (benchmark, subject, str(data.root), tuple(sorted((k, str(v)) for k, v in data.overrides.items())))

    @property
    def module(self) -> Any:
        """tasks.mmlu or tasks.gsm8k. Not stored: lm-eval deep-copies a task's config, and a module cannot be copied."""
        return import_module(f"tasks.{self.benchmark}")

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Splits) and self.key == other.key

    def __call__(self, **_: Any) -> Any:
        from datasets import Dataset, DatasetDict

        rows = self.module.splits(self.data, self.subject)
        return DatasetDict({split: Dataset.from_list(of_split) for split, of_split in rows.items()})


def serve_local_data(data: DataFolder) -> None:
    """Let `datasets.load_dataset` answer MMLU's and GSM8k's hub names from the data folder, in this process.

    For lm-eval's own command line, whose tasks name hub repositories. A run does not need it.
    """
    import datasets

    from_hub = datasets.load_dataset
    benchmarks = {import_module(f"tasks.{name}").HUB: name for name in ("mmlu", "gsm8k")}

    @functools.wraps(from_hub)
    def load_dataset(path: str, name: str | None = None, **kwargs: Any) -> Any:
        if path in benchmarks:
            splits = _Splits(benchmarks[path], name if benchmarks[path] == "mmlu" else None, data)
            if splits.local:
                return splits()
        return from_hub(path, name, **kwargs)

    datasets.load_dataset = load_dataset


class LmEvalTask:
    """One lm-eval task, a document at a time."""

    def __init__(self, name: str, task: Any) -> None:
        self.name, self.task = name, task
        self.rolling: bool = task.OUTPUT_TYPE == "loglikelihood_rolling"
        if task.OUTPUT_TYPE not in ("multiple_choice", "generate_until", "loglikelihood", "loglikelihood_rolling"):
            raise GatedevalError(
                f"lm-eval task {name!r} is of type {task.OUTPUT_TYPE}, which gatedeval does not know; run it with"
                " `lm_eval --model gatedeval`"
            )
        if self.rolling and (other := sorted(set(task.aggregation()) - set(ROLLING))):
            raise GatedevalError(
                f"lm-eval task {name!r}: gatedeval does not know how to combine the {', '.join(other)} of documents (it"
                f" knows {', '.join(ROLLING)}); run it with `lm_eval --model gatedeval`"
            )

    def __len__(self) -> int:
        return len(self.task.eval_docs)

    def documents(self, limit: int | None) -> Iterator[tuple[int, dict[str, Any]]]:
        """(number, document) in the task's own order.

        The seed of drawn examples is set anew: lm-eval draws them document after document, so a second pass, or a task
        that ran before, would otherwise get other prompts.
        """
        self.task.set_fewshot_seed(FEWSHOT_SEED)
        yield from self.task.doc_iterator(rank=0, limit=limit, world_size=1)

    def request(
        self, number: int, doc: dict[str, Any], chat: Callable[..., str] | None
    ) -> tuple[SampleRequest, list[Any]]:
        """What the model is asked for one document, and lm-eval's instances of it. `chat` renders messages to text.

        Raises:
            GatedevalError: more shots than the task has examples; a document that lacks something or has a null in its
                place, of which the prompt cannot be made.
        """
        try:
            instances = self._instances(number, doc, chat)
        except AssertionError as error:  # lm-eval's way to say that there are not so many examples
            raise GatedevalError(f"lm-eval task {self.name!r}: {str(error).removeprefix('Error: ')}") from error
        except ValueError as error:  # its other way, where it draws them
            if "larger than population" not in str(error):
                raise self._cannot_be_made(number, error) from error
            raise GatedevalError(
                f"lm-eval task {self.name!r}: {self.task.config.num_fewshot} examples (shots) are asked for, and its"
                " data have fewer; lower `shots`"
            ) from error
        except GatedevalError:
            raise
        except Exception as error:  # a template, or a function of the task, met a document that it was not made for
            raise self._cannot_be_made(number, error) from error
        label = f"{self.name}, document {number}"
        if self.rolling:
            return SampleRequest(id=str(number), label=label, text=instances[0].args[0]), instances
        if instances[0].request_type == "generate_until":
            return generation_request(str(number), label, *instances[0].args), instances
        return SampleRequest(id=str(number), label=label, options=tuple(i.args for i in instances)), instances

    def _cannot_be_made(self, number: int, error: Exception) -> GatedevalError:
        return GatedevalError(
            f"{self._place(number)}: its prompt cannot be made ({type(error).__name__}: {first_line(error):.200});"
            " mend the document, or leave it out"
        )

    def _instances(self, number: int, doc: dict[str, Any], chat: Callable[..., str] | None) -> list[Any]:
        """lm-eval's instances of a document. Raises whatever lm-eval and the task raise; ValueError for a null."""
        task = self.task
        parts = [task.doc_to_text(doc), task.doc_to_target(doc)]
        if task.OUTPUT_TYPE == "multiple_choice":
            parts += task.doc_to_choice(doc)
        if None in parts:
            raise NullField("the question, the answer or a choice is null")
        context = task.fewshot_context(
            doc,
            num_fewshot=task.config.num_fewshot or 0,
            apply_chat_template=chat is not None,
            fewshot_as_multiturn=chat is not None,
            chat_template=chat,
            gen_prefix=task.doc_to_prefix(doc),
        )
        made = task.construct_requests(
            doc=doc,
            ctx=context,
            metadata=(self.name, number, 1),
            apply_chat_template=chat is not None,
            chat_template=chat,
        )
        instances = made if isinstance(made, list) else [made]
        for text in (text for instance in instances for text in instance.args if isinstance(text, str)):
            if well_formed(text) != text:
                raise ValueError("it has half a character, a lone surrogate, which no tokenizer can encode")
        return instances

    def _place(self, number: int) -> str:
        """A document in a message: the task, the files where its config names them, and the number from 0."""
        named = (self.task.config.dataset_kwargs or {}).get("data_files")
        files = named.values() if isinstance(named, dict) else [named] if named else []
        where = f" ({', '.join(map(str, files))})" if files else ""
        return f"lm-eval task {self.name!r}{where}, document {number} (counted from 0)"

    def reference(self, doc: dict[str, Any]) -> list[str]:
        """The target, as lm-eval has it: the answer text, or the number of the right option."""
        target = self.task.doc_to_target(doc)
        return [str(t) for t in target] if isinstance(target, list) else [str(target)]

    def extra(self, doc: dict[str, Any], request: SampleRequest) -> dict[str, Any]:
        """What is stored with a sample: the options, or the weights of a text's numbers (its words and bytes)."""
        if self.rolling:
            return {"weights": {metric: weight for metric, (_, weight) in self._rolling(doc, 0.0).items()}}
        return {"options": [c for _, c in request.options]} if request.options else {}

    def _rolling(self, doc: dict[str, Any], loglikelihood: float) -> dict[str, tuple[float, int]]:
        """lm-eval's numbers of one text: metric -> (log-likelihood, words or bytes)."""
        return {m: v for m, v in self.task.process_results(doc, [loglikelihood]).items() if m in ROLLING}

    def _rolling_scores(self, doc: dict[str, Any], loglikelihood: float) -> dict[str, float]:
        """The document's own perplexities; `harness.benchmarks.rolling.combined` makes the task's number of them.

        Raises:
            GatedevalError: one of them is beyond the largest number.
        """
        scores = {}
        for metric, (value, weight) in self._rolling(doc, loglikelihood).items():
            try:
                scores[metric] = of_text(metric, value, weight)
            except OverflowError:
                raise GatedevalError(
                    f"lm-eval task {self.name!r}: {metric} is beyond the largest number: log-likelihood {value:.6g}"
                    f" over {weight} words or bytes; the model does not predict this text at all"
                ) from None
        return scores

    def score(
        self, doc: dict[str, Any], instances: list[Any], answer: Completion | Choice, text: str
    ) -> dict[str, float]:
        """lm-eval's metrics of one document, 0..1; `metric,filter` where the task has several filters.

        Raises:
            GatedevalError: a task none of whose metrics is a number per document.
        """
        if self.rolling:
            assert isinstance(answer, Choice)
            return self._rolling_scores(doc, math.fsum(answer.logprobs))
        for number, instance in enumerate(instances):
            if isinstance(answer, Choice):
                instance.resps = [(answer.logprobs[number], answer.greedy[number])]
            else:
                instance.resps = [text]
        for ensemble in getattr(self.task, "_filters", []):
            ensemble.apply(instances)
        filters = list(instances[0].filtered_resps) or ["none"]
        scores: dict[str, float] = {}
        for name in filters:
            responses = [i.filtered_resps[name] if i.filtered_resps else i.resps[0] for i in instances]
            for metric, value in self.task.process_results(doc, responses).items():
                if isinstance(value, (int, float)) and not isinstance(value, complex):
                    scores[metric if len(filters) == 1 else f"{metric},{name}"] = float(value)
        if not scores:
            raise GatedevalError(f"lm-eval task {self.name!r} has no numeric score per document")
        return scores

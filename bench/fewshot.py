"""Documents per second of building prompts and scoring answers: lm-eval alone, and gatedeval with lm-eval's tasks.

5-shot MMLU (five subjects) and GSM8k on the same files. CPU time of one process per way; tasks are loaded before the
clock starts. Both ways get the same invented answers: option 0, or "#### 7". Their prompts are compared.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from common import data_folder, emit, skip

SUBJECTS = ("anatomy", "astronomy", "college_biology", "econometrics", "world_religions")
GSM8K_ANSWER = "3 + 4 = 7\n#### 7"


def tasks() -> Iterator[tuple[str, Any]]:
    """(benchmark, our wrapper around lm-eval's task) of all tasks that are measured."""
    from harness.benchmarks.lm_tasks import local_task
    from harness.data.folder import DataFolder

    data = DataFolder(data_folder())
    for subject in SUBJECTS:
        yield "mmlu", local_task("mmlu", subject, 5, data)
    yield "gsm8k", local_task("gsm8k", None, 5, data)


def ours(task: Any, limit: int) -> tuple[float, float, list[str]]:
    """(CPU seconds of building, CPU seconds of scoring, prompts) with gatedeval."""
    from harness.engine.requests import Choice, Completion

    start = time.process_time()
    built = [(doc, *task.request(number, doc, None)) for number, doc in task.documents(limit)]
    middle = time.process_time()
    for doc, ask, instances in built:
        if ask.options:
            values = tuple(-1.0 - i for i in range(len(ask.options)))
            task.score(doc, instances, Choice(ask.key, values, (False,) * len(values), 0.0), "")
        else:
            task.score(doc, instances, Completion(ask.key, GSM8K_ANSWER, 9, "stop", 0.0), GSM8K_ANSWER)
    end = time.process_time()
    prompts = [c + t for _, ask, _ in built for c, t in ask.options or ((ask.prompt, ""),)]
    return middle - start, end - middle, prompts


def plain(task: Any, limit: int) -> tuple[float, float, list[str]]:
    """The same, as lm-eval's evaluator does it."""
    task = task.task
    task.set_fewshot_seed(1234)
    start = time.process_time()
    task.build_all_requests(limit=limit, rank=0, world_size=1)
    middle = time.process_time()
    by_document = defaultdict(list)
    for instance in task.instances:
        by_document[instance.doc_id].append(instance)
        choice = instance.request_type == "loglikelihood"
        instance.resps.append((-1.0 - instance.idx, False) if choice else GSM8K_ANSWER)
    task.apply_filters()
    for name in task.instances[0].filtered_resps:
        for number, doc in task.doc_iterator(rank=0, limit=limit, world_size=1):
            task.process_results(doc, [i.filtered_resps[name] for i in by_document[number]])
    end = time.process_time()
    prompts = [i.args[0] + (i.args[1] if isinstance(i.args[1], str) else "") for i in task.instances]
    return middle - start, end - middle, prompts


def measure(way: str, limit: int) -> None:
    """Print one JSON line per task."""
    loaded = list(tasks())
    if way == "plain":
        from lm_eval import utils

        # Loading tasks makes gatedeval cache compiled templates. lm-eval alone compiles them every time.
        utils.env.from_string = utils.env.from_string.__wrapped__
    for kind, task in loaded:
        building, scoring, prompts = {"ours": ours, "plain": plain}[way](task, limit)
        digest = hashlib.sha256("\0".join(prompts).encode()).hexdigest()
        documents = min(limit, len(task))
        print(json.dumps({"kind": kind, "building": building, "scoring": scoring, "documents": documents,
                          "digest": digest}))  # fmt: skip


def child(way: str, limit: int) -> list[dict[str, Any]]:
    """Measure one way in its own process."""
    done = subprocess.run(
        [sys.executable, __file__, "--measure", way, "--documents", str(limit)],
        check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=150, help="at most, per task")
    parser.add_argument("--measure", choices=["ours", "plain"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        return measure(args.measure, args.documents)
    if data_folder() is None:
        skip("fewshot", "no MMLU and GSM8k data: set GATEDEVAL_DATA")
    found = {way: child(way, args.documents) for way in ("ours", "plain")}
    same = all(a["digest"] == b["digest"] for a, b in zip(found["ours"], found["plain"], strict=True))
    parts, facts = [], {}
    for kind in ("mmlu", "gsm8k"):
        rate = {}
        for way, rows in found.items():
            mine = [r for r in rows if r["kind"] == kind]
            documents = sum(r["documents"] for r in mine)
            rate[way] = {what: documents / sum(r[what] for r in mine) for what in ("building", "scoring")}
            rate[way]["both"] = documents / sum(r["building"] + r["scoring"] for r in mine)
        facts[kind] = rate
        parts.append(
            f"{kind} {rate['ours']['both']:,.0f} documents/s against {rate['plain']['both']:,.0f} of lm-eval alone"
            f" ({rate['ours']['both'] / rate['plain']['both']:.1f} x; building {rate['ours']['building']:,.0f},"
            f" scoring {rate['ours']['scoring']:,.0f})"
        )
    emit("fewshot", f"{'; '.join(parts)}; prompts {'equal' if same else 'DIFFER'}; asked for: 2,000/s; CPU time",
         rates=facts, prompts_equal=same, documents=sum(r["documents"] for r in found["ours"]))  # fmt: skip
    return None


if __name__ == "__main__":
    main()

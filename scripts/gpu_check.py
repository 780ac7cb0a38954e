"""Does gatedeval work on this machine's GPU? A table of yes and no with numbers, in about five minutes on one GPU.

Every check runs in a process of its own. A check that cannot run here is named, with the reason. On a CPU most checks
run too, so that the script itself is tested (`make gpu-check`). Exit code: 0 if no check says no, else 1.
docs/gpu.md says what each check means, and how to report a "no".
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

LIMIT = 900  # seconds for one check
PROMPT = [(7 * i * i + 3 * i) % 3000 + 40 for i in range(300)]
CHECKS: dict[str, Callable[[Path], dict[str, Any]]] = {}


class Skip(Exception):
    """The check cannot run on this machine; the text says why."""


def check(function: Callable[[Path], dict[str, Any]]) -> Callable[[Path], dict[str, Any]]:
    """Add a check. It gets a folder with tiny checkpoints and returns numbers, with `ok` among them."""
    CHECKS[function.__name__] = function
    return function


# --- what the checks share -------------------------------------------------------------------------------------------


def on_gpu() -> bool:
    from harness.engine import vllm_api

    return vllm_api.on_gpu()


def need_gpu(reason: str) -> None:
    if not on_gpu():
        raise Skip(f"needs a GPU: {reason}")


def engine(path: Path, *settings: Any, dtype: str = "float32", tokenizer: Path | None = None, **options: Any) -> Any:
    """An engine on a checkpoint; without `settings`, under the native one."""
    from harness.config import ContextSetting, EngineOptions, Model
    from harness.engine.engine import Engine

    if on_gpu():
        options.setdefault("gpu_memory_utilization", 0.5)
    else:
        options.setdefault("kv_cache_gib", 1)
    model = Model(
        label=path.name,
        path=str(path),
        dtype=dtype,
        tokenizer=str(tokenizer) if tokenizer else None,  # type: ignore[arg-type]
    )
    given = list(settings) or [ContextSetting(label="native")]
    return Engine(model, given, EngineOptions(**options))


def logprobs(live: Any, ids: list[int], tokens: range = range(0, 4096, 16)) -> Any:
    """Log-probabilities of `tokens` after `ids`: (tokens,)."""
    import numpy as np

    from harness.engine.requests import Question

    [choice] = live.choose([Question("q", tuple((tuple(ids), (token,)) for token in tokens))])
    return np.array(choice.logprobs)


def reference_logprobs(path: Path, ids: list[int], setting: Any, tokens: range = range(0, 4096, 16)) -> Any:
    """The same from the model in plain torch, in float32 on the CPU."""
    import torch

    from harness.models.reference import load

    model = load(path).float()
    with torch.no_grad():
        logits = model(torch.tensor([ids]), model.cos_sin(len(ids), setting))[0, -1]
    return torch.log_softmax(logits.float(), -1)[list(tokens)].numpy()


def agreement(found: Any, expected: Any, dtype: str) -> dict[str, Any]:
    """How far log-probabilities are from float32's: at most 0.001 nats in float32, 0.2 on average in 16 bits.

    (The authors' own code, run in bfloat16, is 0.04 to 0.10 off on average.)
    """
    off = abs(found - expected)
    ok = off.max() <= 1e-3 if dtype == "float32" else off.mean() <= 0.2
    return {"ok": bool(ok), "largest difference, nats": float(off.max()), "mean": float(off.mean())}


def against_reference(path: Path, dtype: str, **options: Any) -> dict[str, Any]:
    from harness.config import ContextSetting

    setting = ContextSetting(label="native", max_length=1024)
    with engine(path, setting, dtype=dtype, **options) as live:
        live.self_check()
        return agreement(logprobs(live, PROMPT), reference_logprobs(path, PROMPT, setting), dtype)


# --- the checks ------------------------------------------------------------------------------------------------------


@check
def arithmetic(tiny: Path) -> dict[str, Any]:
    """What runs here. In float32 on a GPU, no product may be in TF32."""
    with engine(tiny / "headwise") as live:
        facts = live.facts["arithmetic"]
    exact = all(facts[name] in (None, "ieee") for name in ("float32_matmul", "float32_triton"))
    return {"ok": exact, **facts}


@check
def float32_equals_plain_torch(tiny: Path) -> dict[str, Any]:
    """A headwise model in float32, eager."""
    return against_reference(tiny / "headwise", "float32", enforce_eager=True)


@check
def headwise_bfloat16_eager(tiny: Path) -> dict[str, Any]:
    """A headwise model in bfloat16, eager."""
    return against_reference(tiny / "headwise", "bfloat16", enforce_eager=True)


@check
def headwise_bfloat16_compiled(tiny: Path) -> dict[str, Any]:
    """The same compiled, on a GPU with CUDA graphs."""
    need_gpu("on a CPU gatedeval does not compile")
    return against_reference(tiny / "headwise", "bfloat16", enforce_eager=False)


@check
def settings_in_a_live_engine(tiny: Path) -> dict[str, Any]:
    """Native, RoPE base and YaRN in one engine (on a GPU with CUDA graphs) against an engine for each."""
    from harness.config import ContextSetting, Yarn

    yarn = Yarn(factor=4, original_max_position_embeddings=2048)
    settings = [
        ContextSetting(label="native", max_length=512),
        ContextSetting(label="base", rope_theta=2e6, max_length=2048),
        ContextSetting(label="YaRN", rope_theta=1e6, yarn=yarn, max_length=8192),
    ]
    compiled = {"enforce_eager": not on_gpu()}
    rows: dict[str, Any] = {}
    with engine(tiny / "headwise", *settings, **compiled) as live:
        for setting in (*settings, settings[0]):
            live.set_context(setting)
            live.self_check()
            rows[setting.label] = logprobs(live, PROMPT)
    off = {}
    for setting in settings[1:]:
        with engine(tiny / "headwise", setting, **compiled) as fresh:
            off[f"{setting.label}, nats"] = float(abs(logprobs(fresh, PROMPT) - rows[setting.label]).max())
    apart = float(abs(rows["native"] - rows["YaRN"]).max())
    return {"ok": max(off.values()) <= 1e-3 < apart, **off, "native to YaRN, nats": apart}


@check
def options_equal_prompt_logprobs(tiny: Path) -> dict[str, Any]:
    """Options' log-likelihoods against vLLM's prompt log-probabilities, with token 0, shared beginnings, two widths."""
    import numpy as np
    from vllm import SamplingParams

    from harness.engine import vllm_api
    from harness.engine.requests import Question

    context = tuple(PROMPT[:50])
    options = ((5,), (5, 9), (5, 9, 11), (5, 12, 400), (0,), (0, 0), (77, 5, 9))
    with engine(tiny / "headwise", enforce_eager=True) as live:
        wide = Question("wide", tuple((context, (token,)) for token in range(100)))
        found = {c.key: c for c in live.choose([wide, Question("q", tuple((context, o) for o in options))])}
        slow = []
        for number, option in enumerate(options):
            params = SamplingParams(max_tokens=1, prompt_logprobs=0, temperature=0)
            live.vllm.add_request(
                f"slow{number}", vllm_api.token_prompt([*context, *option], live.setting.label), params
            )
            outputs: list[Any] = []
            while not outputs:
                outputs = [output for output in live.vllm.step() if output.finished]
            rows = outputs[0].prompt_logprobs[len(context) :]
            slow.append(sum(row[token].logprob for row, token in zip(rows, option, strict=True)))
        off = float(np.abs(np.array(found["q"].logprobs) - slow).max())
    return {"ok": off <= 1e-3, "largest difference, nats": off}


@check
def a_broken_model_is_noticed(tiny: Path) -> dict[str, Any]:
    """NaN in one weight, and zeroed attention output: the self-check must say so."""
    from safetensors.torch import load_file, save_file

    from harness.engine.requests import EngineError

    said = {}
    for name, value in (("NaN", float("nan")), ("zero", 0.0)):
        folder = tiny / f"broken-{name}"
        folder.mkdir(exist_ok=True)
        for file in (tiny / "headwise").iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
        tensors = load_file(folder / "model.safetensors")
        for key in tensors:
            if "o_proj" in key:
                tensors[key][:] = value
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        said[name] = "nothing"
        try:
            with engine(folder, enforce_eager=True) as live:
                live.self_check()
        except EngineError as error:
            said[name] = re.sub(r" \(the engine's log.*", "", str(error))[:120]
    return {"ok": "nothing" not in said.values(), **said}


@check
def oracles(tiny: Path) -> dict[str, Any]:
    """The authors' own numbers, in every dtype: GATEDEVAL_SHARED, else `shared` beside the checkout."""
    import numpy as np

    shared = Path(os.environ.get("GATEDEVAL_SHARED", ROOT.parent / "shared"))
    folder = shared / "oracles/c_elementwise_gqa"
    if not folder.is_dir():
        raise Skip("no folder with oracles: set GATEDEVAL_SHARED")
    data = np.load(folder / "expected.npz")
    ids, positions = data["input_ids"][0].tolist(), data["logits_positions"].tolist()
    logits = data["logits"][0].astype(np.float64)
    expected = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
    rows: dict[str, dict[str, Any]] = {}
    for dtype in ("float32", "bfloat16", "float16"):
        with engine(folder, dtype=dtype, tokenizer=shared / "oracles/ruler/tokenizer_bpe4k") as live:
            found = [logprobs(live, ids[: p + 1], range(expected.shape[1])) for p in positions]
        rows[dtype] = agreement(np.array(found), expected, dtype)
    numbers = {f"{dtype}, {name}": value for dtype, row in rows.items() for name, value in row.items() if name != "ok"}
    return {"ok": all(row["ok"] for row in rows.values()), **numbers}


@check
def two_ranks(tiny: Path) -> dict[str, Any]:
    """Tensor parallelism over two devices against one."""
    if on_gpu():
        import torch

        if torch.cuda.device_count() < 2:
            raise Skip("needs two GPUs")
    elif (os.cpu_count() or 1) < 2:
        raise Skip("needs two cores")
    rows = []
    for ranks in (1, 2):
        with engine(tiny / "headwise", tensor_parallel_size=ranks, enforce_eager=True) as live:
            live.self_check()
            rows.append(logprobs(live, PROMPT))
    off = float(abs(rows[0] - rows[1]).max())
    return {"ok": off <= 1e-3, "largest difference, nats": off}


@check
def killed_parent(tiny: Path) -> dict[str, Any]:
    """kill -9 on the process that started an engine: its processes end, and no GPU memory stays taken."""
    import psutil

    left, seconds = {}, {}
    for method in ("spawn", "fork") if on_gpu() else ("spawn",):
        command = [sys.executable, str(Path(__file__)), "--hold", str(tiny / "headwise")]
        environment = {**os.environ, "VLLM_WORKER_MULTIPROC_METHOD": method}
        holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        assert holder.stdout is not None
        if holder.stdout.readline().strip() != "ready":
            return {"ok": False, method: "the engine did not start"}
        family = psutil.Process(holder.pid).children(recursive=True)
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        since = time.monotonic()
        _, alive = psutil.wait_procs(family, timeout=60)
        seconds[f"{method}, s"] = round(time.monotonic() - since, 2)
        alive = [p for p in alive if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
        left[f"{method}, processes left"] = len(alive) + len({p.pid for p in family} & _pids_on_gpu())
        for process in alive:
            process.kill()
    return {"ok": not any(left.values()), **left, **seconds}


def _pids_on_gpu() -> set[int]:
    if not on_gpu():
        return set()
    command = ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return {int(line) for line in done.stdout.split() if line.isdigit()}


@check
def prompt_of_128k_tokens(tiny: Path) -> dict[str, Any]:
    """One prompt of 131,000 tokens under YaRN, and another with the same last token."""
    need_gpu("minutes on a CPU (make smoke-128k)")
    from harness.config import ContextSetting, Yarn

    yarn = Yarn(factor=4, original_max_position_embeddings=32768)
    setting = ContextSetting(label="YaRN", rope_theta=1e6, yarn=yarn, max_length=131072)
    ids = (PROMPT * 440)[:131000]
    with engine(tiny / "headwise", setting, dtype="bfloat16") as live:
        since = time.perf_counter()
        first = logprobs(live, ids, range(0, 4096, 64))
        seconds = time.perf_counter() - since
        other = logprobs(live, [*reversed(ids[:-1]), ids[-1]], range(0, 4096, 64))
    sound = bool((abs(first) < 1e9).all() and abs(first - other).max() > 0)
    return {"ok": sound, "s": round(seconds, 2), "prompt tokens/s": round(len(ids) / seconds)}


@check
def gate_overhead(tiny: Path) -> dict[str, Any]:
    """Whole models of the released shape with and without gates, compiled, and eager with the gating step switched on
    and off in one engine (bench/gate.py). Numbers, no bar.
    """
    need_gpu("minutes on a CPU (bench/gate.py)")
    what = "--layers 28 --dtype bfloat16 --lengths 4096,8192,16384,32768 --batches 1,16 --chunk 8192 --repeats 3"
    compiled, eager = _bench("gate.py", f"{what} --compile"), _bench("gate.py", what)
    return {"ok": True, **compiled, "eager": eager["line"]}


@check
def harness_overhead(tiny: Path) -> dict[str, Any]:
    """`gatedeval run` against bare `LLM.generate` on the same prompts (bench/overhead.py): at most 1.05 times."""
    need_gpu("minutes on a CPU (bench/overhead.py)")
    found = _bench("overhead.py", "--samples 400 --pairs 1 --compile")
    return {"ok": found.get("answering", 9.0) <= 1.05, **found}


def _bench(script: str, arguments: str) -> dict[str, Any]:
    command = [sys.executable, str(ROOT / "bench" / script), *arguments.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    facts = json.loads(done.stdout.strip().splitlines()[-1])
    return {key: value for key, value in facts.items() if key in ("line", "ratio", "answering", "total", "seconds")}


# --- running them ----------------------------------------------------------------------------------------------------


def run_one(name: str, tiny: Path) -> dict[str, Any]:
    """One check in this process: its numbers, or why it was skipped or failed."""
    since = time.monotonic()
    try:
        result = CHECKS[name](tiny)
        status = "yes" if result.pop("ok") else "no"
    except Skip as reason:
        status, result = "skipped", {"reason": str(reason)}
    except Exception as error:
        status, result = "no", {"error": f"{type(error).__name__}: {error}"}
    return {"check": name, "status": status, "seconds": round(time.monotonic() - since, 1), "numbers": result}


def in_own_process(name: str, tiny: Path) -> dict[str, Any]:
    """One check in a process of its own: a crash of one does not end the others."""
    target = tiny / f"{name}.json"
    command = [sys.executable, str(Path(__file__)), "--check", name, "--tiny", str(tiny), "--json", str(target)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    except subprocess.TimeoutExpired:
        return {"check": name, "status": "no", "seconds": LIMIT, "numbers": {"error": f"no end after {LIMIT} s"}}
    if not target.exists():
        last = (done.stderr.strip().splitlines() or [""])[-1]
        return {"check": name, "status": "no", "seconds": 0.0, "numbers": {"error": f"crashed: {last}"}}
    return json.loads(target.read_text())


def line(row: dict[str, Any]) -> str:
    """One row of the table."""
    numbers = "; ".join(f"{k}: {v:.3g}" if isinstance(v, float) else f"{k}: {v}" for k, v in row["numbers"].items())
    return f"{row['status']:<8} {row['check']:<32} {row['seconds']:>6.1f} s  {numbers}"


def hold(path: Path) -> None:
    """Start an engine, say "ready", and wait to be killed."""
    with engine(path, enforce_eager=True) as live:
        live.self_check()
        print("ready", flush=True)
        time.sleep(LIMIT)


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=lambda text: text.split(","), help=f"of {', '.join(CHECKS)}")
    parser.add_argument("--json", type=Path, help="write all rows to this file")
    parser.add_argument("--check", choices=list(CHECKS), help=argparse.SUPPRESS)
    parser.add_argument("--tiny", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--hold", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.hold:
        hold(args.hold)
        return 0
    if args.check:
        args.json.write_text(json.dumps(run_one(args.check, args.tiny)))
        return 0
    if unknown := sorted(set(args.only or ()) - set(CHECKS)):
        parser.error(f"--only: unknown {', '.join(unknown)}; known: {', '.join(CHECKS)}")
    from harness.models.tiny import make_tiny

    rows = []
    with tempfile.TemporaryDirectory(prefix="gatedeval-gpu-check-") as folder:
        make_tiny(Path(folder))
        for name in args.only or CHECKS:
            rows.append(in_own_process(name, Path(folder)))
            print(line(rows[-1]), flush=True)
    counts = {status: sum(row["status"] == status for row in rows) for status in ("yes", "no", "skipped")}
    print(", ".join(f"{count} {status}" for status, count in counts.items()))
    if args.json:
        args.json.write_text(json.dumps({"checks": rows, **counts}, indent=1) + "\n")
    return 1 if counts["no"] else 0


if __name__ == "__main__":
    sys.exit(main())

"""The cost of a probe: its time over the time of a plain prefill of the same text, and the memory that it adds.

A model of four layers with random weights reads one text of `--length` tokens, plain and probed in turn, in one
engine in this process. The text is random tokens; perplexity is included.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import time
from pathlib import Path

from common import CACHE, emit, note

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"


def model_folder(layers: int) -> Path:
    """A tiny elementwise model with `layers` layers, written once."""
    import json

    from harness.models.tiny import make_tiny, random_weights
    from harness.models.writing import write_checkpoint

    root = CACHE / f"probe-{layers}"
    if not (root / "model" / "config.json").exists():
        make_tiny(root / "tiny")
        source = root / "tiny" / "elementwise"
        config = json.loads((source / "config.json").read_text(encoding="utf-8")) | {"num_hidden_layers": layers}
        write_checkpoint(root / "model", config, random_weights(config, 0))
        for file in source.glob("tokenizer*"):
            (root / "model" / file.name).write_bytes(file.read_bytes())
    return root / "model"


def peak() -> float:
    """The largest memory that this process had so far, in GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=131071, help="tokens of the text")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--pairs", type=int, default=1, help="plain and probed passes, in turn")
    arguments = parser.parse_args()

    import numpy as np

    from harness.config import ContextSetting, EngineOptions, Model, Yarn
    from harness.engine.engine import Engine
    from harness.engine.probing import probe
    from harness.engine.requests import Prompt
    from harness.probe.plan import ProbePlan
    from harness.probe.rows import choose_rows

    length = arguments.length
    setting = ContextSetting(
        label="YaRN", rope_theta=1e6, yarn=Yarn(factor=4, original_max_position_embeddings=32768), max_length=length + 1
    )
    model = Model(label="probe", path=str(model_folder(arguments.layers)), dtype="float32")
    plain, probed = [], []  # seconds
    plain_cpu, probed_cpu = [], []  # seconds of all threads: other work on the machine changes them less
    with Engine(model, [setting], EngineOptions(enforce_eager=True)) as engine:
        vocabulary = engine.checkpoint.config["vocab_size"]
        ids = tuple(int(i) for i in np.random.default_rng(0).integers(0, vocabulary, length))
        before = after = 0.0
        for _ in range(arguments.pairs):
            engine.vllm.reset_prefix_cache()
            start, cpu = time.perf_counter(), time.process_time()
            list(engine.generate([Prompt("plain", ids, max_tokens=1)]))
            plain.append(time.perf_counter() - start)
            plain_cpu.append(time.process_time() - cpu)
            before = before or peak()
            note(f"plain prefill: {plain[-1]:.1f} s")
            start, cpu = time.perf_counter(), time.process_time()
            result = probe(engine, ProbePlan(ids, choose_rows(length)))
            probed.append(time.perf_counter() - start)
            probed_cpu.append(time.process_time() - cpu)
            after = peak()
            note(
                f"probe: {probed[-1]:.1f} s, {result.rows} rows,"
                f" F-Attn {result.first.mean:.5f} ± {result.first.error:.5f}"
            )
    ratio, cpu_ratio = (
        statistics.median(b / a for a, b in zip(*pair, strict=True))
        for pair in ((plain, probed), (plain_cpu, probed_cpu))
    )
    emit(
        "probe",
        f"{length} tokens, {arguments.layers} layers: {ratio:.2f} x the time of a plain prefill"
        f" ({cpu_ratio:.2f} x its CPU time),"
        f" {after - before:.2f} GiB more memory",
        length=length,
        layers=arguments.layers,
        ratio=ratio,
        cpu_ratio=cpu_ratio,
        plain_seconds=statistics.median(plain),
        extra_gib=after - before,
        rows=result.rows,
    )


if __name__ == "__main__":
    main()

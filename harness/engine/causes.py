"""Why an engine did not start or died: the cause in its log, on one line, and which option of the config to change.

vLLM's own exception often says only "See root cause above"; the cause is in the output of another process. Pure text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

_MAX_LENGTH = 400  # characters of a vLLM error in our own messages

# "(EngineCore pid=7278) ERROR 12-01 03:31:22 [core.py:1510] ", with either part missing
_PREFIX = re.compile(r"^(?:\([^()]*\bpid=\d+\) )?(?:[A-Z]+ \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]*\] )?")
# The last line of a traceback: "ValueError: ...", "torch.OutOfMemoryError: ...", "harness.types.GatedevalError: ..."
_EXCEPTION = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Za-z_]*(?:Error|Exception|Exit|Killed)(?::\s|$)")

_WITHOUT_CAUSE = (
    "See root cause above",
    "See stack trace",
    "see stack trace",
    "the stack trace above",
    "EngineDeadError",
    "failed to be inspected",
    "Engine core proc",
    "cancelled",
    "BrokenPipeError",
    "KeyboardInterrupt",
    "SystemExit",
)
"""Marks of exceptions that only report that another process failed."""

_WRAPPED = re.compile(r"Worker failed with error '(.*)', please check the stack trace above", re.DOTALL)

_REMEDIES: tuple[tuple[str, str], ...] = (
    (
        r"max seq len .*KV cache is needed|larger than the available KV cache",
        "the KV cache does not hold one longest prompt: raise engine.kv_cache_gib (on a GPU also"
        " engine.gpu_memory_utilization or engine.tensor_parallel_size), or lower the context's max_length",
    ),
    (
        r"No available memory for the cache blocks",
        "the weights leave no memory for the KV cache: raise engine.gpu_memory_utilization or"
        " engine.tensor_parallel_size",
    ),
    (
        r"is less than requested memory for kv",
        "the machine has less memory than the KV cache needs: lower engine.kv_cache_gib or the context's max_length",
    ),
    (
        r"Free memory on device .* is less than desired|is less than desired CPU memory utilization",
        "another process holds the memory: end it, or lower engine.gpu_memory_utilization",
    ),
    (
        r"out of memory|OutOfMemoryError|Cannot allocate memory|can't allocate memory",
        "raise engine.tensor_parallel_size, or lower engine.gpu_memory_utilization, engine.max_num_batched_tokens"
        " or the context's max_length",
    ),
    (
        r"divisible by tensor parallel size|[Ww]orld size .*(?:larger|greater) than|not enough (?:GPUs|devices)",
        "engine.tensor_parallel_size must divide the number of attention heads, and with"
        " engine.pipeline_parallel_size may not ask for more devices than there are",
    ),
    (
        r"CPU GDN attention requires BF16",
        "vLLM computes this family's linear attention in bfloat16 only on a CPU: set the model's dtype: bfloat16 (and"
        " that of a benchmark with its own)",
    ),
    (
        r"No module named 'torchvision'",
        "vLLM's class for this family needs torchvision: install the version that belongs to the installed torch",
    ),
    (r"greater than the derived max_model_len", "lower the context's max_length"),
    (
        r"only supported on GPUs with compute capability",
        "set engine.dtype (or the model's, or the benchmark's, dtype): float16",
    ),
    (
        r"[Nn]a[Nn].* logits|logits.* [Nn]a[Nn]",
        "the model computes values that are no numbers: its weights are damaged, or they need another dtype",
    ),
)


def root_cause(log: str) -> str:
    """The exception in an engine's log that says what went wrong, on one line; "" if there is none.

    Of several, the last one that does not merely report that another process failed.
    """
    found = ""
    for line in _exceptions(log):
        if wrapped := _WRAPPED.search(line):
            found = found or " ".join(wrapped[1].split())
        elif not any(mark in line for mark in _WITHOUT_CAUSE):
            found = line
    return found


def _exceptions(log: str) -> Iterator[str]:
    """The last line of every traceback in `log`, without what loggers put in front of it."""
    for line in log.splitlines():
        text = _PREFIX.sub("", line)
        if _EXCEPTION.match(text):
            yield " ".join(text.split())


def remedy(cause: str) -> str:
    """Which option to change for a cause that is known; "" for others."""
    return next((advice for pattern, advice in _REMEDIES if re.search(pattern, cause)), "")


def explanation(error: BaseException, log: str = "", path: Path | None = None) -> str:
    """An engine's error on one line: the root cause, what to change, and where the whole log is.

    `log`: what the engine's processes printed; `path`: the file that has it.
    """
    own = one_line(error)
    without_cause = any(mark in f"{type(error).__name__}: {own}" for mark in _WITHOUT_CAUSE)
    cause = root_cause(log) if without_cause or own == type(error).__name__ else ""
    if not cause and (wrapped := _WRAPPED.search(" ".join(str(error).split()))):
        cause = wrapped[1]
    if cause or not without_cause:
        text = _short(cause) or own
    else:
        last = _short(_last_error_line(log)) or own
        text = f"its process ended without an error of its own; perhaps the system killed it to free memory ({last})"
    if advice := remedy(cause or f"{type(error).__name__}: {error}"):
        text += f"; {advice}"
    return f"{text} (the engine's log: {path})" if path else text


def _last_error_line(log: str) -> str:
    """The last line that a logger of vLLM marked as an error; "" if there is none."""
    for line in reversed(log.splitlines()):
        if re.match(r"^(?:\([^()]*\) )?(?:ERROR|CRITICAL) ", line) and (text := _PREFIX.sub("", line).strip()):
            return text
    return ""


def one_line(error: BaseException) -> str:
    """An error's text on one line of at most 400 characters; the error's type if the text is empty."""
    return _short(" ".join(str(error).split())) or type(error).__name__


def _short(text: str) -> str:
    return text if len(text) <= _MAX_LENGTH else f"{text[:_MAX_LENGTH]} ..."

"""What an engine's failure says: the root cause from the log, and the option to change."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.engine.causes import explanation, one_line, remedy, root_cause

NO_CAUSE = RuntimeError("Engine core initialization failed. See root cause above. Failed core proc(s): {}")

# Shortened from logs of vLLM 0.32 on a CPU: the KV cache is too small; the memory is too small.
SMALL_CACHE = """\
(Worker pid=7295) INFO 12-01 03:31:22 [cpu_worker.py:260] Explicitly set (1.0/19.84) GiB for KV cache on node 0.
(EngineCore pid=7278) ERROR 12-01 03:31:22 [core.py:1510] EngineCore failed to start.
(EngineCore pid=7278) ERROR 12-01 03:31:22 [core.py:1510] Traceback (most recent call last):
(EngineCore pid=7278) ERROR 12-01 03:31:22 [core.py:1510]     raise ValueError(
(EngineCore pid=7278) ERROR 12-01 03:31:22 [core.py:1510] ValueError: To serve at least one request with the model's \
max seq len (2097152), (4.0 GiB KV cache is needed, which is larger than the available KV cache memory (1.0 GiB).
(EngineCore pid=7278) ERROR 12-01 03:31:25 [multiproc_executor.py:315] Worker proc VllmWorker-0 died unexpectedly
Process EngineCore:
Traceback (most recent call last):
    raise ValueError(
ValueError: To serve at least one request with the model's max seq len (2097152), (4.0 GiB KV cache is needed, which \
is larger than the available KV cache memory (1.0 GiB).
(MainProcess pid=7254) INFO 12-01 03:31:27 [utils.py:628] [shutdown] Process manager: send sigterm to process EngineCore
"""
SMALL_MEMORY = """\
(Worker pid=7) ERROR 12-01 03:31:22 [multiproc_executor.py:900] ValueError: Available memory on node 0 (18.05/19.84 \
GiB) on kv cache allocation is less than requested memory for kv (900.0 GiB).
RuntimeError: Worker failed with error 'Available memory on node 0 (18.05/19.84 GiB) on kv cache allocation is less \
than requested memory for kv (900.0 GiB).', please check the stack trace above for the root cause
"""


def test_root_cause_comes_from_the_log_with_the_option_to_change() -> None:
    """vLLM's own exception says only "See root cause above"."""
    text = explanation(NO_CAUSE, SMALL_CACHE, Path("run/engine.log"))
    assert text.startswith("ValueError: To serve at least one request with the model's max seq len (2097152)")
    assert "raise engine.kv_cache_gib" in text
    assert "lower the context's max_length" in text
    assert text.endswith("(the engine's log: run/engine.log)")
    assert "See root cause above" not in text
    assert "\n" not in text


def test_a_workers_error_is_the_cause_and_not_the_error_that_reports_it() -> None:
    assert root_cause(SMALL_MEMORY).startswith("ValueError: Available memory on node 0")
    only_the_report = SMALL_MEMORY.splitlines()[-1]
    assert root_cause(only_the_report).startswith("Available memory on node 0")
    assert "lower engine.kv_cache_gib" in explanation(NO_CAUSE, SMALL_MEMORY)


def test_an_error_that_says_its_cause_keeps_its_own_words() -> None:
    error = ValueError("Total number of attention heads (4) must be divisible by tensor parallel size (3).")
    text = explanation(error, "OSError: an older error in the log\n")
    assert text.startswith("Total number of attention heads (4)")
    assert "engine.tensor_parallel_size must divide" in text


def test_a_workers_message_is_unwrapped_where_the_log_has_nothing() -> None:
    report = SMALL_MEMORY.splitlines()[-1].removeprefix("RuntimeError: ")
    assert explanation(Exception(f"Call to collective_rpc method failed: {report}")).startswith("Available memory on")


def test_a_process_that_was_killed_is_said_to_be_killed() -> None:
    log = "(EngineCore pid=1) ERROR 12-01 03:31:25 [multiproc_executor.py:315] Worker proc VllmWorker-0 died (exit: -9)"
    text = explanation(NO_CAUSE, log)
    assert text.startswith("its process ended without an error of its own; perhaps the system killed it")
    assert text.endswith("(Worker proc VllmWorker-0 died (exit: -9))")
    assert explanation(NO_CAUSE, "").endswith(f"({one_line(NO_CAUSE)})")


@pytest.mark.parametrize(
    ("cause", "knob"),
    [
        ("ValueError: No available memory for the cache blocks.", "engine.gpu_memory_utilization"),
        (
            "ValueError: Free memory on device cuda:0 (3.1/79.2 GiB) on startup is less than desired GPU memory",
            "another process holds the memory",
        ),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "engine.tensor_parallel_size"),
        ("ValueError: World size (4) is larger than the number of available GPUs (1)", "engine.tensor_parallel_size"),
        ("ValueError: User-specified max_model_len (9) is greater than the derived max_model_len", "max_length"),
        ("ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0", "float16"),
        ("AssertionError: CPU GDN attention requires BF16.", "set the model's dtype: bfloat16"),
        ("ModuleNotFoundError: No module named 'torchvision'", "install the version"),
        ("RuntimeError: NaNs detected in logits: {'1': 4096}", "no numbers"),
    ],
)
def test_known_causes_name_the_option(cause: str, knob: str) -> None:
    assert knob in remedy(cause)


def test_a_class_that_cannot_be_imported_is_explained_by_the_import() -> None:
    error = ValueError("Model architectures ['Qwen3_5ForCausalLM'] failed to be inspected. Please check the logs.")
    log = "ERROR 12-01 03:31:22 [registry.py:7] ModuleNotFoundError: No module named 'torchvision'\n"
    assert explanation(error, log).startswith("ModuleNotFoundError: No module named 'torchvision'; vLLM's class for")


def test_an_unknown_cause_gets_no_advice() -> None:
    assert remedy("KeyError: 'gate_proj'") == ""


def test_errors_on_one_line() -> None:
    assert one_line(ValueError("a\n  b")) == "a b"
    assert one_line(ValueError()) == "ValueError"
    assert len(one_line(ValueError("x" * 5000))) == 404

"""vLLM's OpenAI server with a gated checkpoint, by the command that README and docs give, asked over HTTP."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.support import ROOT

pytestmark = [pytest.mark.engine, pytest.mark.extended]

COMMAND = "python -m vllm.entrypoints.openai.api_server --model"
_LIMIT = 600.0  # seconds until the server answers, on a busy machine


def ask(port: int, path: str, body: dict[str, Any] | None = None) -> bytes:
    """The body of the server's answer. Raises OSError while nobody listens."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", data=data, headers={"Content-Type": "application/json"}
    )
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # this machine's own server: no proxy
    with direct.open(request, timeout=120) as answer:
        return answer.read()


def test_the_documented_command_serves_a_gated_checkpoint_over_http(tiny: Path, tmp_path: Path) -> None:
    for document in ("README.md", "docs/context-settings.md"):
        assert COMMAND in (ROOT / document).read_text(encoding="utf-8"), document
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    model = tiny / "headwise"  # its architecture's name is one that vLLM knows only by the plugin
    words = [sys.executable, *COMMAND.split()[1:], str(model), "--host", "127.0.0.1", "--port", str(port)]
    words += ["--dtype", "float32", "--enforce-eager", "--max-model-len", "512", "--served-model-name", "gated"]
    log = tmp_path / "server.log"
    with log.open("w") as out:
        server = subprocess.Popen(
            words, cwd=tmp_path, env={**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1"}, stdout=out, stderr=out,
            start_new_session=True,
        )  # fmt: skip
    try:
        until = time.monotonic() + _LIMIT
        while True:
            assert server.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < until, log.read_text()[-3000:]
            try:
                ask(port, "/health")
                break
            except (OSError, urllib.error.URLError):
                time.sleep(0.5)
        body = {"model": "gated", "prompt": [1, 2, 3, 4], "max_tokens": 4, "temperature": 0, "logprobs": 1}
        first, second = (json.loads(ask(port, "/v1/completions", body)) for _ in range(2))
        assert first["usage"] == second["usage"] == {**first["usage"], "prompt_tokens": 4, "completion_tokens": 4}
        assert first["choices"][0]["logprobs"]["tokens"] == second["choices"][0]["logprobs"]["tokens"]
        assert all(value < 0 for value in first["choices"][0]["logprobs"]["token_logprobs"])
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()

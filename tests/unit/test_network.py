"""Without a network, every host is asked once, quietly, and the network's error is said once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support import ROOT


def offline(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`gatedeval` as a machine without a network sees it: no host name can be resolved, and there is no cache."""
    code = (
        "import socket, sys\n"
        "asked = []\n"
        "def refuse(host, *rest, **options):\n"
        "    asked.append(host)\n"
        "    raise socket.gaierror(-2, 'Name or service not known')\n"
        "socket.getaddrinfo = refuse\n"
        "from harness.commands.main import cli\n"
        "try:\n"
        "    cli(sys.argv[1:], prog_name='gatedeval')\n"
        "finally:\n"
        "    print('asked', sorted(map(str, asked)), file=sys.stderr)\n"
    )
    proxies = {name for name in os.environ if name.lower().endswith("_proxy")}
    kept = {k: v for k, v in os.environ.items() if k not in proxies | {"GATEDEVAL_DATA", "HF_HUB_OFFLINE"}}
    env = {**kept, "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path), "HF_HOME": str(tmp_path)}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )


def test_a_plan_without_a_network_asks_every_host_once(tmp_path: Path) -> None:
    done = offline(tmp_path, "plan", "configs/table5.yaml")
    assert done.returncode == 2
    assert done.stderr.count("Name or service not known") == 1
    assert "Retry" not in done.stderr
    asked = done.stderr.rpartition("asked ")[2]
    hosts = [host.strip("[]' b\n") for host in asked.split(",")]
    assert len(hosts) == len(set(hosts)) >= 3, asked
    for name in ("PaulGrahamEssays.json", "dev-v2.0.json", "test.jsonl", "QwQZh/gated_attention"):
        assert name in done.stderr


def test_a_mistyped_tokenizer_is_one_line(tmp_path: Path) -> None:
    for name, words in {"Qwen/Qwen3-typo": "hub's cache", "no such tokenizer": "no hub id of the form"}.items():
        done = offline(tmp_path, "ruler", "generate", "vt", "--length", "4096", "--tokenizer", name)
        assert done.returncode == 2
        lines = [line for line in done.stderr.splitlines() if not line.startswith("asked")]
        assert len(lines) == 1
        assert lines[0].startswith(f"gatedeval: tokenizer {name}: no such folder or file")
        assert words in lines[0]

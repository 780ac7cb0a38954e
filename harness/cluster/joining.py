"""Finds a Ray cluster and connects this process to it, or starts one on this machine; errors are one line each."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import socket
import tempfile
from collections.abc import Iterator
from typing import Any

from harness.types import GatedevalError, first_line

NO_RAY = "a cluster needs Ray, which is not installed here: pip install 'gatedeval[ray]', or leave --cluster out"
_CONNECT_SECONDS = 5.0
_OBJECT_STORE = 1 << 30  # bytes of shared memory that a local Ray may use: batches of token ids pass through it


def check_address(address: str) -> None:
    """Refuse what can be refused without Ray and without a network.

    Raises:
        GatedevalError: Ray is not installed, or `address` is no address.
    """
    if importlib.util.find_spec("ray") is None:
        raise GatedevalError(NO_RAY)
    host, _, port = address.rpartition(":")
    if "://" in address:
        raise GatedevalError(
            f"--cluster {address}: give HOST:PORT, and start gatedeval on a node of the cluster; Ray's client (ray://)"
            " has no shared memory for prompts"
        )
    if address not in ("auto", "local") and not (host and port.isdigit() and 0 < int(port) < 65536):
        raise GatedevalError(f"--cluster {address}: write auto, local, none, or HOST:PORT such as 10.0.0.1:6379")


def import_ray() -> Any:
    """Ray, with our settings.

    Raises:
        GatedevalError: it is not installed.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's default, 15, leaves engines on a CPU behind all else
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise GatedevalError(f"{NO_RAY} ({first_line(error)})") from error
    return ray


def connect(ray: Any, address: str) -> None:
    """Connect to the cluster at `address`; "local" starts one on this machine, which ends with this process.

    Raises:
        GatedevalError: there is none.
    """
    if ray.is_initialized():
        raise GatedevalError("this process is connected to a Ray cluster already; call ray.shutdown() first")
    common = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": True}
    if address == "local":
        store = min(_OBJECT_STORE, _shared_memory() // 2)
        more: dict[str, Any] = {"include_dashboard": False, "object_store_memory": max(store, 80 * 2**20)}
    else:
        more = {}
        if address != "auto":
            _check_reachable(address)
    # Ray prints errors of its processes across the progress bars; the pool says in a line what matters. The name
    # is none of Ray's documented ones: without it the lines appear.
    if hasattr(ray._private.worker, "print_to_stdstream"):
        ray._private.worker.print_to_stdstream = lambda *arguments, **more: None
    with signals_kept(), _silent():
        try:
            ray.init(address, **common, **more)
        except (ConnectionError, ValueError, RuntimeError, OSError, TimeoutError) as error:
            with contextlib.suppress(Exception):
                ray.shutdown()
            if address == "auto":
                raise GatedevalError(
                    "--cluster auto: no Ray cluster runs on this machine, and RAY_ADDRESS names none; start one with"
                    " `ray start --head`, or use --cluster local"
                ) from error
            # Ray 2.60's `ray start` demands a token where the user has one, and its clients send it only if told so.
            token = "; a cluster that demands a token needs RAY_AUTH_MODE=token in this process's environment, too"
            raise GatedevalError(f"--cluster {address}: cannot connect to Ray: {first_line(error)}{token}") from error


def _check_reachable(address: str) -> None:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS) as connection:
            if os.environ.get("RAY_USE_TLS") != "1":
                _check_grpc(connection)
    except (OSError, OverflowError) as error:
        raise GatedevalError(
            f"--cluster {address}: no Ray cluster answers there ({first_line(error)}); `ray status` on its head node"
            " says where it is"
        ) from error


def _check_grpc(connection: socket.socket) -> None:
    """Raise OSError where the other side does not speak Ray's protocol, gRPC: Ray itself would try for minutes.

    HTTP/2 (RFC 9113, section 3.4): both sides begin with a SETTINGS frame, whose type, 4, is in its fourth byte.
    """
    connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0")
    if connection.recv(9)[3:4] != b"\4":
        raise OSError("what listens there is no Ray")


def _shared_memory() -> int:
    """Bytes that are free where Ray keeps its objects."""
    try:
        facts = os.statvfs("/dev/shm")
    except OSError:
        facts = os.statvfs(tempfile.gettempdir())
    return facts.f_bavail * facts.f_frsize


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Within this, what Ray's C++ code writes on descriptor 2 is lost: a line per second of trying."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


@contextlib.contextmanager
def signals_kept() -> Iterator[None]:
    """Within this, Ray may install its handlers of signals; afterwards ours are back (`harness.run.signals`)."""
    names = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {s: signal.getsignal(s) for s in names}
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # not the main thread: then Ray has installed none either
            for s, handler in before.items():
                signal.signal(s, handler)

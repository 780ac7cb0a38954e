"""Whether a host can be reached: one quiet attempt per host and process, instead of every library's own retries."""

from __future__ import annotations

import os
import socket
import sys
import urllib.error
import urllib.request
from urllib.parse import urlsplit

OUT_OF_REACH = "the host that has it cannot be reached"
"""What a message says about a file that cannot be fetched; `errors` says why, once for all of them."""
_TIMEOUT = 5.0  # seconds for the one attempt
_errors: dict[str, str] = {}  # host -> why it cannot be reached; empty where it can


class Unreachable(OSError):
    """The host of an address cannot be reached. The message has the network's error."""


def check_reachable(url: str) -> None:
    """Raise Unreachable where the host of `url` cannot be reached. The host is asked once per process."""
    host = urlsplit(url).netloc
    if host not in _errors:
        _errors[host] = _attempt(f"{urlsplit(url).scheme}://{host}/")
    if _errors[host]:
        raise Unreachable(f"{host} cannot be reached: {_errors[host]}")


def hub_is_reachable() -> bool:
    """Whether the hub answers. If not, this process stops asking it: its libraries then read their cache at once."""
    endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return False
    try:
        check_reachable(endpoint)
    except Unreachable:
        os.environ["HF_HUB_OFFLINE"] = "1"  # for libraries that are imported later, and for other processes
        for module in ("huggingface_hub.constants", "datasets.config"):  # they read the variable when imported
            if module in sys.modules:
                vars(sys.modules[module])["HF_HUB_OFFLINE"] = True
        return False
    return True


def errors() -> list[str]:
    """One sentence for each of the network's errors, with the hosts that it came from."""
    hosts: dict[str, list[str]] = {}
    for host, error in _errors.items():
        if error:
            hosts.setdefault(error, []).append(host)
    return [f"{', '.join(names)} cannot be reached: {error}" for error, names in hosts.items()]


def _attempt(url: str) -> str:
    """The network's error; empty where any server answers, whatever it says."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=_TIMEOUT):
            return ""
    except urllib.error.URLError as error:
        reason = error.reason
    except OSError as error:
        reason = error
    # A refused certificate or an odd answer is a server's: the library that asks for the file says more about it.
    return str(reason) if isinstance(reason, socket.gaierror | ConnectionError | TimeoutError) else ""

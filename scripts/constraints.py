"""Write constraints.txt: the exact versions in an environment whose checks have passed.

usage: .venv/bin/python scripts/constraints.py [FILE]      (default constraints.txt; `make constraints` calls this)

Versions only: no hosts, no paths. A local version label such as torch's `+cpu` is left out, because `torch==2.13.0` is
satisfied by 2.13.0 and by 2.13.0+cpu, whichever build scripts/install.sh has chosen.
"""

from __future__ import annotations

import platform
import re
import sys
from importlib.metadata import distributions
from pathlib import Path

NOT_OURS = {"gatedeval", "pip", "setuptools", "wheel"}
"""The project itself, and what every environment brings."""


def versions() -> dict[str, str]:
    """Normalised name -> public version of every installed distribution; the first on the path counts."""
    found: dict[str, str] = {}
    for distribution in distributions():
        name = re.sub(r"[-_.]+", "-", distribution.metadata["Name"]).lower()
        found.setdefault(name, distribution.version.partition("+")[0])
    return {name: found[name] for name in sorted(found) if name not in NOT_OURS}


def main(target: Path) -> None:
    """Write `target`."""
    head = (
        f"# Versions of the last green run (Python {platform.python_version()}); `make constraints` writes this file.\n"
    )
    lines = [f"{name}=={version}\n" for name, version in versions().items()]
    target.write_text(head + "".join(lines), encoding="utf-8")
    print(f"{target}: {len(lines)} versions")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "constraints.txt"))

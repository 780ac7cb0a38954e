"""The one name that gatedeval has on an installed system: its entry points, and where its modules are.

The project imports itself as `harness` and `tasks`. Those are common names: a folder `harness/` in the working
directory, or another package of that name, could be imported in their place. So they are not installed under these
names. A wheel has them inside this package; in a checkout they lie beside it. `activate()` binds both names to ours, or
fails.
"""

from __future__ import annotations

import os
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

_HERE = Path(__file__).resolve().parent

HOME = _HERE if (_HERE / "harness").is_dir() else _HERE.parent
"""The folder with harness/, tasks/, configs/ and results/reference/: this package in a wheel, else the checkout."""

NAMES = ("harness", "tasks")
"""The packages that are imported from `HOME` under these names."""

_ENGINE_OF = "GATEDEVAL_ENGINE_OF"  # harness.gated.watchdog.ENGINE_OF, which cannot be imported yet


class NotOurs(ImportError):
    """Another package of one of our names was imported first."""


def activate(names: tuple[str, ...] = NAMES) -> None:
    """Bind `names` to the packages in `HOME`, whatever is on `sys.path`. Idempotent; changes nothing else.

    Raises:
        NotOurs: the process has imported another package of that name. Both paths are in the message.
    """
    for name in names:
        folder = HOME / name
        module = sys.modules.get(name)
        if module is None:
            _load(name, folder)
            continue
        paths = [Path(p).resolve() for p in getattr(module, "__path__", [])]
        if paths != [folder]:
            where = ", ".join(map(str, paths)) or getattr(module, "__file__", None) or "an unknown place"
            raise NotOurs(
                f"gatedeval needs its own package {name!r} ({folder}), but this process has already imported another "
                f"{name!r} from {where}. Rename that one, or run gatedeval from another directory. To use vLLM without "
                "gatedeval's plugin, set VLLM_PLUGINS to the plugins that you want (empty for none)."
            )


def _load(name: str, folder: Path) -> None:
    spec = spec_from_file_location(name, folder / "__init__.py", submodule_search_locations=[str(folder)])
    if spec is None or spec.loader is None or not (folder / "__init__.py").is_file():
        raise NotOurs(f"gatedeval is not completely installed: {folder} has no __init__.py")
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


def _own_process() -> None:
    """`activate()` in a process that is gatedeval's own: processes that it spawns look in `HOME` first, too."""
    try:
        activate()
    except NotOurs as error:
        print(f"gatedeval: {error}", file=sys.stderr)
        sys.exit(2)
    if str(HOME) not in sys.path:
        sys.path.insert(0, str(HOME))


# --- entry points (pyproject.toml) ---------------------------------------------------------------------------------


def main() -> None:
    """The command `gatedeval`. Ends the process."""
    _own_process()
    from harness.commands.main import main as run

    run()


def lm_eval() -> None:
    """The command `lm_eval`: lm-eval's own, with `--model gatedeval`. lm-eval has no entry point for models."""
    _own_process()
    from harness.commands.lm_eval import main as run

    run()


def register() -> None:
    """vLLM's general plugin. vLLM calls it in every process, and does not swallow what it raises."""
    activate(("harness",))
    from harness.gated.plugin import register as run

    run()


def follow_parent() -> None:
    """vLLM's platform plugin, which is never the platform. vLLM calls it first of all while it is imported.

    vLLM swallows what it raises; `register` then fails for the same reason. Does nothing in processes that gatedeval
    did not start.
    """
    if os.environ.get(_ENGINE_OF):
        activate(("harness",))
        from harness.gated.watchdog import follow_parent as run

        run()

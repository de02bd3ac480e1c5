#!/usr/bin/env bash
# make-venv.sh PYTHON DIR: a virtual environment with pip in DIR, unless there is one already.
set -euo pipefail
python=$1 dir=$2

if ! command -v "$python" >/dev/null; then
    echo "agentkit needs Python 3.11 or newer and found no $python; name one: make PYTHON=/path/to/python3 ..." >&2
    exit 1
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "agentkit needs Python 3.11 or newer; $python is $("$python" --version 2>&1)" >&2
    exit 1
fi
[ -x "$dir/bin/pip" ] && exit 0

# Debian splits venv's pip off into a package of its own
if ! "$python" -c 'import ensurepip' 2>/dev/null; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        package="python$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv"
        echo "installing $package, which $python needs to make virtual environments" >&2
        { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q "$package"; } >&2
    else
        echo "$python cannot make virtual environments (no ensurepip); on Debian: apt-get install python3-venv" >&2
        exit 1
    fi
fi
"$python" -m venv "$dir"

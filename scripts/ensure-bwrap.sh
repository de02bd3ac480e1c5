#!/usr/bin/env bash
# Prints the sandbox that this machine can use, `bwrap` or `host`; first installs bubblewrap where that is possible.
# Everything else it says goes to stderr.
set -euo pipefail

works() { command -v bwrap >/dev/null && bwrap --ro-bind / / --dev /dev --proc /proc --unshare-pid true 2>/dev/null; }

if ! command -v bwrap >/dev/null && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "bubblewrap is missing: installing it with apt-get" >&2
    export DEBIAN_FRONTEND=noninteractive
    { apt-get install -y -q bubblewrap || { apt-get update -q && apt-get install -y -q bubblewrap; }; } >&2 || true
fi
if works; then
    echo bwrap
    exit 0
fi

if command -v bwrap >/dev/null; then
    why="bubblewrap is installed but cannot make a sandbox here (are user namespaces allowed?)"
else
    why="bubblewrap is missing; install it as root: apt-get install bubblewrap   (or: dnf install bubblewrap)"
fi
cat >&2 <<BANNER
##############################################################################
#  NO ISOLATION: falling back to the sandbox back end 'host'.                #
#  Commands of the agent run as you, on this machine, with your files.       #
##############################################################################
$why
BANNER
echo host

#!/usr/bin/env bash
# Makes a small Debian with python3 and git from the packages of this machine's own mirror, and puts it into podman.
# Prints the image's name and, on a second line, the directory with the same files (for a rootfs). A second call takes a
# moment: the directory is kept. Needs root, debootstrap and podman.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
podman=${AGENTKIT_PODMAN:-$here/../../../scripts/podman-here.sh}
cache=${AGENTKIT_RIG_CACHE:-/var/cache/agentkit-rig}
suite=bookworm
image=localhost/agentkit-rig:$suite
root=$cache/$suite

mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
if [ ! -d "$root" ]; then
    mirror=$(awk '/^URIs:/ { print $2; exit } /^deb / { for (i = 2; i <= NF; i++) if ($i ~ /^http/) { print $i; exit } }' \
        $(ls /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list 2>/dev/null))
    rm -rf "$root.making"
    debootstrap --variant=minbase --include=python3,git,ca-certificates "$suite" "$root.making" "$mirror" >&2
    rm -rf "$root.making"/var/cache/apt/archives/*.deb "$root.making"/var/lib/apt/lists/*
    mkdir "$root.making/testbed"
    mv "$root.making" "$root"
fi
if ! "$podman" image exists "$image" 9>&-; then
    tar -C "$root" -c . | "$podman" import --change 'ENV PATH=/opt/tools/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' \
        --change 'ENV FROM_THE_IMAGE=yes' - "$image" >&2 9>&-
fi
echo "$image"
echo "$root"

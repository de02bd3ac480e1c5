#!/usr/bin/env bash
# Prints the podman command that starts containers on this machine; first installs podman, and what the tests make
# their image with, where that is possible. Everything else it says goes to stderr; fails where no container starts.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

missing=()
for program in podman crun debootstrap; do
    command -v "$program" >/dev/null || [ -x "/usr/sbin/$program" ] || missing+=("$program")
done
if [ ${#missing[@]} -gt 0 ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "missing: ${missing[*]}; installing with apt-get" >&2
    export DEBIAN_FRONTEND=noninteractive
    { apt-get install -y -q "${missing[@]}" || { apt-get update -q && apt-get install -y -q "${missing[@]}"; }; } >&2 || true
fi
if ! command -v podman >/dev/null; then
    echo "podman is missing; install it as root: apt-get install podman crun debootstrap   (or: dnf install podman)" >&2
    exit 1
fi

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mounts=()
for name in usr bin lib lib64; do
    mkdir "$root/$name"
    [ -e "/$name" ] && mounts+=(--volume "/$name:/$name:ro")
done
for podman in podman "$here/podman-here.sh"; do
    if "$podman" run --rm --network none --log-driver none "${mounts[@]}" --rootfs "$root:O" /bin/true 2>"$root.said"; then
        rm -f "$root.said"
        echo "$podman"
        exit 0
    fi
done
echo "no container starts here: $(tail -3 "$root.said")" >&2
rm -f "$root.said"
exit 1

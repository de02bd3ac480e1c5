#!/usr/bin/env bash
# podman for machines on which crun refuses to start containers, in any number of calls:
#
#     scripts/podman-here.sh run --rm debian true       # as podman; or name it as the `command` of a back end
#
# Two refusals are cured, and only where they are found. "cgroups in hybrid mode not supported": podman runs in a mount
# namespace of its own in which the cgroup v2 mount of the hybrid hierarchy is hidden; all calls share that one namespace,
# for containers started in one cannot be seen from another. "setrlimit: Operation not permitted": a containers.conf asks
# for limits that need no CAP_SYS_RESOURCE. The namespace is kept by a mount below $state, not by a process; it goes with
# `scripts/podman-here.sh --forget`.
set -euo pipefail

state=${AGENTKIT_PODMAN_STATE:-/run/agentkit-podman}
hybrid=/sys/fs/cgroup/unified

if [ "${1-}" = --forget ]; then
    umount "$state/namespace" 2>/dev/null || true
    umount "$state" 2>/dev/null || true
    rm -rf "$state"
    exit 0
fi
[ "$(id -u)" = 0 ] || exec podman "$@"

mkdir -p "$state"
if [ ! -e "$state/ready" ] || { [ -e "$state/namespace" ] && ! nsenter --mount="$state/namespace" true 2>/dev/null; }; then
    exec 9>"$state.lock"
    flock 9
    if [ ! -e "$state/ready" ] || { [ -e "$state/namespace" ] && ! nsenter --mount="$state/namespace" true 2>/dev/null; }; then
        rm -f "$state/ready"
        if ! capsh --has-p=cap_sys_resource 2>/dev/null; then
            printf '[containers]\ndefault_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]\n' >"$state/containers.conf"
        fi
        if mountpoint -q "$hybrid"; then # a mount namespace can only be kept below a private mount
            mountpoint -q "$state" || { mount --bind "$state" "$state" && mount --make-private "$state"; }
            touch "$state/namespace"
            unshare --mount="$state/namespace" --propagation private umount "$hybrid"
        fi
        touch "$state/ready"
    fi
    exec 9>&-
fi
if [ -e "$state/containers.conf" ]; then
    export CONTAINERS_CONF=$state/containers.conf
fi
if [ -e "$state/namespace" ]; then
    exec nsenter --mount="$state/namespace" podman "$@"
fi
exec podman "$@"

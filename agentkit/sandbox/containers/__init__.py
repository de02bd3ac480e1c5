"""Sandboxes in containers: podman, docker, apptainer. One guest runs the programs of all of them."""

from agentkit.sandbox.containers.podman import PodmanBackend as PodmanBackend
from agentkit.sandbox.containers.docker import DockerBackend as DockerBackend
from agentkit.sandbox.containers.apptainer import ApptainerBackend as ApptainerBackend
from agentkit.sandbox.containers.doctor import Obstacle as Obstacle
from agentkit.sandbox.containers.doctor import obstacles as obstacles

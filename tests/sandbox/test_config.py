"""A sandbox from a mapping: what it makes, and one error that names all that is wrong."""

from pathlib import Path

import pytest
from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st

from agentkit.errors import ConfigError
from agentkit.protocols import Allow, Capabilities, Limits, Sandbox, SandboxSpec
from agentkit.sandbox import HostBackend, sandbox_from


@frozen
class Region:
    name: str
    zone: int = 1


class CloudBackend:
    """A back end of a user's own."""

    capabilities = Capabilities(
        isolated=True,
        image=True,
        networks=frozenset({"none", "host", "allow"}),
        limits=frozenset({"cpus", "memory_bytes"}),
    )

    def __init__(
        self, *, url: str, token: str = "", retries: int = 3, region: Region | None = None, wait_s: float = 1.0
    ) -> None:
        if retries < 0:
            raise ConfigError(f"retries must be at least 0, found {retries!r}")
        self.given = (url, token, retries, region, wait_s)

    async def start(self, spec: SandboxSpec, /) -> Sandbox:
        raise NotImplementedError


CLOUD = f"{__name__}:CloudBackend"


def cloud(**keys: object) -> dict[str, object]:
    return {"type": CLOUD, "url": "http://x", **keys}


def test_spec_and_options_lie_side_by_side(tmp_path: Path):
    made = sandbox_from({"type": "host", "cwd": "/there", "directory": str(tmp_path), "env": {"A": "b"}})
    assert made.type == "host"
    assert isinstance(made.backend, HostBackend)
    assert made.spec == SandboxSpec(cwd="/there", env={"A": "b"})


def test_every_kind_of_value():
    made = sandbox_from(
        cloud(
            retries=5,
            region={"name": "eu", "zone": 2},
            wait_s=2,
            image="debian:12",
            network={"allow": ["packages.example.com"]},
            limits={"cpus": 1, "memory_bytes": 1024},
            lifetime_s=60,
            labels={"team": "a"},
            read_limit_bytes=10,
        )
    )
    assert made.backend.given == ("http://x", "", 5, Region("eu", 2), 2.0)  # type: ignore[attr-defined]
    assert made.spec == SandboxSpec(
        image="debian:12",
        network=Allow(("packages.example.com",)),
        limits=Limits(cpus=1.0, memory_bytes=1024),
        lifetime_s=60.0,
        labels={"team": "a"},
        read_limit_bytes=10,
    )


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "sandbox has no type: it must be one of "),
        ({"type": 3}, "sandbox has the type 3: "),
        ({"type": "bwrp"}, "sandbox.type is 'bwrp', which is no type of sandbox: did you mean 'bwrap'?"),
        ({"type": "no.such:Thing"}, "sandbox.type is 'no.such:Thing', and no.such:Thing cannot be imported"),
        ({"type": "json:loads"}, "sandbox.type is 'json:loads', and json:loads is no class but function"),
        (cloud(ulr="x"), "sandbox.ulr is no key of a sandbox of this type: did you mean 'url'?"),
        (cloud(snapshot="x"), "sandbox.snapshot is no key of a sandbox of this type"),
        ({"type": CLOUD}, "sandbox.url is missing"),
        (cloud(limits={"memry_bytes": 1}), "sandbox.limits.memry_bytes is no key"),
        (cloud(limits={"cpus": 0}), "sandbox.limits.cpus must be greater than 0, found 0"),
        (cloud(limits={"cpus": "2"}), "sandbox.limits.cpus must be a number, found '2'"),
        (cloud(limits={"disk_bytes": 2}), "sandbox.limits.disk_bytes cannot be kept by"),
        (cloud(region={"name": "eu", "zone": "b"}), "sandbox.region.zone must be a whole number, found 'b'"),
        (cloud(retries=1.5), "sandbox.retries must be a whole number, found 1.5"),
        (cloud(retries=True), "sandbox.retries must be a whole number, found True"),
        (cloud(retries=-1), "sandbox: retries must be at least 0, found -1"),
        (cloud(network="lan"), "sandbox.network must be none, host or {allow: [names of hosts]}, found 'lan'"),
        (cloud(network={"allow": ["a b"]}), "sandbox.network.hosts holds names of hosts, found 'a b'"),
        (cloud(env={"A": 1}), "sandbox.env.A must be a string, found 1"),
        (cloud(lifetime_s=0), "sandbox.lifetime_s must be greater than 0"),
        (cloud(rootfs="/x"), "sandbox.rootfs is nothing that"),
        ({"type": "host", "limits": {"cpus": 1}}, "sandbox.limits.cpus cannot be kept by host sandboxes here"),
        ({"type": "host", "read_only": [["/a", "/b"], ["/a", 3]]}, "sandbox.read_only[1][1] must be a string, found 3"),
    ],
)
def test_what_is_wrong_is_named_with_its_path(config: dict[str, object], message: str):
    with pytest.raises(ConfigError) as caught:
        sandbox_from(config)
    assert str(caught.value).startswith(message)


def test_all_that_is_wrong_is_told_at_once():
    with pytest.raises(ConfigError) as caught:
        sandbox_from(cloud(retries="x", limits={"cpus": "y", "memory": 1}), path="env.sandbox")
    lines = str(caught.value).splitlines()
    assert [line.split()[0] for line in lines] == [
        "env.sandbox.retries",
        "env.sandbox.limits.cpus",
        "env.sandbox.limits.memory",
    ]


def test_no_secret_is_repeated():
    with pytest.raises(ConfigError) as caught:
        sandbox_from(cloud(token=["hunter2"]))
    assert str(caught.value) == "sandbox.token must be a string, found list"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from(["cwd", "env", "network", "limits", "labels", "lifetime_s", "image", "url", "region", "retries"])


@given(st.dictionaries(KEYS | st.text(max_size=6), JSON, max_size=5))
def test_any_mapping_is_a_sandbox_or_one_clear_error(config: dict[str, object]):
    told = "sandbox"
    try:
        sandbox_from({"type": CLOUD, **config})
    except ConfigError as error:
        told = str(error)
    assert told.startswith("sandbox")


@pytest.mark.parametrize("kind", [":x", ".relative:Back", "..:x", "builtins:int", "x\0y:z", "a:b:c"])
def test_a_type_that_is_no_class_is_one_error_with_its_path(kind: str):
    with pytest.raises(ConfigError, match=r"^box\.type is "):
        sandbox_from({"type": kind}, path="box")

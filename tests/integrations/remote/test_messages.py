import json
from typing import Any

import attrs
import pytest
from agentkit_remote.messages import (
    Fields,
    capabilities_from_json,
    capabilities_to_json,
    error_from_json,
    error_to_json,
    result_from_json,
    result_to_json,
    spec_from_json,
    spec_to_json,
)
from hypothesis import given
from hypothesis import strategies as st

from agentkit.errors import AgentkitError, ConfigError, InvariantError, SandboxDead, SandboxError
from agentkit.protocols import Allow, Capabilities, ExecResult, Limits, SandboxSpec

NAMES = st.text(st.characters(exclude_characters="=\0", exclude_categories=["Cs"]), min_size=1, max_size=5)
TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)
POSITIVE = st.integers(1, 2**62)
SPECS = st.builds(
    SandboxSpec,
    cwd=TEXTS,
    env=st.dictionaries(NAMES, TEXTS, max_size=3),
    network=st.sampled_from(["none", "host", Allow(("a.org", "*.b.org")), Allow(())]),
    read_only=st.lists(st.tuples(TEXTS, TEXTS), max_size=2).map(tuple),
    read_limit_bytes=st.integers(0, 2**40),
    image=st.none() | TEXTS,
    rootfs=st.none() | TEXTS,
    limits=st.builds(
        Limits,
        cpus=st.none() | st.floats(0.01, 1e4),
        memory_bytes=st.none() | POSITIVE,
        processes=st.none() | POSITIVE,
        disk_bytes=st.none() | POSITIVE,
    ),
    lifetime_s=st.none() | st.floats(0.001, 1e6),
    labels=st.dictionaries(TEXTS, TEXTS, max_size=2),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


def across(body: dict[str, Any]) -> Fields:
    return Fields(json.loads(json.dumps(body)))


@given(SPECS)
def test_a_spec_arrives_as_it_was(spec: SandboxSpec) -> None:
    assert spec_from_json(across(spec_to_json(spec))) == spec


def test_no_field_of_a_spec_is_forgotten() -> None:
    assert set(spec_to_json(SandboxSpec())) == {one.name for one in attrs.fields(SandboxSpec)} - {"snapshot"}


@given(SPECS, st.sampled_from([one.name for one in attrs.fields(SandboxSpec)]), JSON)
def test_a_spoilt_spec_is_refused_or_is_one(spec: SandboxSpec, name: str, value: Any) -> None:
    body = spec_to_json(spec) | {name: value}
    try:
        made = spec_from_json(across(body))
    except (SandboxError, ConfigError):
        return
    assert spec_from_json(across(spec_to_json(made))) == made


@given(
    st.builds(
        Capabilities,
        isolated=st.booleans(),
        image=st.booleans(),
        networks=st.frozensets(st.text(max_size=3)),
        limits=st.frozensets(st.text(max_size=3)),
        lifetime=st.booleans(),
        snapshots=st.booleans(),
    )
)
def test_capabilities_arrive_as_they_were(capabilities: Capabilities) -> None:
    assert capabilities_from_json(across(capabilities_to_json(capabilities))) == capabilities


@given(st.builds(ExecResult, st.integers(0, 255), st.binary(), st.integers(0, 2**40), st.booleans(), st.booleans()))
def test_results_arrive_as_they_were(result: ExecResult) -> None:
    assert result_from_json(across(result_to_json(result)), result.output) == result


@pytest.mark.parametrize(
    ("error", "kind", "retryable"),
    [
        (SandboxDead("gone"), SandboxDead, False),
        (SandboxError("later", retryable=True), SandboxError, True),
        (SandboxError("never"), SandboxError, False),
        (ConfigError("cwd"), ConfigError, None),
        (InvariantError("a bug"), SandboxError, False),
        (SandboxError("x" * 100_000), SandboxError, False),
    ],
)
def test_errors_keep_their_kind(error: AgentkitError, kind: type[AgentkitError], retryable: bool | None) -> None:
    got = error_from_json(across(error_to_json(error)))
    assert type(got) is kind
    assert str(error).startswith(str(got))
    assert len(str(got)) <= 4000
    assert getattr(got, "retryable", None) is retryable


@given(st.dictionaries(st.sampled_from(["a", "b"]), JSON), st.sampled_from(["a", "b"]))
def test_a_field_is_what_was_asked_for_or_refused(body: dict[str, Any], name: str) -> None:
    fields = Fields(body)
    wanted: list[tuple[Any, Any]] = [
        (fields.text, str),
        (fields.optional_text, str | None),
        (fields.flag, bool),
        (fields.whole, int),
        (fields.seconds, float | None),
        (fields.texts, tuple),
        (fields.table, dict),
        (fields.pairs, tuple),
    ]
    for ask, kind in wanted:
        said = ""
        try:
            assert isinstance(ask(name), kind)
        except SandboxError as error:
            said = str(error)
        assert not said or (name in said and len(said) < 200)
    whole = body.get(name)
    if isinstance(whole, bool) or (isinstance(whole, int) and whole < 0):
        with pytest.raises(SandboxError):
            fields.whole(name)

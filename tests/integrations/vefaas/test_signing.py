"""The signature, against Volcengine's own signer, and what is never shown."""

import re
from datetime import UTC, datetime

import pytest
from agentkit_vefaas.signing import Credentials, signed
from hypothesis import given
from hypothesis import strategies as st
from volcenginesdkcore import signv4

from agentkit.errors import ConfigError

NAMES = st.text("abcXYZ019-_.~ /+&=é漢", min_size=1, max_size=12)
KEYS = st.text("abcXYZ0189+/=", min_size=1, max_size=40)


@given(
    body=st.text(max_size=80),
    query=st.dictionaries(NAMES, st.text(max_size=12).filter(lambda text: text.isprintable()), max_size=4),
    keys=st.tuples(KEYS, KEYS, st.one_of(st.just(""), KEYS)),
    host=st.sampled_from(["open.volcengineapi.com", "127.0.0.1:8123"]),
    now=st.datetimes(datetime(2020, 1, 1), datetime(2035, 1, 1)),
)
def test_it_is_the_signature_of_the_vendor(
    body: str, query: dict[str, str], keys: tuple[str, str, str], host: str, now: datetime
) -> None:
    access, secret, session = keys
    ours = signed(
        body.encode(),
        host=host,
        query=query,
        region="cn-beijing",
        credentials=Credentials(access, secret, session),
        now=now.replace(tzinfo=UTC),
    )

    class At(datetime):
        @classmethod
        def utcnow(cls) -> datetime:
            return now

    theirs = {"Content-Type": "application/json", "Host": host}
    before, signv4.datetime.datetime = signv4.datetime.datetime, At
    try:
        signv4.SignerV4.sign(
            "/", "POST", theirs, body, {}, query, access, secret, "cn-beijing", "vefaas", session or None
        )
    finally:
        signv4.datetime.datetime = before
    assert ours == theirs


def test_secrets_are_not_shown() -> None:
    credentials = Credentials("the-access-key", "the-secret-key", "the-session-token")
    assert "the-" not in repr(credentials)
    with pytest.raises(ConfigError, match="VOLCENGINE_SECRET_KEY"):
        Credentials.found({"VOLCENGINE_ACCESS_KEY": "only"})
    found = Credentials.found({"VOLCENGINE_ACCESS_KEY": "a", "VOLCENGINE_SECRET_KEY": "b"})
    assert re.fullmatch(r"Credentials\(\)", repr(found))

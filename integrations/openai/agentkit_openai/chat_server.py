"""What a chat server says about itself before the first question: is the model there, and how long is its window."""

import logging
from collections.abc import Mapping
from typing import Any, cast

import anyio

from agentkit.errors import ConfigError, ModelError
from agentkit_openai.faults import Refused, plain
from agentkit_openai.transport import Transport

_LOG = logging.getLogger(__name__)
_STRICT_OWNERS = frozenset({"vllm", "sglang"})
"""Servers that answer to the names they list and to no other; the rest have aliases, or do not look at the name."""
_STARTING = frozenset({0, 429, 502, 503, 504})
_PAUSE_S = 0.5


async def find_window(transport: Transport, model: str, *, startup_s: float) -> int | None:
    """How many tokens the context of `model` holds, once the server is up; None where the server does not say.

    Raises:
        ConfigError: the server does not serve `model`; the message lists what it serves.
        ModelError: no answer within `startup_s`, or the server does not let us in.
    Cancellation: nothing is left open.
    """
    deadline = anyio.current_time() + startup_s
    while True:
        try:
            return window_of(await transport.get("models", timeout_s=max(1.0, startup_s)), model)
        except ModelError as error:
            status = error.status if isinstance(error, Refused) else 0
            if status in (401, 403):
                raise
            if status not in _STARTING or not error.retryable:  # a server without a list of its models
                _LOG.debug("no list of models: %s", error)
                return None
            if anyio.current_time() + _PAUSE_S >= deadline:
                raise ModelError(f"the server was not up within {startup_s:g} s: {error}") from error
        await anyio.sleep(_PAUSE_S)


def window_of(reply: Mapping[str, Any], model: str) -> int | None:
    """The window of `model` in a list of models, or None if it is not said.

    Raises:
        ConfigError: the list is of a server that serves nothing else, and `model` is not in it.
    """
    listed: object = reply.get("data")
    rows = cast("list[object]", listed) if isinstance(listed, list) else []
    cards = [cast("Mapping[str, Any]", card) for card in rows if isinstance(card, dict)]
    card = next((card for card in cards if card.get("id") == model), None)
    if card is None:
        names = ", ".join(repr(plain(str(each.get("id")), limit=80)) for each in cards[:20]) or "none"
        if any(each.get("owned_by") in _STRICT_OWNERS for each in cards):
            raise ConfigError(
                f"the server does not serve the model {model!r}, it serves {names}: pass one of these as model, or "
                f"start the server with --served-model-name {model}"
            )
        if cards:
            _LOG.info("the model %r is not among those the server lists: %s", model, names)
        return None
    window: object = card.get("max_model_len")
    return window if isinstance(window, int) and not isinstance(window, bool) and window > 0 else None

"""What a chat server says about itself before the first question: is the model there, and how long is its window."""

import logging
from collections.abc import Mapping
from typing import Any, cast

from agentkit.errors import ConfigError
from agentkit_openai.capabilities import check_served, listed_models
from agentkit_openai.transport import Transport

_LOG = logging.getLogger("agentkit_openai")
_STRICT_OWNERS = frozenset({"vllm", "sglang"})
"""Servers that answer to the names they list and to no other; the rest have aliases, or do not look at the name."""


async def find_window(transport: Transport, model: str, *, startup_s: float) -> int | None:
    """How many tokens the context of `model` holds, once the server is up; None where the server does not say.

    Raises:
        ConfigError: the server does not serve `model`, or does not accept the api_key.
        ModelError: no answer within `startup_s`.
    Cancellation: nothing is left open.
    """
    models = await listed_models(transport, startup_s=startup_s)
    return window_of(models, model, base_url=transport.base_url)


def window_of(models: list[Mapping[str, Any]] | None, model: str, *, base_url: str) -> int | None:
    """The window of `model` in a list of models, or None if it is not said.

    Raises:
        ConfigError: the list is of a server that serves nothing else, and `model` is not in it.
    """
    try:
        entry = check_served(models, model, base_url=base_url)
    except ConfigError as error:
        if models and all(each.get("owned_by") not in _STRICT_OWNERS for each in models):
            _LOG.info("%s; asking for it all the same", error)
            return None
        raise
    meta: object = entry.get("meta")  # of llama.cpp
    window: object = entry.get("max_model_len")
    if window is None and isinstance(meta, dict):
        window = cast("Mapping[str, object]", meta).get("n_ctx")
    return window if isinstance(window, int) and not isinstance(window, bool) and window > 0 else None

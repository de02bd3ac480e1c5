"""Text as a policy would have sampled it: control tokens as such, and log-probabilities that tell positions apart."""

import re
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from agentkit.errors import ConfigError, NotAppendable
from agentkit.protocols.messages import Message, assistant, user
from agentkit.protocols.tokens import Renderer, Tokenizer


@runtime_checkable
class HasTokenizer(Protocol):
    """A renderer whose tokenizer can be asked for."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer."""
        ...


@runtime_checkable
class HasClose(Protocol):
    """A renderer that knows what a turn ends with."""

    @property
    def close_id(self) -> int | None:
        """The id, None where there is none."""
        ...


def tokenizer_of(renderer: Renderer) -> Tokenizer:
    """The tokenizer of `renderer`.

    Raises:
        ConfigError: the renderer does not show one.
    """
    if not isinstance(renderer, HasTokenizer):
        raise ConfigError(f"a scripted model needs a renderer with a tokenizer, {type(renderer).__name__} has none")
    return renderer.tokenizer


def sampled_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of `text`, every control token's text being that token: what a policy means when it samples it."""
    control = tokenizer.control
    if not control:
        return list(tokenizer.encode(text))
    longest_first = sorted(control, key=len, reverse=True)
    ids: list[int] = []
    for piece in re.split(f"({'|'.join(map(re.escape, longest_first))})", text):
        ids += [control[piece]] if piece in control else tokenizer.encode(piece) if piece else []
    return ids


def stop_id_of(renderer: Renderer) -> int:
    """The stop id with which this renderer's policy ends a turn: the one a turn that was cut off is closed with.

    Raises:
        ConfigError: the renderer has no stop ids.
    """
    if not renderer.stop_ids:
        raise ConfigError("a scripted model needs a renderer with stop ids, found none")
    close_id = renderer.close_id if isinstance(renderer, HasClose) else None
    if close_id in renderer.stop_ids and close_id is not None:
        return close_id
    turn: tuple[Message, Sequence[Message]] = (assistant("a"), [user("b")])
    try:
        close, rest = renderer.bridge(*turn, (), sampled=())
    except NotAppendable:  # a template that rewrites what is in a chain has stops all the same
        close, rest = (), ()
    return next((each for each in (*close, *rest) if each in renderer.stop_ids), min(renderer.stop_ids))


def position_logprob(position: int, token_id: int) -> float:
    """A log-probability between -2 and -1, exact in float32, that no other of 127 positions in a row shares."""
    return -1.0 - (position * 37 % 127) / 128.0 - (token_id % 64) / 8192.0

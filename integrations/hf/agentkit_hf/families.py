"""Which family a tokenizer and its chat template belong to, found out by asking the template how it ends a turn."""

from collections.abc import Sequence

from agentkit.errors import ConfigError
from agentkit.protocols import ChatTemplate, Tokenizer, assistant, user
from agentkit.tokens import GLM, LLAMA3, QWEN, Family

FAMILIES: tuple[Family, ...] = (QWEN, LLAMA3, GLM)
"""The families that are told apart by themselves, the first that fits being taken; all of ChatML ends turns as QWEN."""

_SAID = "probe said"
_CONVERSATION = (user("probe asked"), assistant(_SAID), user("probe asked more"))


def find_family(tokenizer: Tokenizer, template: ChatTemplate, *, families: Sequence[Family] = FAMILIES) -> Family:
    """The first of `families` whose turns end as this template ends them.

    Raises:
        ConfigError: the template refuses a plain conversation, or none of `families` fits; the message says which
            `Family` would.
    """
    ending = _ending(tokenizer, template)
    for family in families:
        if ending == family.close or (family.stop_is_header and ending in family.stops):
            return family
    known = ", ".join(repr(family.name) for family in families)
    if ending is None:
        raise ConfigError(
            f"the chat template writes no control token after a turn, so nothing tells where one ends (known families: "
            f"{known}): give a chat_template whose turns end with a control token"
        )
    raise ConfigError(
        f"the chat template ends a turn with {ending!r}, which no known family does ({known}): pass "
        f"family=Family(name=..., stops=({ending!r},), close={ending!r}), or one with stop_is_header=True where that "
        "token opens the next turn"
    )


def family_named(name: str, *, families: Sequence[Family] = FAMILIES) -> Family:
    """The family of that name.

    Raises:
        ConfigError: there is none; the message lists them.
    """
    for family in families:
        if family.name == name:
            return family
    known = ", ".join(["'auto'", *(repr(family.name) for family in families)])
    raise ConfigError(f"family must be one of {known}, or a Family, found {name!r}")


def _ending(tokenizer: Tokenizer, template: ChatTemplate) -> str | None:
    """The first control token that the template writes after an assistant's turn."""
    try:
        rendered = template(_CONVERSATION, (), generation_prompt=True)
    except Exception as error:  # the template is the user's code, and refuses in its own words
        raise ConfigError(
            f"the chat template refuses a plain conversation (user, assistant, user): {type(error).__name__}: {error}"
        ) from error
    _, found, rest = rendered.partition(_SAID)
    if not found:
        raise ConfigError("the chat template does not write what an assistant message says")
    places = [(rest.find(text), -len(text), text) for text in tokenizer.control if text in rest]
    return min(places)[2] if places else None

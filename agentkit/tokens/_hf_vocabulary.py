"""Copies of a fast tokenizer that know no control token: whatever a text says, it stays text."""

import json
from collections.abc import Collection
from typing import Any

from agentkit.errors import ConfigError


def without_control(module: Any, backend: Any, texts: Collection[str], *, keeps_others: bool) -> tuple[Any, Any]:
    """Two copies of `backend` without the added tokens `texts`: one for the start of a text, one for the rest.

    They are the same one unless the tokenizer gives a dummy space to the start alone. `keeps_others` says that there
    are further added tokens, which stay.
    """
    listed = {text for text in texts if backend.model.token_to_id(text) is not None}
    description = json.loads(backend.to_str()) if listed or keeps_others else None
    if description is not None and (keeps_others or _can_be_reached(description["model"], listed)):
        description["added_tokens"] = [each for each in description["added_tokens"] if each["content"] not in texts]
        description["post_processor"] = description["truncation"] = description["padding"] = None
        _forget(description["model"], set(texts))
        start = module.Tokenizer.from_str(json.dumps(description))
        _check_characters(start.model, listed)
    else:  # the vocabulary can be shared, and need not be read again, which takes seconds
        start = module.Tokenizer(backend.model)
        for part in ("normalizer", "pre_tokenizer", "decoder"):
            if (found := getattr(backend, part)) is not None:
                setattr(start, part, found)
    return start, _behind_control(module, start)


def _behind_control(module: Any, start: Any) -> Any:
    """`start` as it encodes what is not the start of a text."""
    frame = module.Tokenizer(module.models.BPE())
    if start.pre_tokenizer is None:
        return start
    frame.pre_tokenizer = start.pre_tokenizer
    description = json.loads(frame.to_str())
    if not _drop_the_dummy_space(description["pre_tokenizer"]):
        return start
    rest = module.Tokenizer(start.model)
    if start.normalizer is not None:
        rest.normalizer = start.normalizer
    rest.pre_tokenizer = module.Tokenizer.from_str(json.dumps(description)).pre_tokenizer
    return rest


def _drop_the_dummy_space(pre_tokenizer: dict[str, Any]) -> bool:
    """Whether only the start of a text gets a dummy space; if so, `pre_tokenizer` no longer gives it one."""
    found = False
    for part in [pre_tokenizer, *pre_tokenizer.get("pretokenizers", ())]:
        if part.get("type") == "Metaspace" and part.get("prepend_scheme") == "first":
            part["prepend_scheme"] = "never"
            found = True
    return found


def _can_be_reached(model: dict[str, Any], listed: set[str]) -> bool:
    """Whether plain text can become one of these entries of the vocabulary."""
    if model["type"] != "BPE" or model.get("ignore_merges") or any(len(text) == 1 for text in listed):
        return True
    return any(_merged(pair) in listed for pair in model["merges"])


def _merged(pair: Any) -> str:
    return "".join(pair.split(" ") if isinstance(pair, str) else pair)


def _parts(pair: Any) -> tuple[str, ...]:
    """A merge: the two pieces, and what they become."""
    one, other = pair.split(" ") if isinstance(pair, str) else pair
    return one, other, one + other


def _check_characters(model: Any, listed: Collection[str]) -> None:
    """What is left must still spell every character."""
    unknown = model.token_to_id(getattr(model, "unk_token", None) or "")
    for text in sorted(each for each in listed if len(each) == 1):
        spelt = [token.id for token in model.tokenize(text)]
        if not spelt or unknown in spelt:
            raise ConfigError(
                f"control token {text!r} is also the only piece that spells this character in plain text, which would "
                "be lost: leave it out of the added tokens"
            )


def _forget(model: dict[str, Any], texts: set[str]) -> None:
    """Take `texts` out of the ordinary vocabulary, where some tokenizers list their control tokens too."""
    vocabulary = model["vocab"]
    unknown = model.get("unk_token")
    if isinstance(vocabulary, list):  # Unigram: an id is a place in the list, so nothing may move
        for place, (piece, _) in enumerate(vocabulary):
            if piece in texts and place != model.get("unk_id"):
                vocabulary[place] = [f"\U0010fffd{place}", -1e9]
        return
    listed = texts.intersection(vocabulary)
    for text in listed - {unknown}:
        del vocabulary[text]
    if listed and "merges" in model:
        model["merges"] = [pair for pair in model["merges"] if not listed.intersection(_parts(pair))]

"""The vocabulary of a fast tokenizer, in the form it is saved in, without its control tokens."""

from typing import Any


def forget(model: dict[str, Any], texts: set[str]) -> None:
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
        model["merges"] = [
            pair
            for pair in model["merges"]
            if "".join(pair.split(" ") if isinstance(pair, str) else pair) not in listed
        ]

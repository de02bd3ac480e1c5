"""What a generation says, where an engine ended it inside a token."""


def until_stop(text: str, stop: str, *, settled: int = 0) -> str:
    r"""`text` up to the end of the stop string that ended it, and all of it where `stop` is not there.

    A stop string often ends in the middle of a token, whose whole id is sampled and kept: `</answer>` in `>\n`. So the
    text of the ids goes on behind it, by as much as the token does, or as the step that sampled several at once. An
    occurrence that ends within the first `settled` characters did not end the generation.
    """
    at = text.find(stop, max(settled - len(stop) + 1, 0)) if stop else -1
    return text if at < 0 else text[: at + len(stop)]

"""Media on their way to a model: images opened once, and prompts as servers want them that expand media themselves."""

from collections import OrderedDict
from collections.abc import Sequence
from io import BytesIO
from typing import Any

from agentkit.errors import ConfigError
from agentkit.extras import require
from agentkit.protocols.media import MediaError, Medium, Placed, PlacesMedia
from agentkit.protocols.messages import Message
from agentkit.protocols.trajectory import Trajectory


class Images:
    """Images as Pillow opens them: upright, in RGB. The last used are kept, up to `limit_bytes` of pixels."""

    def __init__(self, *, limit_bytes: int = 512 << 20) -> None:
        if limit_bytes < 0:
            raise ConfigError(f"limit_bytes must be >= 0, found {limit_bytes!r}")
        self._limit_bytes = limit_bytes
        self._kept: OrderedDict[bytes, tuple[Any, int]] = OrderedDict()
        self._held_bytes = 0
        self.opened = 0
        """How many were decoded so far: grows with what is new, not with what is shown again."""

    def open(self, medium: Medium) -> Any:
        """The `PIL.Image.Image` of a medium, to be read and not changed.

        Raises:
            MediaError: it is no image, or a broken one, or one that is far too large.
            MissingExtraError: Pillow is not installed.
        """
        if medium.kind != "image":
            raise MediaError(f"expected an image, found {medium!r}")
        kept = self._kept.get(medium.digest)
        if kept is not None:
            self._kept.move_to_end(medium.digest)
            return kept[0]
        opened = open_image(medium)
        self.opened += 1
        size = 3 * opened.width * opened.height
        self._kept[medium.digest] = (opened, size)
        self._held_bytes += size
        while self._held_bytes > self._limit_bytes:
            self._held_bytes -= self._kept.popitem(last=False)[1][1]
        return opened


def open_image(medium: Medium) -> Any:
    """The `PIL.Image.Image` of an image, turned as its EXIF data say, in RGB, the first where it holds several.

    Raises:
        MediaError: it is broken, or so large that opening it could exhaust memory.
        MissingExtraError: Pillow is not installed.
    """
    images = require("PIL.Image", extra="media", purpose="showing images")
    upright = require("PIL.ImageOps", extra="media", purpose="showing images").exif_transpose
    try:
        return upright(images.open(BytesIO(medium.data))).convert("RGB")
    except Exception as error:  # decoders raise whatever they stumble over
        raise MediaError(f"{medium!r} cannot be opened: {type(error).__name__}: {error}") from error


def collapse(prompt_ids: Sequence[int], media: Sequence[Placed]) -> list[int]:
    """The prompt with one placeholder for each of `media`, which are in order: what a server expands again."""
    ids: list[int] = []
    at = 0
    for placed in media:
        ids.extend(prompt_ids[at : placed.start])
        ids.append(placed.placeholder)
        at = placed.stop
    ids.extend(prompt_ids[at : len(prompt_ids)])
    return ids


class Shown:
    """Where the media of growing chains stand, as their renderer finds them in the ids that it rendered."""

    def __init__(self, renderer: object) -> None:
        self._renderer = renderer if isinstance(renderer, PlacesMedia) else None
        self._chains: dict[int, list[Placed]] = {}

    def find(self, ids: Sequence[int], messages: Sequence[Message], *, start: int) -> tuple[Placed, ...]:
        """The media of `messages` in the `ids` rendered for them, which stand in a chain from `start` on. O(new).

        Raises:
            MediaError: the renderer knows no media, or the ids have not one place of the right length for each.
        """
        media = _media(messages)
        if self._renderer is None:
            if media:
                raise MediaError(
                    f"the agent's renderer shows no media, found {media[0]!r}: pass renderer=processor_renderer(...)"
                )
            return ()
        placed = self._renderer.place(ids, media)
        return tuple(Placed(each.medium, each.start + start, each.stop + start, each.placeholder) for each in placed)

    def add(self, chain: int, placed: Sequence[Placed]) -> None:
        """The chain now ends with what `find` found."""
        if placed:
            self._chains.setdefault(chain, []).extend(placed)

    def fork(self, parent: int, chain: int, length: int) -> None:
        """`chain` starts as the first `length` tokens of `parent`."""
        self.add(chain, self.until(parent, length))

    def until(self, chain: int, length: int) -> tuple[Placed, ...]:
        """What stands in the first `length` tokens of `chain`, in order."""
        shown = self._chains.get(chain)
        return tuple(each for each in shown if each.stop <= length) if shown else ()


def shown_in(trajectory: Trajectory, chain: int, renderer: PlacesMedia) -> tuple[Placed, ...]:
    """Where the media of a sealed chain stand, in order: what a trainer runs the model with, beside the chain's ids.

    The conversation that led to the chain is read from the trajectory, and its media are found in the ids again.

    Raises:
        MediaError: they do not agree: `renderer` is not the one that the chain was made with.
    """
    ids = trajectory.chains[chain].token_ids
    turns = [turn.index for turn in trajectory.turns if turn.chain == chain]
    before = _said_before(trajectory, max(turns)) if turns else list(trajectory.prompt)
    after = [seen.message() for seen in trajectory.turns[max(turns)].observations] if turns else []
    try:
        return renderer.place(ids, _media(before))
    except MediaError:
        if not any(message.parts for message in after):
            raise
    return renderer.place(ids, _media([*before, *after]))  # they were put before a policy that sampled nothing


def _said_before(trajectory: Trajectory, turn: int) -> list[Message]:
    """What was before the policy in a turn, its own turns apart."""
    path = [turn]
    while (earlier := min(trajectory.turns[path[-1]].previous, path[-1] - 1)) >= 0:
        path.append(earlier)
    said = list(trajectory.prompt)
    for index in reversed(path):
        each = trajectory.turns[index]
        if each.is_rewrite:
            said.clear()
        said += each.heard
        if index != turn:
            said += [observation.message() for observation in each.observations]
    return said


def _media(messages: Sequence[Message]) -> list[Medium]:
    return [medium for message in messages if message.parts for medium in message.media]

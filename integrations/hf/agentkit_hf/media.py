"""What a `transformers` processor makes of media, one at a time: the text that stands for each, and its features.

A processor expands the placeholder that a chat template writes (`<|image_pad|>`) into as many tokens as the model has
features for, and it does so for a whole conversation at once. Here it is asked about one medium alone, so that a turn
costs what is new in it. Whether one at a time is the same as all at once is asked of the processor itself, once.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from io import BytesIO
from types import MappingProxyType
from typing import Any

from attrs import frozen

from agentkit.errors import ConfigError
from agentkit.extras import require
from agentkit.protocols import MediaError, Medium, image
from agentkit.protocols.media import KINDS, Kind
from agentkit.tokens import open_image

_OF_TEXT = frozenset(("input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids"))
_KEPT_EXPANSIONS = 65_536
_SIZES = ((64, 96), (700, 300), (64, 64))


@frozen
class Expansion:
    """What stands for a medium in a prompt: its text, and the ids from its first control token to its last."""

    text: str
    core: tuple[int, ...]


class MediaProcessor:
    """A processor, asked about one medium at a time. Features are kept up to `cache_bytes`, the last used longest."""

    def __init__(self, processor: Any, *, cache_bytes: int = 512 << 20) -> None:
        """Asks the processor about images of several sizes, which takes milliseconds.

        Raises:
            ConfigError: it is no processor with a tokenizer, or what it writes for an image hangs on other images.
            MissingExtraError: Pillow is not installed.
        """
        tokenizer = getattr(processor, "tokenizer", None)
        if tokenizer is None or not callable(processor):
            raise ConfigError(
                f"processor must be one of transformers with a tokenizer, found {type(processor).__name__}"
            )
        if cache_bytes < 0:
            raise ConfigError(f"cache_bytes must be >= 0, found {cache_bytes!r}")
        self._processor = processor
        self._tokenizer = tokenizer
        self._cache_bytes = cache_bytes
        self._placeholders: dict[Kind, str] = {}
        self._pads: dict[int, Kind] = {}
        for kind in KINDS:
            text = getattr(processor, f"{kind}_token", None)
            if isinstance(text, str) and text:
                self._placeholders[kind] = text
                found = (getattr(processor, f"{kind}_token_id", None), tokenizer.convert_tokens_to_ids(text))
                self._pads |= {number: kind for number in found if isinstance(number, int)}
        if not self._placeholders:
            raise ConfigError(
                f"{type(processor).__name__} names no image_token, video_token or audio_token: what stands for a "
                "medium in its prompts is not known"
            )
        self._control = {int(number): str(token) for number, token in tokenizer.added_tokens_decoder.items()}
        self._expansions: OrderedDict[tuple[str, bytes], Expansion] = OrderedDict()
        self._features: OrderedDict[tuple[str, bytes], tuple[Mapping[str, Any], int]] = OrderedDict()
        self._held_bytes = 0
        self._axes: dict[str, int] | None = None
        if "image" in self._placeholders:
            self._check_independence()
        self.processed = 0
        """How many media the processor was asked about: grows with what is new, not with what is shown again."""

    @property
    def tokenizer(self) -> Any:
        """The processor's tokenizer."""
        return self._tokenizer

    @property
    def placeholders(self) -> Mapping[Kind, str]:
        """What a chat template writes for a medium of each kind."""
        return MappingProxyType(self._placeholders)

    @property
    def pads(self) -> Mapping[int, Kind]:
        """The ids that stand for media and for nothing else."""
        return MappingProxyType(self._pads)

    def expansion(self, medium: Medium) -> Expansion:
        """What stands for a medium in a prompt.

        Raises:
            MediaError: the processor does not take it.
        """
        key = (medium.kind, medium.digest)
        if key not in self._expansions:
            self._ask(medium)
        self._expansions.move_to_end(key)
        return self._expansions[key]

    def features(self, media: Sequence[Medium]) -> dict[str, Any]:
        """What the processor gives for all of `media` in order, as arrays by name: `pixel_values`, `image_grid_thw`...

        Raises:
            MediaError: the processor does not take one, or pads them by one another, so that they cannot be joined.
        """
        each = [self._features_of(medium) for medium in media]
        names = dict.fromkeys(name for found in each for name in found)
        return {name: self._joined(name, [found[name] for found in each if name in found]) for name in names}

    def _features_of(self, medium: Medium) -> Mapping[str, Any]:
        key = (medium.kind, medium.digest)
        kept = self._features.get(key)
        if kept is None:
            return self._ask(medium)
        self._features.move_to_end(key)
        return kept[0]

    def _ask(self, medium: Medium) -> Mapping[str, Any]:
        if medium.kind != "image" or medium.kind not in self._placeholders:  # the others need decoders of their own
            raise MediaError(f"{type(self._processor).__name__} is given images only, found {medium!r}")
        made = self._run([medium])
        self.processed += 1
        key = (medium.kind, medium.digest)
        self._expansions[key] = self._expansion_of(_ids(made), medium)
        if len(self._expansions) > _KEPT_EXPANSIONS:
            self._expansions.popitem(last=False)
        features = {name: value for name, value in made.items() if name not in _OF_TEXT}
        size = sum(int(getattr(value, "nbytes", 0)) for value in features.values())
        if key in self._features:
            self._held_bytes -= self._features.pop(key)[1]
        self._features[key] = (features, size)
        self._held_bytes += size
        while self._held_bytes > self._cache_bytes:
            self._held_bytes -= self._features.popitem(last=False)[1][1]
        return features

    def _run(self, media: Sequence[Medium]) -> dict[str, Any]:
        opened = [open_image(medium) for medium in media]
        try:
            made: Any = self._processor(
                text=[self._placeholders["image"] * len(media)],
                images=opened,
                return_tensors="np",
                add_special_tokens=False,
            )
        except Exception as error:  # processors raise whatever they stumble over
            raise MediaError(
                f"{type(self._processor).__name__} does not take {media[0]!r}: {type(error).__name__}: {error}"
            ) from error
        return dict(made)

    def _expansion_of(self, ids: list[int], medium: Medium) -> Expansion:
        places = [place for place, number in enumerate(ids) if number in self._control]
        if not any(number in self._pads for number in ids):
            raise MediaError(f"{type(self._processor).__name__} writes nothing for {medium!r}")
        text = self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        if list(self._tokenizer(text, add_special_tokens=False)["input_ids"]) != ids:
            raise MediaError(
                f"what {type(self._processor).__name__} writes for {medium!r} does not come back from text: "
                f"{text[:80]!r}"
            )
        core = tuple(ids[places[0] : places[-1] + 1])
        return Expansion(text, core)

    def _check_independence(self) -> None:
        probes = [_probe(*size) for size in _SIZES]
        alone = [number for probe in probes for number in _ids(self._run([probe]))]
        if _ids(self._run(probes)) != alone:
            raise ConfigError(
                f"{type(self._processor).__name__} writes an image otherwise beside others, so a chain cannot grow by "
                "one: give it conversations of one image, or another model"
            )

    def _joined(self, name: str, arrays: list[Any]) -> Any:
        if len(arrays) == 1:
            return arrays[0]
        numpy = require("numpy", extra="npz", purpose="the features of media")
        axis = self._joins().get(name)
        if axis is None:
            raise MediaError(
                f"{type(self._processor).__name__} pads {name} of images by one another, so those of single images "
                "cannot be joined: give the processor all images of a prompt at once"
            )
        return numpy.concatenate(arrays, axis=axis)

    def _joins(self) -> dict[str, int]:
        """Along which axis the features of single images are those of all, by name; found out by trying."""
        if self._axes is None:
            numpy = require("numpy", extra="npz", purpose="the features of media")
            probes = [_probe(*size) for size in _SIZES]
            alone = [self._run([probe]) for probe in probes]
            together = self._run(probes)
            self._axes = {}
            for name, whole in together.items():
                for axis in (0, 1):
                    pieces = [each[name] for each in alone]
                    if name not in _OF_TEXT and _is_joined(numpy, whole, pieces, axis):
                        self._axes.setdefault(name, axis)
        return self._axes


def _ids(made: Mapping[str, Any]) -> list[int]:
    return list(map(int, made["input_ids"][0]))


def _is_joined(numpy: Any, whole: Any, pieces: list[Any], axis: int) -> bool:
    try:
        joined = numpy.concatenate(pieces, axis=axis)
    except ValueError:  # of other shapes, or too few axes (AxisError)
        return False
    return bool(numpy.shape(whole) == joined.shape and numpy.array_equal(whole, joined))


def _probe(width: int, height: int) -> Medium:
    images = require("PIL.Image", extra="media", purpose="showing images")
    held = BytesIO()
    images.effect_noise((width, height), 90).convert("RGB").save(held, format="PNG")
    return image(held.getvalue())

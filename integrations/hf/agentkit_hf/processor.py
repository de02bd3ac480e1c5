"""A renderer for models that see: a chat template writes where a medium is shown, the model's processor what is there.

The processor's expansion is put into what the template rendered before it is encoded, as the processor itself does, so
the chain holds the ids that it would give for the whole conversation, and the bridge stays what it is for text: O(new).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from datetime import datetime
from typing import Any, Literal, TypeAlias

from agentkit.errors import ConfigError, NotAppendable
from agentkit.protocols import MediaError, Medium, Message, Placed, Tokenizer, ToolCall, ToolSpec, user
from agentkit.protocols.media import KINDS, Kind
from agentkit.tokens import Certificate, Family, TemplateRenderer
from agentkit_hf.loading import load_processor
from agentkit_hf.media import MediaProcessor
from agentkit_hf.renderer import hf_renderer

_Role: TypeAlias = Literal["system", "user", "assistant", "tool"]
_PROBE = Medium("image", b"probe", "image/png")
_SAID = "probe said"


class ProcessorRenderer:
    """A renderer whose messages may show images, through a `transformers` processor: see `processor_renderer`.

    What the processor gives for each medium is kept, so a turn costs what is new in it; `features` gives the arrays
    that the model is run with.
    """

    def __init__(self, renderer: TemplateRenderer, media: MediaProcessor) -> None:
        """Puts what `media` writes into what `renderer` renders.

        Raises:
            ConfigError: a placeholder of the processor is no control token, so that any text could forge one.
        """
        self._media = media
        self._template = _Expanding(renderer.template, media)
        for text in media.placeholders.values():
            if text not in renderer.tokenizer.control:
                raise ConfigError(f"the tokenizer has no control token {text!r}, which stands for media")
        self._renderer = renderer.over(self._template)
        self._differences: dict[str, str | None] = {}

    @property
    def renderer(self) -> TemplateRenderer:
        """The renderer beneath, which knows the expansions already."""
        return self._renderer

    @property
    def media(self) -> MediaProcessor:
        """The processor, asked about one medium at a time."""
        return self._media

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer this renderer encodes with."""
        return self._renderer.tokenizer

    @property
    def family(self) -> Family:
        """How the turns of this policy end."""
        return self._renderer.family

    @property
    def stop_ids(self) -> frozenset[int]:
        """Ids that end a turn when sampled."""
        return self._renderer.stop_ids

    @property
    def close_id(self) -> int | None:
        """The id that closes a turn which was cut short, None where there is none."""
        return self._renderer.close_id

    @property
    def holds_one_call(self) -> bool:
        """Whether the template takes one call in a turn and refuses two."""
        return self._renderer.holds_one_call

    @property
    def rewrites(self) -> tuple[str, ...]:
        """In words, what the template changes in text that is in a chain already."""
        return self._renderer.rewrites

    @property
    def certificate(self) -> Certificate:
        """What the template allows, case by case."""
        return self._renderer.certificate

    def certify(self, tools: Sequence[ToolSpec] = ()) -> Certificate:
        """What the template allows when it shows these tools."""
        return self._renderer.certify(tools)

    def dated(self, now: datetime) -> "ProcessorRenderer":
        """The same renderer for a template whose clock stands at `now`; itself where the template reads no clock."""
        fixed = self._renderer.dated(now)
        if fixed is self._renderer:
            return self
        twin = copy(self)
        twin._renderer = fixed
        return twin

    def prompt(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        """The ids of the full rendering up to where the policy starts to sample, media expanded.

        Raises:
            MediaError: a medium cannot be shown.
        """
        return self._renderer.prompt(messages, tools)

    def bridge(
        self, action: Message, new: Sequence[Message], tools: Sequence[ToolSpec], *, sampled: Sequence[int]
    ) -> tuple[Sequence[int], list[int]]:
        """The ids that close the sampled turn, and those that lead on to the next generation. O(new).

        Raises:
            NotAppendable: the template would rewrite what is in the chain, the policy sampled a token that stands for
                media, or what the template writes for a medium hangs on those before it.
            MediaError: a medium cannot be shown.
        """
        if not self._media.pads.keys().isdisjoint(sampled):
            raise NotAppendable(
                f"the policy sampled {self._written(sampled)}, which stands for a medium: a model would look for one"
            )
        for message in new:
            if message.parts and (difference := self._difference(message.role)) is not None:
                raise NotAppendable(
                    f"the {self._renderer.family.name} template writes a medium of a {message.role} message otherwise "
                    f"after another: {difference}"
                )
        return self._renderer.bridge(action, new, tools, sampled=sampled)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of sampled ids with control tokens kept, without a final stop token."""
        return self._renderer.decode(ids)

    def place(self, ids: Sequence[int], media: Sequence[Medium]) -> tuple[Placed, ...]:
        """Where in rendered `ids` each of `media` stands, in the order of the ids.

        Raises:
            MediaError: there is not one place for each, or one is not as long as its medium.
        """
        pads = self._media.pads
        waiting = _by_kind(media)
        placed: list[Placed] = []
        at = 0
        while (found := _next(ids, at, pads)) is not None:
            medium = next(waiting[pads[ids[found]]], None)
            if medium is None:
                raise MediaError(f"a prompt has more places for media than the {len(media)} that are shown in it")
            core = self._media.expansion(medium).core
            first = next(place for place, number in enumerate(core) if number in pads)
            start = found - first
            at = start + len(core)
            if start < 0 or tuple(ids[start:at]) != core:
                raise MediaError(f"a prompt has another number of tokens than the {len(core)} of {medium!r}")
            placeholder = self._renderer.tokenizer.control[self._media.placeholders[medium.kind]]
            placed.append(Placed(medium, start, at, placeholder))
        if len(placed) != len(media):
            raise MediaError(f"a prompt has places for {len(placed)} of the {len(media)} media that are shown in it")
        return tuple(placed)

    def features(self, media: Sequence[Medium]) -> Mapping[str, Any]:
        """What the model is run with beside the ids, for media in the order of their prompt: arrays by name.

        Raises:
            MediaError: the processor does not take one, or its arrays cannot be joined.
        """
        return self._media.features(media)

    def _written(self, sampled: Sequence[int]) -> str:
        return repr(self._renderer.tokenizer.decode([next(each for each in sampled if each in self._media.pads)]))

    def _difference(self, role: _Role) -> str | None:
        """Whether a medium is written in another way after another one ("Picture 2:"); found out once."""
        if role not in self._differences:
            self._differences[role] = self._compare(role)
        return self._differences[role]

    def _compare(self, role: _Role) -> str | None:
        call = ToolCall("probe0000", "probe", {"x": _SAID})
        turn = Message("assistant", _SAID, (call,) if role == "tool" else ())
        if role == "tool":
            shown = Message(role, ".", (), "probe0000", "probe", parts=(".", _PROBE))
        else:
            shown = Message(role, ".", parts=(".", _PROBE))
        tails = [
            self._template.bare([opening, turn, shown], (), generation_prompt=True).rpartition(_SAID)[2]
            for opening in (user("."), user(".", _PROBE))
        ]
        return None if tails[0] == tails[1] else f"{tails[0][:80]!r} became {tails[1][:80]!r}"


def processor_renderer(
    processor: Any,
    *,
    chat_template: str | None = None,
    cache_bytes: int = 512 << 20,
    **options: Any,
) -> ProcessorRenderer:
    """A renderer for conversations with images, over a `transformers` processor: a loaded one, or a folder or a name.

    The template is `chat_template`, or the processor's own, or its tokenizer's; all else that `hf_renderer` takes may
    be given too. What the processor makes of images is kept up to `cache_bytes`. Images are processed while rendering,
    on the event loop: some milliseconds for each new one.

    Raises:
        MissingExtraError: `transformers`, Pillow, or what the processor needs is not installed.
        ConfigError: there is no such processor, or it, its tokenizer and its template do not fit together.
    """
    loaded = load_processor(processor) if isinstance(processor, str) else processor
    media = MediaProcessor(loaded, cache_bytes=cache_bytes)
    own = getattr(loaded, "chat_template", None)
    if chat_template is None and own:
        chat_template = str(own.get("default", "")) if isinstance(own, dict) else str(own)
    renderer = hf_renderer(media.tokenizer, chat_template=chat_template, **options)
    return ProcessorRenderer(renderer, media)


class _Expanding:
    """A chat template that writes for each medium what the processor does."""

    def __init__(self, template: Any, media: MediaProcessor) -> None:
        self.bare = template
        self._media = media
        self._kinds: dict[str, Kind] = {text: kind for kind, text in media.placeholders.items()}
        self._pattern = re.compile("|".join(map(re.escape, sorted(self._kinds, key=len, reverse=True))))

    def dated(self, now: datetime) -> "_Expanding":
        """The same template for which it is always `now`."""
        fixed = self.bare.dated(now)
        return self if fixed is self.bare else _Expanding(fixed, self._media)

    def __call__(self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, generation_prompt: bool) -> str:
        rendered: str = self.bare(messages, tools, generation_prompt=generation_prompt)
        media = [medium for message in messages if message.parts for medium in message.media]
        if not media:
            return rendered
        waiting = _by_kind(media)
        pieces: list[str] = []
        at = 0
        # Texts are escaped before they get here: what reads like a placeholder was written by the template.
        for found in self._pattern.finditer(rendered):
            medium = next(waiting[self._kinds[found.group()]], None)
            if medium is None:
                raise MediaError(f"the chat template writes more than {len(media)} places for {len(media)} media")
            pieces += [rendered[at : found.start()], self._media.expansion(medium).text]
            at = found.end()
        if len(pieces) != 2 * len(media):
            roles = sorted({message.role for message in messages if message.parts})
            raise MediaError(
                f"the chat template writes {len(pieces) // 2} places for {len(media)} media: it shows none of some in "
                f"messages of role {', '.join(roles)}"
            )
        return "".join((*pieces, rendered[at:]))


def _by_kind(media: Sequence[Medium]) -> dict[Kind, Iterator[Medium]]:
    return {kind: iter([medium for medium in media if medium.kind == kind]) for kind in KINDS}


def _next(ids: Sequence[int], start: int, pads: Mapping[int, Kind]) -> int | None:
    for place in range(start, len(ids)):
        if ids[place] in pads:
            return place
    return None

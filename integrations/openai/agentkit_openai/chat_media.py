"""What a message shows, as chat APIs take it: content parts, media as data URLs. Sans-IO."""

from base64 import b64encode

from agentkit.errors import ModelError
from agentkit.protocols import Json, Medium, Message

_FORMATS = {"audio/wav": "wav", "audio/x-wav": "wav", "audio/mpeg": "mp3", "audio/flac": "flac", "audio/ogg": "ogg"}


def content_of(message: Message) -> Json:
    """The content of a message: its text, or a list of parts where it shows media.

    Images are OpenAI's `image_url`, sounds its `input_audio`; videos are the `video_url` of vLLM and SGLang.

    Raises:
        ModelError: a sound has a type that the API has no name for.
    """
    if not message.parts:
        return message.content
    return [{"type": "text", "text": part} if isinstance(part, str) else _shown(part) for part in message.parts]


def _shown(medium: Medium) -> Json:
    data = b64encode(medium.data).decode()
    if medium.kind != "audio":
        return {"type": f"{medium.kind}_url", f"{medium.kind}_url": {"url": f"data:{medium.mime};base64,{data}"}}
    if medium.mime not in _FORMATS:
        raise ModelError(f"a sound is sent as one of {', '.join(sorted(set(_FORMATS.values())))}, found {medium!r}")
    return {"type": "input_audio", "input_audio": {"data": data, "format": _FORMATS[medium.mime]}}

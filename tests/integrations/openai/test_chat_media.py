"""What a chat server gets to see: parts in order, media whole, each encoded once."""

import json
from base64 import b64decode

import pytest
from agentkit_openai import ChatModel
from agentkit_openai.chat_wire import ChatWire
from aiohttp import web

import agentkit as ak
from agentkit import ModelError
from agentkit.protocols import Message, Observation, assistant, audio, image, user, video

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
SHOT = image(PNG)


def on_the_wire(wire: ChatWire, *said: Message) -> list[dict]:
    pieces, _ = wire.pieces("r", said, ())
    return json.loads(b"[" + b"".join(pieces) + b"]")


def test_parts_go_in_order_and_media_whole() -> None:
    wav, clip = audio(b"RIFF\0\0\0\0WAVEdata"), video(b"\0\0\0\x18ftypmp42")
    (said,) = on_the_wire(ChatWire(), user("Look: ", SHOT, "hear: ", wav, clip))
    look, shot, hear, sound, seen = said["content"]
    assert (look, hear) == ({"type": "text", "text": "Look: "}, {"type": "text", "text": "hear: "})
    head, _, data = shot["image_url"]["url"].partition(",")
    assert (shot["type"], head, b64decode(data)) == ("image_url", "data:image/png;base64", PNG)
    assert (sound["type"], sound["input_audio"]["format"]) == ("input_audio", "wav")
    assert b64decode(sound["input_audio"]["data"]) == wav.data
    assert seen["video_url"]["url"].startswith("data:video/mp4;base64,")


def test_text_is_still_a_string() -> None:
    assert on_the_wire(ChatWire(), user("hi"))[0]["content"] == "hi"


def test_image_of_an_earlier_turn_is_not_encoded_again() -> None:
    wire, said = ChatWire(), [user("Look", SHOT), assistant("yes"), user("sure?")]
    first = on_the_wire(wire, *said[:1])
    before = wire.encoded_bytes
    assert on_the_wire(wire, *said)[:1] == first
    assert wire.encoded_bytes - before < 200


def test_sound_without_a_name_is_refused() -> None:
    with pytest.raises(ModelError, match=r"found <audio/amr"):
        ChatWire().pieces("r", [user(audio(b"#!AMR", mime="audio/amr"))], ())


@pytest.mark.slow
async def test_screenshot_of_a_tool_is_before_the_policy_in_its_next_turn(serve) -> None:
    bodies: list[dict] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        if request.path == "/v1/models":
            return web.Response(status=404)
        bodies.append(await request.json())
        if len(bodies) == 1:
            call = {"id": "c1", "type": "function", "function": {"name": "screenshot", "arguments": "{}"}}
            message = {"role": "assistant", "content": "", "tool_calls": [call]}
            return web.json_response({"choices": [{"message": message, "finish_reason": "tool_calls"}]})
        message = {"role": "assistant", "content": "a cat"}
        return web.json_response({"choices": [{"message": message, "finish_reason": "stop"}]})

    @ak.tool
    async def screenshot() -> Observation:
        """What is on the screen."""
        return Observation.of("The screen: ", SHOT)

    async with ChatModel(await serve(handle) + "/v1", "m", stream=False) as model:
        trajectory = await ak.Agent(model, tools=[screenshot]).run("What is on the screen?")
    assert trajectory.exit_reason is ak.ExitReason.FINISHED
    text, shown = bodies[1]["messages"][-1]["content"]
    assert text == {"type": "text", "text": "The screen: "}
    assert b64decode(shown["image_url"]["url"].partition(",")[2]) == PNG
    (seen,) = trajectory.turns[0].observations
    assert seen.parts == ("The screen: ", SHOT)

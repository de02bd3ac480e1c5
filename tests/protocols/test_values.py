"""Values that user code builds are checked where they are built."""

import pytest

from agentkit import ConfigError, Message, ModelError, Observation, Task, ToolError, user
from agentkit.protocols import CallFault, FaultStatus, Finish, FinishReason, ToolCall, as_message


@pytest.mark.parametrize(
    ("messages", "found"),
    [
        (user("Hi."), "found one message: wrap it in a list"),
        ([{"role": "user", "content": "x", "tool_calls": ()}], r"task.messages\[0\] has the keys \['tool_calls'\]"),
        ([{"role": "robot", "content": "x"}], r"task.messages\[0\] must be a Message or a mapping"),
        ([{"role": "user", "content": 3}], r"task.messages\[0\] must be a Message or a mapping"),
        ([user("Hi."), "and more"], r"task.messages\[1\] must be a Message or a mapping"),
    ],
)
def test_a_task_of_what_cannot_be_said_names_the_place(messages, found) -> None:
    with pytest.raises(ConfigError, match=found):
        Task("t", messages)


def test_a_message_has_a_text() -> None:
    with pytest.raises(ConfigError, match="a message has a role"):
        Message("user", None)
    with pytest.raises(ConfigError, match="a message must be a Message or a string"):
        as_message(None)
    assert as_message("Hi.") == user("Hi.")


@pytest.mark.parametrize("wrong", [{"reason": "stop"}, {"reason": None}, {"message": "text"}])
def test_a_finish_has_a_reason_and_a_message(wrong) -> None:
    with pytest.raises(ModelError, match="a Finish has a FinishReason and a Message or None"):
        Finish(**wrong)
    assert Finish(FinishReason.LENGTH, user("x")).message == user("x")


def test_the_attempts_of_a_finish_are_calls_and_faults_of_a_message() -> None:
    said, fault = user("x"), CallFault(FaultStatus.MALFORMED, "no")
    assert Finish(message=said).attempts is None
    assert Finish(message=said, attempts=(ToolCall("a", "b"), fault)).attempts == (ToolCall("a", "b"), fault)
    for wrong in ([fault], (fault, None), fault, "ab"):
        with pytest.raises(ModelError, match="the attempts of a Finish are a tuple of ToolCall and CallFault"):
            Finish(message=said, attempts=wrong)
    with pytest.raises(ModelError, match="needs the message that made them"):
        Finish(attempts=())


@pytest.mark.parametrize("wrong", [{"content": None}, {"content": b"raw"}, {"content": "x", "status": "ok"}])
def test_an_observation_has_a_text_and_a_status(wrong) -> None:
    with pytest.raises(ToolError, match="an observation has a text and an ObservationStatus"):
        Observation(**wrong)

"""Media in a journal: each once, whole, and text as it always was."""

import sqlite3
from pathlib import Path

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from agentkit.journal import Codec, Journal, JournalError, JournalReader
from agentkit.journal.export import Selection, conversation, export_sft
from agentkit.protocols import (
    Action,
    ExitReason,
    Medium,
    Message,
    Observation,
    RolloutKey,
    Task,
    ToolCall,
    Trajectory,
    Turn,
    image,
    user,
)

CODEC = Codec()
SHOTS = tuple(image(b"\x89PNG\r\n\x1a\n" + bytes([n]) * 300) for n in range(3))
TASK = Task("t", [user("What is this?", SHOTS[0])])


def _trajectory(index: int, *shots: Medium) -> Trajectory:
    turns = tuple(
        Turn(n, Action("look"), (Observation.of(f"screen {n}:", shot),), heard=(user("and", shot),))
        for n, shot in enumerate(shots)
    )
    key = RolloutKey("t", index)
    return Trajectory(key, TASK.messages, (), turns, ExitReason.FINISHED, task=TASK)


def _rows(path: Path) -> int:
    connection = sqlite3.connect(path)
    try:
        (count,) = connection.execute("SELECT count(*) FROM media").fetchone()
    finally:
        connection.close()
    return int(count)


async def test_each_medium_is_kept_once_and_comes_back(tmp_path: Path) -> None:
    made = [_trajectory(0, SHOTS[1], SHOTS[2], SHOTS[1]), _trajectory(1, SHOTS[2])]
    async with Journal.open(tmp_path, writer="inline") as journal:
        for trajectory in made:
            await journal.seal(trajectory)
        await journal.seal(made[0])  # the same again
        path = journal.reader.path
    with JournalReader.open(tmp_path) as reader:
        assert list(reader.trajectories()) == made
    assert _rows(path) == 3
    assert path.read_bytes().count(SHOTS[1].data) == 1


async def test_unfinished_turns_come_back_with_what_they_show(tmp_path: Path) -> None:
    trajectory = _trajectory(0, SHOTS[1])
    async with Journal.open(tmp_path, writer="inline") as journal:
        await journal.begin(trajectory.key)
        await journal.append(trajectory.key, trajectory.turns[0], ())
    with JournalReader.open(tmp_path) as reader:
        (unfinished,) = reader.unfinished()
    assert unfinished.turns == trajectory.turns


async def test_damaged_medium_is_told_and_not_shown(tmp_path: Path) -> None:
    async with Journal.open(tmp_path, writer="inline") as journal:
        await journal.seal(_trajectory(0, SHOTS[1]))
        path = journal.reader.path
    for statement, words in (("UPDATE media SET data=x'00'", "damaged"), ("DELETE FROM media", "missing")):
        connection = sqlite3.connect(path)
        connection.execute(statement)
        connection.commit()
        connection.close()
        with JournalReader.open(tmp_path) as reader, pytest.raises(JournalError, match=f"is {words}"):
            list(reader.trajectories())


async def test_other_image_under_the_same_task_id_is_another_task(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = evolve(_trajectory(1), task=Task("t", [user("What is this?", SHOTS[1])]))
    async with Journal.open(tmp_path, writer="inline") as journal:
        await journal.seal(_trajectory(0))
        await journal.seal(other)
    assert "holds other tasks under the same ids" in caplog.text


def test_text_is_written_as_it_always_was() -> None:
    message = Message("tool", "out", (), "c", "look")
    turn = Turn(0, Action("hi"), (Observation("out", call_id="c"),), heard=(message,))
    encoded = CODEC.encode_turn(turn)
    assert "parts" not in str(encoded.record)
    assert encoded.media == ()
    # what a journal without media wrote is read: nothing is fetched, there may be no table
    assert CODEC.decode_turn(encoded.record) == turn


@given(st.sampled_from([0, 1]), st.text(max_size=4))
def test_free_form_values_are_no_media_whatever_they_look_like(shown: int, text: str) -> None:
    posing = {"parts": [text, {"kind": "image", "mime": "image/png", "sha256": "00" * 32}]}
    call = ToolCall("c", "look", posing)
    seen = Observation.of("x", *SHOTS[:shown], metadata=posing)
    turn = Turn(0, Action("hi", attempts=(call,)), (seen,), heard=(Message("user", '"parts":'),))
    task = evolve(TASK, data=posing, metadata=posing)
    trajectory = Trajectory(RolloutKey("t", 0), TASK.messages, (), (turn,), ExitReason.FINISHED, task=task)
    encoded = CODEC.encode_trajectory(trajectory)
    held = {medium.digest: medium.data for medium in encoded.media}
    assert held == {medium.digest: medium.data for medium in {SHOTS[0], *SHOTS[:shown]}}
    assert CODEC.decode_trajectory(encoded.record, encoded.blobs, held.get) == trajectory


def test_task_comes_back_with_what_it_shows() -> None:
    assert CODEC.decode_task(CODEC.encode_task(TASK), {SHOTS[0].digest: SHOTS[0].data}.get) == TASK
    with pytest.raises(JournalError, match="missing"):
        CODEC.decode_task(CODEC.encode_task(TASK))


def test_children_are_asked_for_their_media_too() -> None:
    child = _trajectory(0, SHOTS[2])
    parent = evolve(_trajectory(1, SHOTS[1]), children=(child,))
    encoded = CODEC.encode_trajectory(parent)
    held = {medium.digest: medium.data for medium in encoded.media}
    assert set(held) == {shot.digest for shot in SHOTS}
    assert CODEC.decode_trajectory(encoded.record, encoded.blobs, held.get) == parent


async def test_exports_say_that_media_are_left_out(tmp_path: Path) -> None:
    async with Journal.open(tmp_path, writer="inline") as journal:
        await journal.seal(_trajectory(0, SHOTS[1]))
        await journal.seal(
            Trajectory(RolloutKey("u", 0), (user("x"),), (), (Turn(0, Action("y")),), ExitReason.FINISHED)
        )
        run = journal.reader.path
    made = export_sft(run, tmp_path / "out.jsonl", select=Selection())
    assert made.left_out == {"media were shown, which these messages do not hold": 1}
    assert made.written == 1
    assert conversation(_trajectory(0, SHOTS[1])).gaps == ("3 media were shown",)

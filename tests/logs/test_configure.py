"""Log lines: complete, one record each, never an exception, never a wait, without secrets."""

import io
import json
import logging
import os
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkit.errors import ConfigError
from agentkit.logs import MASK, Redactor, configure, escape, within_rollout
from agentkit.protocols import RolloutKey
from agentkit.testing import strategies

log = logging.getLogger("mine")
KEY = RolloutKey("lima", 3, 1)


def state() -> tuple[object, ...]:
    root, transcript = logging.getLogger(), logging.getLogger("agentkit.transcript")
    ours = [each for each in (*root.handlers, *transcript.handlers) if type(each).__module__.startswith("agentkit")]
    return root.level, ours, transcript.level, transcript.propagate


@pytest.fixture(autouse=True)
def nothing_is_left():
    before, threads = state(), threading.active_count()
    yield
    assert state() == before
    assert threading.active_count() == threads


def logged(action, **options) -> str:
    stream = io.StringIO()
    with configure(to=stream, **options) as writer:
        action()
        assert writer.flush()
        assert writer.dropped == 0
    return stream.getvalue()


def test_a_line_says_when_who_where_and_what() -> None:
    def action() -> None:
        log.debug("unheard")
        with within_rollout(KEY):
            log.warning("slow: %d s", 7)
        log.info("outside")

    first, second = logged(action, run="r1").splitlines()
    when, _, rest = first.partition(" WARNING ")
    assert time.strptime(when[:19], "%Y-%m-%d %H:%M:%S")
    assert rest == "mine [r1 lima#3.1] slow: 7 s"
    assert second.endswith(" INFO    mine [r1] outside")


def test_json_lines_hold_the_same_and_extra_fields() -> None:
    def action() -> None:
        with within_rollout(KEY):
            log.info("took %s", "long", extra={"seconds": 1.5, "parts": {"a": [1, None, True]}, "at": Path("/x")})
        try:
            raise ValueError("broken")
        except ValueError:
            log.exception("failed")

    first, second = map(json.loads, logged(action, run="r1", json=True).splitlines())
    assert first.pop("time").endswith("Z")
    assert first == {
        "level": "INFO",
        "logger": "mine",
        "message": "took long",
        "run": "r1",
        "rollout": "lima#3.1",
        "seconds": 1.5,
        "parts": {"a": [1, None, True]},
        "at": "/x",
    }
    assert second["exception"].startswith("Traceback")
    assert "ValueError: broken" in second["exception"]
    assert "rollout" not in second


def test_a_level_is_heard_from_on_and_others_are_not_silenced() -> None:
    def action() -> None:
        log.info("no")
        log.warning("yes")

    assert logged(action, level="warning").count("\n") == 1
    assert logged(lambda: log.debug("yes"), level=logging.DEBUG).count("yes") == 1
    root = logging.getLogger()
    before, heard = root.level, []

    class Mine(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.append(record.getMessage())

    mine = Mine()
    root.addHandler(mine)
    root.setLevel(logging.DEBUG)
    try:
        logged(lambda: log.debug("still mine"), level="ERROR")
    finally:
        root.setLevel(before)
        root.removeHandler(mine)
    assert "still mine" in heard


def test_blocks_may_be_nested(tmp_path: Path) -> None:
    stream = io.StringIO()
    with configure(to=stream), configure(to=tmp_path / "run.jsonl", json=True, run="r1"):
        log.info("both")
    assert stream.getvalue().endswith(" mine both\n")
    (line,) = (tmp_path / "run.jsonl").read_text().splitlines()
    assert json.loads(line)["message"] == "both"


@given(strategies.texts(40), strategies.texts(40), strategies.texts(20))
def test_no_text_can_forge_a_line_or_reach_the_terminal(message: str, argument: str, task: str) -> None:
    for as_json in (False, True):

        def action() -> None:
            with within_rollout(RolloutKey(task, 0)):
                log.info(message)
                log.warning("said %s", argument, extra={"field": argument})

        lines = logged(action, json=as_json, run=task).split("\n")
        assert len(lines) == 3
        assert lines.pop() == ""
        for line in lines:
            assert line.isprintable()
            if as_json:
                json.loads(line)


@given(strategies.texts(60))
def test_escaping_leaves_plain_text_and_shows_the_rest(text: str) -> None:
    said = escape(text)
    assert said.isprintable()
    assert said == "".join(c if c.isprintable() else said_of(c) for c in text)


def said_of(character: str) -> str:
    named = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
    width = 2 if ord(character) < 0x100 else 4 if ord(character) < 0x10000 else 8
    return named.get(character, f"\\{'x' if width == 2 else 'u' if width == 4 else 'U'}{ord(character):0{width}x}")


def test_a_traceback_is_set_in_under_its_line() -> None:
    def action() -> None:
        try:
            raise ValueError("a\n2025-01-01 00:00:00.000 ERROR   forged\x1b[2J")
        except ValueError:
            log.exception("failed")

    first, *rest = logged(action).splitlines()
    assert first.endswith("ERROR   mine failed")
    assert rest[0] == "    | Traceback (most recent call last):"
    assert all(line.startswith("    | ") and line.isprintable() for line in rest)
    assert "    | 2025-01-01 00:00:00.000 ERROR   forged\\x1b[2J" in rest


class Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("never")

    __repr__ = __str__


def test_no_log_call_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # pytest's own raise what they cannot format
    model_text = "{} %s %d %(x)s {0} {name} %"

    def action() -> None:
        log.info(model_text)
        log.info("said " + model_text, "one")
        log.info("%d", "no number")
        log.info("%s", Unprintable())
        log.info(Unprintable())
        log.info("%s", "fine", extra={"odd": Unprintable(), "deep": {"odd": [Unprintable()]}})
        try:
            raise ValueError(Unprintable())
        except ValueError:
            log.exception("failed")

    for as_json in (False, True):
        text = logged(action, json=as_json)
        assert text.count(model_text) == 2
        assert "no number" in text
        assert "fine" in text
        assert "failed" in text
        lines = [line for line in text.splitlines() if not line.startswith("    | ")]
        assert len(lines) == 7


def test_what_is_handed_over_is_what_it_was_then() -> None:
    held = {"n": 1}

    def action() -> None:
        log.info("%s", held, extra={"held": held})
        held["n"] = 2

    (line,) = logged(action, json=True).splitlines()
    assert json.loads(line)["message"] == "{'n': 1}"
    assert json.loads(line)["held"] == {"n": 1}


@pytest.mark.parametrize("as_json", [False, True])
def test_secrets_are_hidden_wherever_they_are_said(as_json: bool) -> None:
    known, key = "plain horse battery", "sk-proj-Ab12Cd34Ef56Gh78"

    def action() -> None:
        log.info("with %s", key)
        log.info(f"with {known}")
        log.info("fields", extra={"authorization": "opaque", "note": known, "deep": {"api_key": "opaque", "n": [key]}})
        logging.getLogger(f"mine.{key}").info("named")
        with within_rollout(RolloutKey(known, 0)):
            log.info("id")
        try:
            raise ValueError(f"{known} and {key}")
        except ValueError:
            log.exception("failed")

    text = logged(action, json=as_json, redactor=Redactor([known]), run=key)
    assert not any(secret in text for secret in (known, key, "opaque"))
    assert text.count(MASK) >= 8


def test_a_long_message_is_cut() -> None:
    text = logged(lambda: log.info("%s the end", "word " * 100_000))
    assert len(text) < 20_000
    assert text.endswith("the end\n")
    assert "characters cut" in text


@pytest.mark.slow
def test_a_reader_that_does_not_read_holds_nobody_up() -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as stream, os.fdopen(reading) as reader:
        with configure(to=stream) as writer:
            started = time.monotonic()
            for _ in range(12_000):
                log.info("x" * 100)
            assert time.monotonic() - started < 10
            assert not writer.flush(0.2), "the pipe is full"
            assert writer.dropped > 0
            drain = threading.Thread(target=lambda: seen.extend(reader))
            seen: list[str] = []
            drain.start()
            assert writer.flush(20)
            log.info("room again")
        stream.close()
        drain.join(10)
    assert any("room again" in line for line in seen)
    assert any("log records were dropped" in line for line in seen)


def test_output_that_fails_costs_the_record_and_no_more(tmp_path: Path) -> None:
    class Failing(io.StringIO):
        broken = True

        def write(self, text: str) -> int:
            if self.broken:
                raise OSError("disk full")
            return super().write(text)

    stream = Failing()
    with configure(to=stream) as writer:
        log.info("lost")
        writer.flush()
        assert writer.dropped > 0
        stream.broken = False
        log.info("kept")
        writer.flush()
    assert "kept" in stream.getvalue()
    assert "dropped" in stream.getvalue()


def test_stderr_is_where_it_goes_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    with configure():
        log.info("hello")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.endswith("mine hello\n")


def test_a_stream_for_ascii_gets_ascii() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    with configure(to=stream):
        log.info("Ünï")
    assert raw.getvalue().endswith(b"\\xdcn\\xef\n")


@given(st.text(max_size=8))
def test_an_unknown_level_is_refused(level: str) -> None:
    if level.upper() not in logging.getLevelNamesMapping():
        with pytest.raises(ConfigError, match="level must be one of"), configure(level=level):
            pass


def test_what_cannot_be_written_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot log to"), configure(to=tmp_path / "no" / "run.log"):
        pass
    with pytest.raises(ConfigError, match="per_rollout must be a folder"), configure(per_rollout=tmp_path / "file"):
        pass
    with pytest.raises(ConfigError, match="cut must be at least 1"), configure(cut=0):
        pass


def test_many_threads_may_log_at_once() -> None:
    def action() -> None:
        threads = [threading.Thread(target=lambda n=n: [log.info("%d-%d", n, k) for k in range(100)]) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    lines = logged(action).splitlines()
    assert sorted(line.rpartition(" ")[2] for line in lines) == sorted(f"{n}-{k}" for n in range(8) for k in range(100))


def test_the_library_installs_no_handlers() -> None:
    names = [name for name in logging.root.manager.loggerDict if name.startswith("agentkit")]
    assert names
    assert not any(logging.getLogger(name).handlers for name in names)
    assert "agentkit.logs" in sys.modules

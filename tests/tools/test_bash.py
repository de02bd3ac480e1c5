"""The shell tool: what the policy reads is short, plain text and always says how the command ended."""

import re
import time

import anyio
import pytest
from attrs import define, field
from hypothesis import example, given
from hypothesis import strategies as st

from agentkit.errors import ConfigError, SandboxDead, SandboxError, ToolError
from agentkit.protocols import ExecResult, ObservationStatus, OutputCap, Shell, ToolCall, ToolContext
from agentkit.tools import bash, execute_bash
from agentkit.tools.terminal import plain_text


@define
class FakeShell:
    """Answers every command with the same output, cut as a sandbox would cut it."""

    output: bytes = b""
    exit_code: int = 0
    timed_out: bool = False
    died: bool = False
    error: Exception | None = None
    note: bytes = b""
    seen: list[tuple[str, float | None]] = field(factory=list)

    async def run(self, command, /, *, timeout_s=None, cap=OutputCap()):  # noqa: B008
        self.seen.append((command, timeout_s))
        if self.error is not None:
            raise self.error
        whole, room = self.output, cap.head_bytes + cap.tail_bytes
        kept = (
            whole if len(whole) <= room else whole[: cap.head_bytes] + self.note + whole[len(whole) - cap.tail_bytes :]
        )
        return ExecResult(self.exit_code, kept, len(whole), len(whole) > room, self.timed_out, self.died, 0.5)

    async def exec(self, argv, /, **options):
        raise AssertionError("the tool runs its command in the session, never on its own")


async def shown(shell: FakeShell, made=execute_bash, deadline: float = float("inf"), **arguments):
    assert isinstance(shell, Shell)
    context = ToolContext(ToolCall("call_0", "execute_bash", {}), shell, "task#0", deadline)
    return await made.call({"command": "c", **arguments}, context)


@pytest.mark.parametrize(
    ("shell", "content", "status"),
    [
        (FakeShell(b"hello\n"), "hello\n[exit code 0]", "ok"),
        (FakeShell(b"no\n", exit_code=2), "no\n[exit code 2]", "ok"),
        (FakeShell(), "The command printed nothing.\n[exit code 0]", "ok"),
        (FakeShell(b"\x1b[0m\n", exit_code=1), "The command printed nothing.\n[exit code 1]", "ok"),
        (
            FakeShell(b"part", died=True, exit_code=7),
            "part\n[exit code 7]\n[shell restarted: directory and exported variables are kept, "
            "functions and aliases are lost]",
            "ok",
        ),
        (FakeShell(b"part", timed_out=True), "part\n[timed out; partial output above]", "timeout"),
    ],
)
async def test_the_end_of_the_command_is_always_said(shell, content, status):
    observation = await shown(shell)
    assert (observation.content, observation.status) == (content, ObservationStatus(status))
    assert observation.metadata["exit_code"] == shell.exit_code
    assert not observation.done


async def test_a_timeout_names_the_seconds_that_were_given():
    shell = FakeShell(b"part", timed_out=True)
    observation = await shown(shell, timeout_s=2.5)
    assert observation.content == "part\n[timed out after 2.5 s; partial output above]"
    assert shell.seen == [("c", 2.5)]


async def test_the_command_is_stopped_before_the_call_is_cancelled():
    shell = FakeShell()
    now = anyio.current_time()
    await shown(shell, deadline=now + 100)
    await shown(shell, deadline=now + 100, timeout_s=7)
    await shown(shell, deadline=now + 100, timeout_s=1000)
    await shown(shell, deadline=now + 2)
    assert [limit for _, limit in shell.seen] == pytest.approx([99, 7, 99, 1.8])
    with pytest.raises(ToolError, match="timeout_s must be greater than 0, found -1"):
        await shown(shell, timeout_s=-1)
    assert len(shell.seen) == 4


async def test_a_dead_sandbox_passes_and_a_refusal_is_for_the_policy_to_read():
    with pytest.raises(SandboxDead, match="gone"):
        await shown(FakeShell(error=SandboxDead("gone")))
    with pytest.raises(ToolError, match="the command could not be run: busy") as caught:
        await shown(FakeShell(error=SandboxError("busy", retryable=True)))
    assert caught.value.retryable


@given(
    output=st.binary(max_size=300) | st.text(max_size=100).map(str.encode) | st.just(b"abc\n" * 90),
    head=st.integers(0, 20),
    tail=st.integers(0, 20),
    note=st.sampled_from([b"", b"\n[... 7 bytes left out ...]\n"]),
)
@example(output=b"x" * 41, head=20, tail=20, note=b"note")
@example(output=b"x" * 40, head=20, tail=20, note=b"note")
@example(output=b"x" * 12, head=4, tail=0, note=b"")
@example(output=b"x" * 500, head=0, tail=3, note=b"note")
@example(output=b"x" * 500, head=3, tail=0, note=b"note")
def test_output_keeps_to_its_budget_and_counts_what_it_leaves_out(output, head, tail, note):
    if head + tail == 0:
        return
    made = bash(head_chars=head, tail_chars=tail)
    observation = anyio.run(lambda: shown(FakeShell(output, note=note), made))
    body = observation.content.removesuffix("\n[exit code 0]")
    left_out = observation.metadata["left_out_bytes"]
    said = re.search(r"\n\[\.\.\. (-?\d+) bytes of output left out \.\.\.\]\n?", body)
    assert (said is None) == (left_out == 0)
    plain = plain_text(output)
    if said is None:
        assert body == (plain.rstrip("\n") if plain.strip() else "The command printed nothing.")
        assert len(plain) <= head + tail
    else:
        assert int(said[1]) == left_out > 0
        assert len(body) - len(said[0]) <= head + tail
        if output.isascii() and output.decode().isprintable():
            assert left_out == len(output) - (len(body) - len(said[0]))
            assert body.startswith(output[:head].decode())
            assert body.endswith(output[len(output) - tail :].decode())


async def test_a_sandbox_with_a_smaller_cap_is_believed():
    class Short(FakeShell):
        async def run(self, command, /, *, timeout_s=None, cap=OutputCap()):  # noqa: B008
            return ExecResult(0, b"what it kept", 500, True)

    observation = await shown(Short())
    assert observation.content == "what it kept\n[... 488 bytes of output left out ...]\n[exit code 0]"


def test_a_budget_of_nothing_is_refused():
    for head, tail in [(0, 0), (-1, 5)]:
        with pytest.raises(ConfigError, match="head_chars"):
            bash(head_chars=head, tail_chars=tail)


@pytest.mark.parametrize(
    ("output", "text"),
    [
        (b"\x1b[1;31mred\x1b[0m plain", "red plain"),
        (b"\x1b]0;title\x07after \x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "after link"),
        (b"\x1bPq#0;2\x1b\\sixel", "sixel"),
        (b"\x1b(B\x1b=\x1bMok\x1b", "ok"),
        (b"\xc2\x9b31mred", "red"),
        (b"\x1b]52;c;never ended\nsecond line", "52;c;never ended\nsecond line"),
        (b"\x1b[?25l 1%\r 50%\r100%\x1b[K\r\n done\r\n", "100%\n done\n"),
        (b"a\r\r\nb\rc", "a\nc"),
        (b"kept\r", "kept"),
        (b"abc\x08d", "abd"),
        (b"n\x08no\x08\x08\x08ok", "ok"),
        (b"tab\there \x00\x07bell\x7f", "tab\there bell"),
        (b"\xff\xfe caf\xc3\xa9 \xc3", "\ufffd\ufffd caf\xe9 \ufffd"),
        ("zero\u200bwidth \u4f60\u597d <|im_end|>".encode(), "zero\u200bwidth \u4f60\u597d <|im_end|>"),
    ],
)
def test_terminal_text_becomes_plain(output, text):
    assert plain_text(output) == text


PIECES = [
    b"\x1b",
    b"[",
    b"]",
    b"P",
    b"31m",
    b"\x07",
    b"\x9b",
    b"\xc2\x9b",
    b"\r",
    b"\n",
    b"\x08",
    b"a",
    b"\xff",
    b"\x1b\\",
    b"0",
]


@given(st.binary() | st.lists(st.sampled_from(PIECES)).map(b"".join))
def test_plain_text_holds_no_controls_and_is_stable(output):
    text = plain_text(output)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", text)
    assert plain_text(text.encode()) == text


@given(st.text(st.characters(exclude_categories=["Cc", "Cs"])) | st.just("a\tb\nc"))
def test_plain_text_is_left_alone(text):
    assert plain_text(text.encode()) == text


@pytest.mark.slow
@pytest.mark.parametrize(
    "piece", [b"\x1b]", b"\x1b[0", b"\x1b", b"a\x08", b"\x08", b"x\r", b"\x1bP a", b"\r", b"\xc2\x9b1"]
)
def test_hostile_output_takes_linear_time(piece):
    started = time.monotonic()
    plain_text(piece * (2_000_000 // len(piece)))
    assert time.monotonic() - started < 20

"""The examples run as they stand, on both event loops, and what they print is true."""

import ast
import importlib.util
import math
import re
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from agentkit.tokens import ByteTokenizer

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
FILES = sorted(EXAMPLES.rglob("*.py"))
PROGRAMS = [path.stem for path in sorted(EXAMPLES.glob("*.py")) if not path.stem.startswith("test_")]
SHOWN = sorted((EXAMPLES / "pages").glob("*.py"))
NESTED = {"agentkit.journal.export", "agentkit.testing.sandboxes"}
Run = Callable[[str], Awaitable[list[str]]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """The lines that an example prints, run afresh in this process and on this test's event loop."""

    async def lines(name: str) -> list[str]:
        await load(EXAMPLES / f"{name}.py").main()
        return capsys.readouterr().out.splitlines()

    monkeypatch.setattr(sys, "argv", ["example"])
    return lines


def load(path: Path) -> Any:
    """A module that is in no package, made afresh."""
    spec = importlib.util.spec_from_file_location(f"example_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def output(name: str) -> list[str]:
    """What the documentation says that an example prints."""
    return (EXAMPLES / "output" / f"{name}.txt").read_text().splitlines()


async def test_first_agent(run: Run) -> None:
    lines = await run("first_agent")
    assert len(set(lines)) == 1, "one script, one trajectory"
    assert len(lines) == 4
    assert re.fullmatch(r"finished 1\.0 \d\d tokens sampled", lines[0])


async def test_own_env(run: Run) -> None:
    assert sorted(await run("own_env")) == sorted(output("own_env"))


async def test_own_tool(run: Run) -> None:
    assert await run("own_tool") == output("own_tool")


async def test_own_reward(run: Run) -> None:
    assert await run("own_reward") == output("own_reward")


@pytest.mark.parametrize(
    "path",
    [pytest.param(each, id=each.stem, marks=[pytest.mark.slow] * each.stem.startswith("sandbox")) for each in SHOWN],
)
async def test_what_pages_show_is_true(path: Path) -> None:
    await load(path).main()


@pytest.mark.slow
async def test_frozen_lake(run: Run) -> None:
    assert await run("frozen_lake") == output("frozen_lake")


async def test_own_loop(run: Run) -> None:
    *turns, end = await run("own_loop")
    assert turns[:5] == [f"{box - 1} look {box} ['nothing']" for box in range(1, 6)]
    assert turns[5:] == ["5 Boxes 1 to 5, so it is in box 6. []"]
    found = re.fullmatch(r"finished (\d+) of (\d+) tokens sampled", end)
    assert found
    assert 0 < int(found[1]) < int(found[2])


async def test_plan_execute(run: Run) -> None:
    lines = await run("plan_execute")
    assert lines[1] == "1 '' -> 10.4"
    assert lines[3] == "3 '' -> 0.7"
    assert lines[6:] == ["6 '9.7'", "finished 1 chain"]


async def test_branching(run: Run) -> None:
    sampled, kept, *chains, total = await run("branching")
    assert len(ast.literal_eval(sampled.removeprefix("sampled: "))) == 6
    assert kept == "kept: ['Count.', 'There are 7.', 'Seven']"
    assert [chain.partition("begins with ")[2].partition(",")[0] for chain in chains] == [
        "a prompt",
        "chain 0",
        "chain 0",
        "chain 1",
        "chain 1",
    ]
    assert total == "weights add up to 1.00"


async def test_sub_agents(run: Run) -> None:
    parent, *children, total = await run("sub_agents")
    assert parent == "parent: finished 'Lima is larger.'"
    assert sorted(re.sub(r"\d+ tokens", "N tokens", child) for child in children) == [
        "child: finished '0.7 million' N tokens sampled",
        "child: finished '10.4 million' N tokens sampled",
    ]
    assert total == "3 trajectories in one record"


async def test_chat(run: Run) -> None:
    lines = await run("chat")
    hello, story = lines[:2]
    assert hello == "turn 0 (stop): Hello. What shall I write?"
    cut = story.removeprefix("turn 1 (aborted): ")
    assert 0 < len(cut) < 60
    assert "Once upon a time".startswith(cut[:16])
    assert "asked, and got: Fine: a list had no end." in lines
    assert lines[-2:] == ["ended: finished", "['stop', 'aborted', 'stop'] 1 chain"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_budgets(run: Run) -> None:
    check_budgets(await run("budgets"))
    check_budgets(output("budgets"))


def check_budgets(lines: list[str]) -> None:
    tool, deadline, task, typo = lines
    found = re.fullmatch(
        r"tool: finished after ([\d.]+) s; stuck: \('stubborn',\); the policy read: Timed out after 0\.5 s\.", tool
    )
    assert found
    assert 0.7 <= float(found[1]) < 2
    found = re.fullmatch(r"deadline: trajectory_timeout with (\d+) tokens kept, score ([\d.]+)", deadline)
    assert found
    assert 15 <= int(found[1]) <= 21
    assert float(found[2]) > int(found[1]), "tokens of several characters each"
    assert task == "task: turn_limit after 2 turns"
    assert typo == "typo: budget has no field 'max_turn': did you mean 'max_turns'?"


async def test_groups(run: Run) -> None:
    *rollouts, end = await run("groups")
    assert [line.split()[0] for line in rollouts] == [f"lima#{index}" for index in range(5)]
    (replaced,) = [line for line in rollouts if "outcome=replace" in line]
    assert "model_error blame=infrastructure score=None" in replaced
    index = replaced[len("lima#")]
    assert rollouts[-1].endswith(f"(replaces {index})")
    assert sorted(ast.literal_eval(end.removeprefix("lima advantages "))) == [-1.0, -1.0, 1.0, 1.0]


async def test_own_model(run: Run) -> None:
    *sampled, echo = await run("own_model")
    assert len(set(sampled)) == 2, "two seeds, two texts"
    for line in sampled:
        found = re.fullmatch(r"bigram: '([a-z ]+)' (\d+) tokens, logprob (-[\d.]+)", line)
        assert found
        assert set(found[1].split()) <= {"the", "cat", "sat", "on", "mat", "dog", "a", "and"}
        assert float(found[3]) == pytest.approx(bigram_logprob(found[1]), abs=0.006)
    assert echo == "echo: 'IS ANYBODY THERE?' 0 chains"


def bigram_logprob(text: str) -> float:
    """The slow way: how many of the tokens that may follow are the one that does, step by step."""
    encode = ByteTokenizer().encode
    lines = ["the cat sat on the mat", "the dog sat on the cat", "a dog and a cat sat on a mat"]
    corpus = [[None, *encode(line), "end"] for line in lines]
    chain = [None, *encode(text), "end"]
    total = 0.0
    for before, after in pairwise(chain):
        following = [line[i + 1] for line in corpus for i in range(len(line) - 1) if line[i] == before]
        total += math.log(following.count(after) / len(following))
    return total


async def test_simulate(run: Run) -> None:
    summary, counts, struck = await run("simulate")
    assert re.fullmatch(r"100 sealed, 2 hosts, \d+ virtual seconds", summary)
    ends = ast.literal_eval(counts)
    assert sum(ends.values()) == 100
    assert 50 < ends["finished"] < 100, "most get over it, some do not"
    assert set(ast.literal_eval(struck)) == {"failed_reward", "hung_tool", "partial_stream", "server_error", "stall"}


@pytest.mark.slow
@pytest.mark.parametrize("bubblewrap", [True, False])
async def test_sandboxed(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, bubblewrap: bool) -> None:
    monkeypatch.setattr(sys, "argv", ["example", "--host"])
    if not bubblewrap:
        monkeypatch.setenv("PATH", "/nowhere")
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    first, hung, last, submitted, end = await run("sandboxed")
    assert first == "[ok] 10 | 9 | 2 | [exit code 0]"
    assert hung.startswith("[timeout] drafts | [timed out after 2.")
    assert last == "[ok] 2 | 9 | 10 | [exit code 0]"
    assert (submitted, end) == ("[ok] Submitted.", "finished 1.0")
    assert list(tmp_path.iterdir()) == [], "all that it wrote was its own, and is gone"


@pytest.mark.slow
async def test_sandboxed_says_what_to_do_without_bubblewrap(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    lines = await run("sandboxed")
    assert "no isolated sandbox can run here" in lines[0]
    assert "install bubblewrap" in lines[1]
    assert "--host" in lines[1]


@pytest.mark.slow
async def test_journal_resume(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "argv", ["example", str(tmp_path)])
    first, then, second, now, trajectory, hint = await run("journal_resume")
    assert first == "first run: 3 taken"
    ends = ast.literal_eval(then.removeprefix("sealed then: "))
    assert set(ends) <= {"finished", "cancelled"}
    assert 3 <= ends["finished"] < 8
    assert second == f"second run: {8 - ends['finished']} more"
    assert now == "sealed now: {'finished': 8}"
    assert re.fullmatch(r"the first: task-\d#0 'It is done\.'", trajectory)
    assert hint.endswith(f"agentkit inspect {tmp_path}")


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_each_runs_as_a_program_and_warns_of_nothing(name: str, tmp_path: Path) -> None:
    arguments = {"journal_resume": [str(tmp_path / "run")], "sandboxed": ["--host"]}.get(name, [])
    command = [sys.executable, "-W", "error", "-X", "dev", str(EXAMPLES / f"{name}.py"), *arguments]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/local/bin:/usr/bin:/bin"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert "Error" not in done.stderr
    assert "Warning" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("name", "tests"), [("test_my_agent", 6), ("test_any_plan", 1)])
def test_the_example_tests_pass_outside_this_project(name: str, tests: int, tmp_path: Path) -> None:
    copy = tmp_path / f"{name}.py"
    copy.write_text((EXAMPLES / f"{name}.py").read_text())
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", str(copy)]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout
    assert f"{tests} passed" in done.stdout


def test_every_example_is_tested_here() -> None:
    tested = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert PROGRAMS
    assert set(PROGRAMS) <= tested


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(EXAMPLES).as_posix())
def test_examples_use_public_names_only(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        module = getattr(node, "module", None) or ""
        assert not any(part.startswith("_") for name in (module, *names) for part in name.split(".")), ast.unparse(node)
        if isinstance(node, ast.ImportFrom) and module.startswith("agentkit"):
            assert module.count(".") <= 1 or module in NESTED, (
                f"{ast.unparse(node)}: a name is public if its package re-exports it"
            )


@pytest.mark.parametrize(("name", "function"), [("plan_execute", "plan_execute"), ("own_loop", "careful")])
def test_a_loop_fits_in_thirty_lines(name: str, function: str) -> None:
    tree = ast.parse((EXAMPLES / f"{name}.py").read_text())
    (found,) = [node for node in tree.body if isinstance(node, ast.AsyncFunctionDef) and node.name == function]
    assert found.end_lineno - found.lineno < 30


def test_the_readme_shows_the_first_agent_in_full() -> None:
    block, *_ = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert block == (EXAMPLES / "first_agent.py").read_text()

"""Issues of repositories: what becomes of the datasets' rows, and their own tests as the reward, in real sandboxes."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recipes.prepare import tasks_of
from recipes.swe.prepare_data import task_of
from recipes.swe.repo_env import RepoEnv, RepoTask
from recipes.swe.reward import resolved
from recipes.swe.test_log import STATUSES, agree, dotted, results_of

import agentkit as ak
from agentkit.errors import ConfigError, SandboxError
from agentkit.models import ScriptedModel
from agentkit.protocols import SandboxSpec
from agentkit.sandbox import BwrapBackend, HostBackend, SandboxConfig
from agentkit.tools import execute_bash, submit
from tests.verl.recipes.images import Images

IMAGES = SandboxConfig("images", Images(), SandboxSpec())

BROKEN = 'def cents(text):\n    return int(float(text.removesuffix(" EUR")) * 100 + 0.5)\n'
MENDED = BROKEN.replace("text.removesuffix", 'text.replace(",", ".").removesuffix')
WHOLE = 'from money import cents\n\n\ndef test_whole():\n    assert cents("3") == 300\n'
HIDDEN = (
    "from money import cents\n\n\nclass TestCents:\n"
    '    def test_whole(self):\n        assert cents("3") == 300\n\n'
    '    def test_comma(self):\n        assert cents("1,50") == 150\n\n\n'
    "def test_legacy():\n    assert cents(None) == 0\n"
)


# -- rows ---------------------------------------------------------------------------------------------------------


def test_rows_of_r2e_gym_become_tasks(rows: Path):
    (task,) = tasks_of(rows / "r2e_gym.jsonl", task_of)
    assert task.id == "money-0123456789abcdef"
    repo = RepoTask.of(task)
    assert repo.expected == {
        "TestCents.test_whole": "PASSED",
        "TestCents.test_comma": "PASSED",
        "test_legacy": "FAILED",
    }
    assert (repo.image, repo.all_tests) == ("namanjain12/money_final:0123456789abcdef", True)
    said = task.messages[1].content
    assert "does not understand a comma" in said
    assert "[ISSUE]" not in said
    assert "test_comma" not in said


def test_rows_of_swe_rebench_become_tasks_but_for_those_that_cannot_be_judged(rows: Path):
    (task,) = tasks_of(rows / "swe_rebench.jsonl", task_of)  # one has no image, one a log that is not pytest's
    repo = RepoTask.of(task)
    assert task.id == "shop__money-17"
    assert set(repo.expected.values()) == {"PASSED"}
    assert len(repo.expected) == 4
    assert repo.test_files == ("tests/test_money.py", "tests/test_more.py")
    assert repo.test_command.endswith("ignore::DeprecationWarning tests/test_money.py tests/test_more.py")
    assert "not shown to the policy" not in json.dumps([message.content for message in task.messages])


def test_a_row_without_a_column_is_named(tmp_path: Path):
    (tmp_path / "rows.jsonl").write_text('{"expected_output_json": "{}", "repo_name": "a"}\n')
    with pytest.raises(ConfigError, match="row 0: the column 'problem_statement' is missing"):
        tasks_of(tmp_path / "rows.jsonl", task_of)


def test_a_row_that_names_no_test_is_refused(tmp_path: Path, rows: Path):
    row = json.loads((rows / "r2e_gym.jsonl").read_text()) | {"expected_output_json": "{}"}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    with pytest.raises(ConfigError, match="names no test"):
        tasks_of(tmp_path / "rows.jsonl", task_of)


# -- the log ------------------------------------------------------------------------------------------------------


def test_results_are_those_of_pytest_itself(tmp_path: Path):
    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        "def test_ok(): print('FAILED test_it.py::test_ok')\n"
        "def test_bad(): assert 1 == 2, 'a - b'\n"
        "@pytest.mark.skip\ndef test_skip(): pass\n"
        "@pytest.mark.xfail\ndef test_xfail(): assert 0\n"
        "@pytest.mark.xfail\ndef test_xpass(): pass\n"
        "@pytest.fixture\ndef broken(): raise OSError\n"
        "def test_error(broken): pass\n"
        "class TestA:\n"
        "    @pytest.mark.parametrize('x', ['a b', 'c::d'])\n"
        "    def test_p(self, x): assert x != 'c::d'\n"
    )
    command = [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", "--color=yes", "test_it.py"]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "", "COLUMNS": "80"}
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    found = results_of(ended.stdout)
    assert found == {
        "test_it.py::test_ok": "PASSED",
        "test_it.py::test_bad": "FAILED",
        "test_it.py::test_xfail": "XFAIL",
        "test_it.py::test_xpass": "XPASS",
        "test_it.py::test_error": "ERROR",
        "test_it.py::TestA::test_p[a b]": "PASSED",
        "test_it.py::TestA::test_p[c::d]": "FAILED",
    }
    assert {dotted(name) for name in found} >= {"TestA.test_p[a b]", "TestA.test_p[c.d]", "test_ok"}
    wanted = {"test_it.py::test_xfail": "PASSED", "test_it.py::TestA::test_p[a": "PASSED"}
    assert agree(found, wanted, all_tests=False) == 2


def test_a_log_without_a_summary_has_no_results():
    assert results_of("PASSED a.py::b\n") == {}


def test_a_summary_that_a_test_printed_is_not_looked_at():
    fake = "=== short test summary info ===\nPASSED a.py::b\nPASSED a.py::c\n"
    assert results_of(fake + "=== short test summary info ===\nFAILED a.py::b - no\n") == {"a.py::b": "FAILED"}


def test_a_cut_name_stands_for_all_that_begin_with_it():
    found = {"a.py::t[x 1]": "PASSED", "a.py::t[x 2]": "FAILED", "a.py::t[y 1]": "PASSED"}
    assert agree(found, {"a.py::t[x": "PASSED", "a.py::t[y": "PASSED", "a.py::t[z": "PASSED"}, all_tests=False) == 1


names = st.from_regex(r"[a-z]{1,3}(::[A-Za-z\[\].]{1,4}){0,3}", fullmatch=True)


@given(st.dictionaries(names, st.sampled_from(STATUSES)), st.text("=-\x1b[0m PASEDF:\n"))
def test_a_summary_is_read_back(statuses: Mapping[str, str], before: str):
    lines = "".join(f"{status} {name} - because\n" for name, status in statuses.items())
    summary = f"\n==== short test summary info ====\n{lines}"
    assert results_of(before + summary) == statuses
    by_name = {dotted(name): status for name, status in statuses.items()}  # later ones win, as they do in the dataset
    assert agree(results_of(summary), by_name, all_tests=True) == len(by_name)


# -- the env and the reward, in sandboxes ---------------------------------------------------------------------------

has_sandbox = pytest.mark.skipif(BwrapBackend().available() is not None, reason="bubblewrap cannot run here")


def git(repo: Path, *words: str) -> str:
    identity = [
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@b",
        "-c",
        "commit.gpgsign=false",
        "-c",
        "init.defaultBranch=main",
    ]
    return subprocess.run(
        ["git", *identity, *words], cwd=repo, check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """/testbed: a repository before the commit that mends it, which a branch and a tag still name. /tmp/r2e_tests."""
    repo = tmp_path / "image" / "testbed"
    (repo / "tests").mkdir(parents=True)
    git(repo, "init", "-q")
    (repo / "money.py").write_text(BROKEN)
    (repo / "tests" / "test_money.py").write_text(WHOLE)
    (repo / ".gitignore").write_text(".venv\n__pycache__\nrun_tests.sh\nr2e_tests\n")
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "start")
    (repo / "money.py").write_text(MENDED)
    git(repo, "commit", "-qam", "understand a comma")
    git(repo, "tag", "v2")
    git(repo, "branch", "solution")
    git(repo, "reset", "-q", "--hard", "HEAD~1")
    programs = repo / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name, call in (("python", ""), ("pytest", "-m pytest")):
        (programs / name).write_text(f'#!/bin/sh\nexec {sys.base_prefix}/bin/python3 {call} "$@"\n')
        (programs / name).chmod(0o755)
    (repo / "conftest.py").write_text("")  # puts the repository on the path of its tests
    (repo / "run_tests.sh").write_text(".venv/bin/python -W ignore -m pytest -p no:cacheprovider -rA r2e_tests\n")
    tests = tmp_path / "image" / "tmp_tests"
    tests.mkdir()
    (tests / "test_1.py").write_text(HIDDEN)
    return repo.parent


@pytest.fixture(params=["r2e_gym", "swe_rebench"])
def task(request: pytest.FixtureRequest, image: Path, rows: Path) -> ak.Task:
    """The dataset's row, with the image that is here; bubblewrap has no writable `/`, so the tests are below /tmp."""
    (task,) = tasks_of(rows / f"{request.param}.jsonl", task_of)
    here = {"image": str(image), "env": {"PATH": "/testbed/.venv/bin:/usr/bin:/bin"}}
    if request.param == "r2e_gym":
        (image / "tmp_tests").rename(image / "tmp_r2e-tests")
        here |= {"hidden": ["/testbed/run_tests.sh", "/tmp/r2e-tests"]}
        script = image / "testbed" / "run_tests.sh"
        script.write_text(script.read_text().replace("r2e_tests", "r2e-tests"))
    else:
        shutil.rmtree(image / "tmp_tests")
        (image / "testbed" / "run_tests.sh").unlink()
        here |= {"base_commit": git(image / "testbed", "rev-parse", "HEAD")}
    return attrs.evolve(task, data={**task.data, **here})


async def played(task: ak.Task, *commands: str, timeout_s: float = 60.0) -> ak.Trajectory:
    """A rollout whose policy runs these commands, then submits."""
    calls = [{"name": "execute_bash", "arguments": {"command": command}} for command in commands]
    calls.append({"name": "submit", "arguments": {}})
    model = ScriptedModel([f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in calls])
    agent = ak.Agent(
        model,
        env=lambda: RepoEnv(IMAGES),
        tools=[execute_bash, submit],
        reward=resolved(timeout_s=timeout_s),
        outcomes=ak.OutcomePolicy(retries=0),
        budget=ak.Budget(trajectory_s=120, reward_s=120),
    )
    async with ak.Pool(agent) as pool:
        async for trajectory in pool.run([task]):
            return trajectory
    raise AssertionError("no trajectory")


def seen(trajectory: ak.Trajectory) -> list[str]:
    return [observation.content for turn in trajectory.turns for observation in turn.observations]


MEND = f"cat > money.py <<'END'\n{MENDED}END"


@has_sandbox
async def test_a_repository_that_was_mended_is_worth_one(task: ak.Task):
    trajectory = await played(task, MEND)
    assert trajectory.grade is not None, trajectory.error
    assert trajectory.grade.score is not None, (trajectory.grade.error, trajectory.error)
    assert trajectory.score == 1.0, trajectory.grade
    assert trajectory.grade.score.metrics == {"tests_agree": 1.0, "tests_timed_out": 0.0, "tests_not_run": 0.0}


@has_sandbox
async def test_a_repository_as_it_was_is_worth_nothing(task: ak.Task):
    trajectory = await played(task, "ls")
    assert trajectory.score == 0.0
    assert trajectory.grade is not None
    assert trajectory.grade.score is not None
    assert 0.0 < trajectory.grade.score.metrics["tests_agree"] < 1.0  # those that passed before still do


@has_sandbox
async def test_neither_tests_nor_the_solution_are_in_sight(task: ak.Task):
    trajectory = await played(
        task,
        "git log --all --oneline; git tag; git branch -a; git reflog; ls",
        "git cat-file --batch-all-objects --batch-check | grep -c commit",
        "grep -rl 'test_comma' /testbed /tmp /home /root/[!.]* 2>/dev/null; echo done",
    )
    history, commits, found, _ = seen(trajectory)
    assert "understand a comma" not in history
    assert "v2" not in history
    assert "solution" not in history
    assert "run_tests.sh" not in history
    assert commits.startswith("1\n")
    assert found.startswith("done")


FAKED = (
    "printf 'def test_whole(): pass\\ndef test_comma(): pass\\n' > tests/test_money.py\n"
    "mkdir r2e-tests; cp tests/test_money.py tests/test_more.py; echo 'echo ok' > run_tests.sh\n"
    "cat > r2e-tests/test_1.py <<'END'\nclass TestCents:\n    def test_whole(self): pass\n"
    "    def test_comma(self): pass\ndef test_legacy(): assert 0\nEND\n"
    "git add -f -A; git -c user.name=a -c user.email=a@b commit -qm fake; git log --oneline"
)


@has_sandbox
async def test_tests_of_the_policys_own_making_are_not_run(task: ak.Task):
    trajectory = await played(task, FAKED)
    assert "fake" in seen(trajectory)[0]
    assert trajectory.score == 0.0


@has_sandbox
@pytest.mark.parametrize("command", [FAKED, "rm -rf tests"])
async def test_who_mends_it_is_no_worse_off_for_what_became_of_the_tests(task: ak.Task, command: str):
    trajectory = await played(task, command, MEND)
    assert trajectory.score == 1.0, trajectory.grade


@has_sandbox
async def test_a_policy_that_leaves_the_tests_no_place_has_failed(task: ak.Task):
    leave = "rm -rf /testbed/* /testbed/.venv" if task.data["all_tests"] else "rm -rf .git"
    trajectory = await played(task, MEND, leave)
    assert trajectory.grade is not None
    assert trajectory.grade.score is not None, trajectory.grade
    assert trajectory.grade.score.metrics["tests_not_run"] == 1.0
    assert trajectory.score == 0.0


@has_sandbox
async def test_tests_that_never_end_are_the_policys_failure(task: ak.Task):
    trajectory = await played(task, "echo 'while True: pass' > money.py", timeout_s=3.0)
    assert trajectory.grade is not None
    assert trajectory.grade.score is not None, trajectory.grade
    assert trajectory.score == 0.0
    assert trajectory.grade.score.metrics["tests_timed_out"] == 1.0


@has_sandbox
async def test_an_image_that_does_not_fit_its_task_is_no_failure_of_the_policy(task: ak.Task):
    absent = {"hidden": ["/tmp/nowhere"]} if task.data["all_tests"] else {"base_commit": "0" * 40}
    trajectory = await played(attrs.evolve(task, data={**task.data, **absent}))
    assert trajectory.exit_reason is ak.ExitReason.ENV_START_FAILED
    assert trajectory.score is None
    assert trajectory.outcome is ak.Outcome.DROP


@has_sandbox
async def test_what_the_image_lacks_is_told(task: ak.Task):
    env = RepoEnv(IMAGES)
    broken = attrs.evolve(task, data={**task.data, "base_commit": "0" * 40})
    try:
        with pytest.raises(SandboxError, match=r"git checkout -q --force 0+' ended with"):
            await env.start(broken)
    finally:
        await env.close()


def test_sandboxes_that_start_no_images_are_refused():
    with pytest.raises(ConfigError, match="sandboxes that start images, found 'host'"):
        RepoEnv(SandboxConfig("host", HostBackend(), SandboxSpec()))


def test_data_of_the_wrong_kind_is_told():
    with pytest.raises(ConfigError, match=r"task 'a': data\.directory must be a str, found None"):
        RepoTask.of(ak.Task("a", data={"image": "x"}))


@has_sandbox
@pytest.mark.parametrize("task", ["r2e_gym"], indirect=True)
async def test_a_test_that_nobody_named_is_not_overlooked(task: ak.Task):
    expected = {name: status for name, status in task.data["expected"].items() if name != "test_legacy"}
    trajectory = await played(attrs.evolve(task, data={**task.data, "expected": expected}), MEND)
    assert trajectory.grade is not None
    assert trajectory.grade.score is not None
    assert trajectory.grade.score.metrics["tests_agree"] == 1.0
    assert trajectory.score == 0.0

"""The demo's reward: held-out tests, brought into the sandbox after the policy is done.

The tests that count never lie in the sandbox while the policy works, so editing or deleting tests gains nothing. They
run in a fresh isolated interpreter that imports the standard library before it may look into the repository, and the
verdict must carry a nonce that was not known before. Code under test shares that interpreter: a program written to
forge the verdict could do so. That is outside what this demo defends against.
"""

import json
import secrets

from agentkit.errors import SandboxError
from agentkit.protocols.sandbox import ExecResult
from agentkit.protocols.trajectory import Score, Trajectory
from agentkit.runs.demo.env import BugRepoEnv

GRADE_TIMEOUT_S = 60.0
"""Wall-clock limit: generous, since the processor time of the tests is limited by the script itself."""

_GRADE_SCRIPT = """import json, os, resource, sys, unittest
import importlib.util
resource.setrlimit(resource.RLIMIT_CPU, (3, 4))
nonce = sys.stdin.readline().strip()
sys.dont_write_bytecode = True
sys.path.append(os.getcwd())
suite = unittest.TestSuite()
for number, path in enumerate(sys.argv[1:]):
    spec = importlib.util.spec_from_file_location(f"hidden_{number}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    suite.addTests(unittest.defaultTestLoader.loadTestsFromModule(module))
with open(os.devnull, "w") as nowhere:
    result = unittest.TextTestRunner(stream=nowhere).run(suite)
bad = len(result.failures) + len(result.errors) + len(result.unexpectedSuccesses)
print(nonce, json.dumps({"run": result.testsRun, "failed": bad, "skipped": len(result.skipped)}), flush=True)
"""


async def tests_pass(trajectory: Trajectory, env: BugRepoEnv) -> Score:
    """1.0 if every hidden test of the env's task passes in the sandbox, else 0.0; `metrics`: how many ran and failed.

    Raises:
        SandboxError: the tests could not be run, which says nothing about the policy.
        SandboxDead: the sandbox is gone.
    Cancellation: the tests are killed; the files of the grader stay in the sandbox.
    """
    task = env.task
    hidden = task.data["hidden_tests"]
    expected = task.data["hidden_count"]
    if not isinstance(hidden, dict) or not isinstance(expected, int):
        raise TypeError(f"task {task.id!r} carries no hidden tests")
    nonce = secrets.token_hex(16)
    place = f".grade-{secrets.token_hex(4)}"
    paths = [f"{place}/{name}" for name in hidden]
    await env.write(f"{place}/grade.py", _GRADE_SCRIPT.encode())
    for path, text in zip(paths, hidden.values(), strict=True):
        await env.write(path, text.encode())
    result = await env.exec(
        ["python3", "-I", "-S", "-B", f"{place}/grade.py", *paths],
        stdin=f"{nonce}\n".encode(),
        timeout_s=GRADE_TIMEOUT_S,
    )
    if result.exit_code in (126, 127) and not result.timed_out:
        raise SandboxError(
            f"python3 cannot be run in the sandbox: exit code {result.exit_code}, {result.text[-200:]!r}"
        )
    run, failed = _verdict(result, nonce, expected)
    return Score(
        float(run == expected and failed == 0), metrics={"tests_run": float(run), "tests_failed": float(failed)}
    )


def _verdict(result: ExecResult, nonce: str, expected: int) -> tuple[int, int]:
    """(tests run, tests failed); a program that hangs or dies under test failed them all."""
    for line in result.text.splitlines():
        mark, _, verdict = line.partition(" ")
        if mark == nonce:
            counts = json.loads(verdict)
            return counts["run"], counts["failed"] + counts["skipped"]
    return 0, expected

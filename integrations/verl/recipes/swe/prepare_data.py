"""Rows of R2E-Gym (Lite, Subset) and of SWE-rebench as tasks; which of the two a row is from its columns say.

python -m recipes.swe.prepare_data r2e-gym-lite.parquet data/r2e-train.parquet
python -m recipes.swe.prepare_data swe-rebench-filtered.parquet data/rebench-train.parquet
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from recipes.prepare import prepare
from recipes.swe.test_log import dotted

from agentkit import Task, system, user

SYSTEM: Final = (
    "You are at a shell in a container with a repository. Find out why the issue happens, mend the source, and see by "
    "running code that it is mended. When you are done, call the tool submit. Commands that wait for input end at once."
)
ASKED: Final = """The repository is in {directory}. Someone reported:

<issue>
{issue}
</issue>

Mend it. Tests that you cannot see will be run on the result."""

_SYSTEM_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def task_of(row: Mapping[str, Any]) -> Task | None:
    """The task of one row; None for rows without an image, and those whose log only another parser reads."""
    return _of_r2e(row) if "expected_output_json" in row else _of_rebench(row)


def _of_r2e(row: Mapping[str, Any]) -> Task:
    expected = {dotted(name): str(status) for name, status in json.loads(row["expected_output_json"]).items()}
    expected.pop("", None)
    issue = re.search(r"\[ISSUE\](.*)\[/ISSUE\]", row["problem_statement"], re.DOTALL)
    data = {
        "image": row["docker_image"],
        "directory": "/testbed",
        "env": {"PATH": f"/testbed/.venv/bin:/root/.local/bin:/root/.cargo/bin:{_SYSTEM_PATH}"},
        "hidden": ["/testbed/run_tests.sh", "/r2e_tests"],
        "test_command": "bash run_tests.sh",
        "expected": expected,
        "all_tests": True,
        "data_source": "R2E-Gym",
    }
    return _task(f"{row['repo_name']}-{row['commit_hash']}", issue[1] if issue else row["problem_statement"], data)


def _of_rebench(row: Mapping[str, Any]) -> Task | None:
    config = row["install_config"]
    if isinstance(config, str):
        config = json.loads(config)
    if not row.get("docker_image") or not str((config or {}).get("log_parser", "")).startswith("parse_log_pytest"):
        return None
    files = re.findall(r"^\+\+\+ b/(\S+)", row["test_patch"], re.MULTILINE)
    tests = [path for path in files if path.endswith(".py")]
    names = [*_list(row["FAIL_TO_PASS"]), *_list(row["PASS_TO_PASS"])]
    data = {
        "image": row["docker_image"],
        "directory": "/testbed",
        "env": {"PATH": f"/opt/miniconda3/envs/testbed/bin:/opt/miniconda3/bin:{_SYSTEM_PATH}"},
        "base_commit": row["base_commit"],
        "test_patch": row["test_patch"],
        "test_command": " ".join([_command(config["test_cmd"]), *tests]),
        "expected": dict.fromkeys(names, "PASSED"),
        "all_tests": False,
        "data_source": "SWE-rebench",
    }
    return _task(row["instance_id"], row["problem_statement"], data)


def _task(name: str, issue: str, data: dict[str, Any]) -> Task:
    if not data["expected"]:
        raise ValueError(f"{name} names no test")
    asked = ASKED.format(directory=data["directory"], issue=issue.strip())
    return Task(name, (system(SYSTEM), user(asked)), data=data)


def _list(value: object) -> list[str]:
    found = json.loads(value) if isinstance(value, str) else value
    if not isinstance(found, list):
        raise TypeError(f"FAIL_TO_PASS and PASS_TO_PASS must be lists, found {value!r:.80}")
    return [str(name) for name in found]


def _command(value: object) -> str:
    return " && ".join(map(str, value)) if isinstance(value, list) else str(value)


if __name__ == "__main__":
    prepare(task_of, "rows of R2E-Gym and SWE-rebench as tasks")

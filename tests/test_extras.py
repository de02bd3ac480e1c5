"""A missing extra is one error that names it."""

import ast
import pickle
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from agentkit.errors import ConfigError, MissingExtraError
from agentkit.extras import require

ROOT = Path(__file__).parents[1]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
# where the import name is another
DISTRIBUTIONS = {"PIL": "pillow", "openenv": "openenv-core", "ruamel": "ruamel-yaml", "swerex": "swe-rex"}

# hides a package from a fresh interpreter, then does what a user would
HIDDEN = """
import sys
sys.path[:0] = {paths!r}
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {hidden!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hide())
{code}
"""


def require_calls() -> list[tuple[str, str, str]]:
    """(file, module, extra) of every literal call of `require` in shipped code."""
    found = []
    for base in ("agentkit", "integrations"):
        for path in sorted((ROOT / base).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and ast.unparse(node.func) in ("require", "extras.require"):
                    named = {
                        keyword.arg: ast.literal_eval(keyword.value)
                        for keyword in node.keywords
                        if keyword.arg == "extra"
                    }
                    found.append((str(path.relative_to(ROOT)), str(ast.literal_eval(node.args[0])), named["extra"]))
    return found


def packages_of(extra: str) -> set[str]:
    """Distributions that an extra brings, through extras of our own as well."""
    names = set()
    for line in EXTRAS[extra]:
        requirement = Requirement(line)
        if requirement.name == "agentkit-rl":
            names |= {name for inner in requirement.extras for name in packages_of(inner)}
        else:
            names.add(canonicalize_name(requirement.name))
    return names


def test_missing_module_is_a_config_error_that_names_the_extra():
    with pytest.raises(MissingExtraError) as caught:
        require("agentkit_no_such_module", extra="yaml", purpose="reading a config")
    assert isinstance(caught.value, ConfigError)
    text = str(caught.value)
    assert text == (
        "reading a config needs 'agentkit_no_such_module', which is not installed: pip install 'agentkit-rl[yaml]'"
    )


def test_missing_extra_error_pickles():
    error = pickle.loads(pickle.dumps(MissingExtraError("reading a config needs 'x'")))
    assert (type(error), str(error)) == (MissingExtraError, "reading a config needs 'x'")


def test_installed_module_is_returned():
    assert require("json.decoder", extra="yaml", purpose="nothing") is sys.modules["json.decoder"]


def test_what_an_installed_module_lacks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "half_installed.py").write_text("import agentkit_no_such_module\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(MissingExtraError, match=r"'agentkit_no_such_module'.*agentkit-rl\[hf\]"):
        require("half_installed", extra="hf", purpose="rendering")


def test_an_error_inside_an_installed_module_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "broken_module.py").write_text("raise ZeroDivisionError\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ZeroDivisionError):
        require("broken_module", extra="hf", purpose="rendering")


def test_every_extra_asked_for_exists_and_brings_the_module():
    calls = require_calls()
    assert calls, "no call of require was found: this test looks at nothing"
    for file, module, extra in calls:
        assert extra in EXTRAS, f"{file} names the extra {extra!r}"
        top = module.partition(".")[0]
        name = canonicalize_name(DISTRIBUTIONS.get(top, top))
        assert name in packages_of(extra), f"{file}: agentkit-rl[{extra}] does not bring {module}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hidden", "code", "extra"),
    [
        ("trio", "from agentkit.testing.clocks import virtual_trio; virtual_trio()", "trio"),
        ("verl", "import agentkit_verl; agentkit_verl.check_verl_version()", "verl"),
    ],
)
def test_a_user_without_the_extra_sees_one_error(hidden: str, code: str, extra: str):
    paths = [str(ROOT), str(ROOT / "integrations/openai"), str(ROOT / "integrations/verl")]
    program = HIDDEN.format(paths=paths, hidden=hidden, code=code)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    errors = [line for line in done.stderr.splitlines() if line.startswith("agentkit.errors.")]
    assert len(errors) == 1
    assert errors[0].startswith("agentkit.errors.MissingExtraError: ")
    assert errors[0].endswith(f"pip install 'agentkit-rl[{extra}]'")

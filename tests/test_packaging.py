"""The core's closure is pure Python, and the wheel holds what it should."""

import os
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
NATIVE_SUFFIXES = (".so", ".pyd", ".dylib", ".dll", ".a")
PURE_BUILDERS = ("hatchling", "flit", "setuptools", "bdist_wheel", "poetry-core", "uv")


def closure(name: str) -> dict[str, Distribution]:
    """The installed distributions that `name` needs without extras, itself left out."""
    found: dict[str, Distribution] = {}
    todo = [name]
    while todo:
        for line in distribution(todo.pop()).requires or ():
            requirement = Requirement(line)
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
                continue
            needed = canonicalize_name(requirement.name)
            if needed not in found:
                found[needed] = distribution(needed)
                todo.append(needed)
    return found


def wheel_fields(dist: Distribution) -> dict[str, str]:
    text = dist.read_text("WHEEL")
    assert text is not None, f"{dist.name} was not installed from a wheel"
    return dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)


def test_core_needs_three_packages_and_what_they_need():
    core = closure("agentkit-rl")
    assert {"anyio", "attrs", "cattrs"} <= set(core)
    assert set(core) <= {"anyio", "attrs", "cattrs", "idna", "typing-extensions"}


def test_core_closure_is_pure_python():
    for name, dist in closure("agentkit-rl").items():
        wheel = wheel_fields(dist)
        assert wheel["Root-Is-Purelib"] == "true", f"{name} is built for one platform"
        assert wheel["Tag"].endswith("-none-any"), f"{name} is tagged {wheel['Tag']}"
        assert wheel["Generator"].split()[0] in PURE_BUILDERS, f"{name} was built by {wheel['Generator']}"
        files = [str(file) for file in dist.files or ()]
        assert files, f"{name} does not say which files it has"
        assert not [file for file in files if file.endswith(NATIVE_SUFFIXES)], f"{name} ships native code"


def test_every_pinned_requirement_is_exact_and_names_no_host():
    for path in ROOT.glob("requirements-*.txt"):
        lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
        names = [canonicalize_name(Requirement(line).name) for line in lines]
        assert len(names) == len(set(names)), f"{path.name} names a package twice"
        for line in lines:
            assert [one.operator for one in Requirement(line).specifier] == ["=="], f"{path.name}: {line}"
            assert "://" not in line


def test_core_pins_satisfy_the_declared_ranges():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = (ROOT / "requirements-dev.txt").read_text().splitlines()
    pins = {line.partition("==")[0]: line.partition("==")[2] for line in lines if "==" in line}
    declared = project["dependencies"] + project["optional-dependencies"]["testing"]
    for line in declared:
        requirement = Requirement(line)
        assert pins[requirement.name] in requirement.specifier, line


def test_no_folder_of_integrations_shadows_the_package_it_integrates():
    folders = [ROOT / "integrations", *(ROOT / "integrations").iterdir()]
    assert not [folder for folder in folders if (folder / "__init__.py").exists()]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_wheel_holds_the_packages_and_nothing_else(tmp_path: Path):
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run(
        [*command, "--disable-pip-version-check", "--wheel-dir", str(tmp_path), str(ROOT)],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "PIP_NO_CACHE_DIR": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = {name.partition("/")[2]: name for name in names if ".dist-info/" in name}
        entry_points = archive.read(metadata["entry_points.txt"]).decode()
    tops = {name.partition("/")[0] for name in names if ".dist-info/" not in name}
    integrations = ("hf", "modal", "openai", "remote", "swerex", "vefaas", "verl", "vllm")
    assert tops == {"agentkit", *(f"agentkit_{name}" for name in integrations)}
    assert {"agentkit/py.typed", "agentkit_openai/__init__.py", "agentkit_verl/__init__.py"} <= names
    shipped = {name for name in names if ".dist-info/" not in name and name.endswith(".py")}
    on_disk = {
        str(path.relative_to(base))
        for base in (ROOT, *(ROOT / "integrations" / name for name in integrations))
        for top in tops
        for path in base.glob(f"{top}/**/*.py")
    }
    assert shipped == on_disk
    assert not [name for name in names if "test_" in name or name.startswith("tests/")]
    assert "agentkit = agentkit.cli.main:main" in entry_points
    assert "licenses/LICENSE" in metadata

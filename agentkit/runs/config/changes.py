"""Changes laid over a configuration, as a command line gives them: `agent.budget.max_turns=5`."""

from collections.abc import Iterable, Mapping

from attrs import frozen

from agentkit.errors import ConfigError
from agentkit.runs.config.document import read_value
from agentkit.runs.config.problems import Path, nearest, shown


@frozen
class Changed:
    """A tree with changes laid over it, and the paths at which something was changed."""

    tree: dict[str, object]
    paths: tuple[Path, ...]


def apply_changes(tree: Mapping[str, object], changes: Mapping[str, object] | Iterable[str]) -> Changed:
    """A copy of `tree` with each value put at its path, in order; `null` takes a field back to its default.

    A component that is only a name gets arguments by a path below it. Texts are read as YAML.

    Raises:
        ConfigError: a change is no `path=value`, or its path leads nowhere.
        MissingExtraError: the extra `yaml` is not installed.
    """
    if isinstance(changes, str):
        raise ConfigError(f"changes must be a list of path=value, or a mapping, found the text {changes!r:.80}")
    pairs = list(changes.items()) if isinstance(changes, Mapping) else [_parsed(change) for change in changes]
    changed = {key: _copy(value) for key, value in tree.items()}
    paths: list[Path] = []
    for path, value in pairs:
        steps = path.split(".")
        if not all(steps):
            raise ConfigError(
                f"the change of {path!r:.80}: a path is names with dots between, as in agent.budget.max_turns"
            )
        paths.append(_put(changed, steps, _copy(value), path))
    return Changed(changed, tuple(paths))


def _parsed(change: str) -> tuple[str, object]:
    path, equals, text = change.partition("=")
    if not equals:
        raise ConfigError(f"a change must be path=value, as in agent.budget.max_turns=5, found {change!r:.80}")
    return path.strip(), read_value(text, where=f"the change of {path.strip()}")


def _put(tree: dict[str, object], steps: list[str], value: object, path: str) -> Path:
    here: object = tree
    walked: list[str | int] = []
    for position, step in enumerate(steps):
        last = position == len(steps) - 1
        if isinstance(here, dict):
            walked.append(step)
            key = "path" if walked == ["dataset"] else "use"
            here[step] = below = value if last else _container(here.get(step), key)
        elif isinstance(here, list):
            index = _index(step, here, path)
            walked.append(index)
            here[index] = below = value if last else _container(here[index], "use")
        else:
            name = ".".join(steps[:position])
            raise ConfigError(f"the change of {path!r:.80}: {name} is {shown(here)}, which has nothing below it")
        here = below
    return tuple(walked)


def _container(found: object, key: str) -> object:
    """What a path can go on through: a mapping is made where there is nothing, or only a name, which goes to `key`."""
    if found is None:
        return {}
    return {key: found} if isinstance(found, str) else found


def _index(step: str, items: list[object], path: str) -> int:
    if step.isascii() and step.isdigit() and int(step[:9]) < len(items):
        return int(step)
    hint = nearest(step, [str(index) for index in range(len(items))], kind="places in it")
    raise ConfigError(f"the change of {path!r:.80}: {step!r} is no place in a list of {len(items)}: {hint}")


def _copy(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(key): _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list | tuple) else value

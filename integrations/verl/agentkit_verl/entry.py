"""An agent as `agent_loop_config_path` names it: the schema of `agentkit run`, but with verl's model."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn, cast

from attrs import evolve, frozen

from agentkit.errors import ConfigError, ModelError
from agentkit.parsing import HermesParser
from agentkit.protocols import EmitTokens, Finish, Model, TokenRequest
from agentkit.runs import RunConfig, load_config
from agentkit.runs.config.document import entry_names, read_document
from agentkit.runs.config.problems import Problems, tell
from agentkit.runs.config.values import StrictValues
from agentkit.tokens import byte_chatml
from agentkit_verl.settings import VerlSettings

PARSERS: Mapping[str, str] = {"hermes": "hermes", "qwen3_coder": "qwen3-coder"}
"""verl's `rollout.multi_turn.format` as the name of a parser of ours."""


@frozen
class Entry:
    """One agent: what the file says of it, and of its rows."""

    config: RunConfig
    settings: VerlSettings


def load_entry(
    path: "str | os.PathLike[str]", name: str | None, *, model: Model, parts: Mapping[str, object] | None = None
) -> Entry:
    """The entry `name` of the list at `path`, or the only one; `parts` are an agent's where the file says nothing.

    An entry has the sections of a run itself, or names the run's file as `config`, beside it. The sections `model` and
    `dataset` may stay: they are not looked at.

    Raises:
        ConfigError: lists what is wrong with the file, by path and line.
    """
    file = Path(path)
    tree = _tree(file, name)
    settings = dict(_section(tree, file))
    run = tree.get("config")
    if run is None:
        made = _settings(settings, file)
        if "agent" not in tree:
            raise ConfigError(f"{file}: the entry {tree.get('name')!r} has no agent: give one, or config: run.yaml")
        return Entry(load_config(file, entry=name, model=model, parts=parts), made)
    if unknown := set(tree) - {"name", "_target_", "config", "verl"}:
        raise ConfigError(
            f"{file}: the entry has config and {', '.join(sorted(map(repr, unknown)))}: say it in {run!r}, or leave "
            "config out"
        )
    if not isinstance(run, str):
        raise ConfigError(f"{file}: config must be the name of a file, found {run!r:.100}")
    other = file.parent / run
    settings = {**_section(_tree(other, None), other), **settings}
    config = load_config(other, model=model, parts=parts)
    if isinstance(named := tree.get("name"), str):  # what verl calls it, whatever the run's file is called
        config = evolve(config, name=named)
    return Entry(config, _settings(settings, file))


def check_entries(path: "str | os.PathLike[str]") -> None:
    """See that every agent of ours in the list at `path` can be made, its tokenizer apart, before minutes of start-up.

    Raises:
        ConfigError: lists what is wrong with the first that cannot.
    """
    file = Path(path)
    try:
        names = entry_names(file.read_text(encoding="utf-8-sig"), where=str(file))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the agent's configuration {str(file)!r}: {error}") from error
    parts = {"renderer": byte_chatml(), "parser": HermesParser()}
    for name in names:
        if str(_tree(file, name).get("_target_", "")).endswith(".AgentKitLoop"):
            load_entry(file, name, model=_Unasked(), parts=parts)


class _Unasked:
    """Stands for the servers, which do not run yet."""

    async def sample_tokens(self, request: TokenRequest, emit: EmitTokens, /) -> Finish:
        raise ModelError("no server runs yet")


def agent_names(path: "str | os.PathLike[str]", name: str | None) -> frozenset[str]:
    """The fields that the agent's section gives: what they say is not made, so that defaults need not be either.

    Raises:
        ConfigError: the file cannot be read.
    """
    file = Path(path)
    tree = _tree(file, name)
    if isinstance(run := tree.get("config"), str):
        tree = _tree(file.parent / run, None)
    agent = tree.get("agent")
    return (
        frozenset(key for key, value in agent.items() if value is not None)
        if isinstance(agent, Mapping)
        else frozenset()
    )


def _tree(file: Path, name: str | None) -> Mapping[str, object]:
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the agent's configuration {str(file)!r}: {error}") from error
    return read_document(text, where=str(file), entry=name).tree


def _section(tree: Mapping[str, object], file: Path) -> Mapping[str, object]:
    section = tree.get("verl")
    if section is None:
        return {}
    if not isinstance(section, Mapping):
        raise ConfigError(f"{file}: verl must be a mapping, found {section!r:.100}")
    return section


def _settings(section: Mapping[str, Any], file: Path) -> VerlSettings:
    try:
        return cast("VerlSettings", StrictValues(_no_component).structure(dict(section), VerlSettings))
    except Problems as error:
        raise tell(error.under("verl").problems, where=str(file), place=lambda _: None, hide=str) from None


def _no_component(value: object, hint: Any) -> NoReturn:
    raise Problems.one(f"must be {hint!r:.100}, found {value!r:.100}")

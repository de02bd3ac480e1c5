"""From a YAML file to a `RunConfig`."""

import os
from collections.abc import Iterable, Mapping

from agentkit.runs.config.settings import RunConfig


def load_config(
    path: "str | os.PathLike[str]",
    *,
    environ: Mapping[str, str] = os.environ,
    changes: Mapping[str, object] | Iterable[str] = (),
) -> RunConfig:
    """The run that the YAML file at `path` describes, its components imported and made, nothing started.

    `changes` are laid over the file: `{"agent.budget.max_turns": 5}`, or texts as a command line gives them,
    `["agent.budget.max_turns=5"]`, whose values are YAML. The folder of the file goes to the front of `sys.path`, as
    that of a script does, so that components may come from modules beside it.

    Raises:
        ConfigError: lists every problem with its path, its line, what was found, and the nearest name that would do.
        MissingExtraError: the extra `yaml`, or one that a component needs, is not installed.
    """
    raise NotImplementedError

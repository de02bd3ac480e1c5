"""The reaper: removes what owners that have ended left behind, and nothing else."""

from collections.abc import Collection
from pathlib import Path

import anyio
from anyio import to_thread
from attrs import frozen

from agentkit.errors import AgentkitError, ConfigError
from agentkit.sandbox.cgroups import reap_cgroups
from agentkit.sandbox.config import backend_class
from agentkit.sandbox.leaks import reap
from agentkit.sandbox.registry import Entry, Registry

AT_ONCE = 8
REMOVE_S = 60.0


@frozen(kw_only=True)
class Collected:
    """What was removed, and what could not be: `failed` are (what, why) pairs, and stay registered.

    `directories` are temporary ones and control groups.
    """

    directories: tuple[str, ...] = ()
    pids: tuple[int, ...] = ()
    removed: tuple[str, ...] = ()
    failed: tuple[tuple[str, str], ...] = ()


async def collect(
    *, types: Collection[str] | None = None, registry: Registry | None = None, directory: Path | None = None
) -> Collected:
    """Remove what is left of owners that have ended; of those alive, only what is a minute past its deadline.

    With `types`, only what these back ends have registered; without, also processes and temporary directories of this
    machine, those below `directory` (the system's for temporary files). Safe to run at any time, also several at once.

    Cancellation: what was not removed stays registered.
    """
    book = registry or Registry()
    local = await to_thread.run_sync(reap, directory) if types is None else None
    groups = await to_thread.run_sync(reap_cgroups) if types is None else ()
    due = [entry for entry in await to_thread.run_sync(book.due) if types is None or entry.type in types]
    removed: list[str] = []
    failed: list[tuple[str, str]] = []
    permits = anyio.Semaphore(AT_ONCE)

    async def one(entry: Entry) -> None:
        async with permits:
            why = await _remove(entry)
        name = f"{entry.type} {entry.name}"
        if why is None:
            book.forget(entry)
            removed.append(name)
        else:
            failed.append((name, why))

    async with anyio.create_task_group() as group:
        for entry in due:
            group.start_soon(one, entry)
    return Collected(
        directories=(*(local.directories if local else ()), *groups),
        pids=local.pids if local else (),
        removed=tuple(sorted(removed)),
        failed=tuple(sorted(failed)),
    )


async def _remove(entry: Entry) -> str | None:
    """Why `entry` could not be removed, or None."""
    try:
        cls = backend_class(entry.type)
        remove = getattr(cls, "remove", None)
        if remove is None:
            raise ConfigError(f"{cls.__name__} cannot remove what a killed process left")
        with anyio.fail_after(REMOVE_S):
            await remove(entry)
    except TimeoutError:
        return f"not removed within {REMOVE_S:.0f} s"
    except (AgentkitError, OSError) as error:
        return str(error)
    except Exception as error:  # of one entry, or of a back end of somebody's: the others are removed all the same
        return f"{type(error).__name__}: {error}"
    return None

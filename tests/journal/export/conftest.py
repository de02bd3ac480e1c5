"""Journals to export."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import pytest

from agentkit.journal import Journal
from agentkit.protocols import Trajectory

Written = Callable[[Iterable[Trajectory]], Path]


@pytest.fixture(scope="session")
def written() -> Iterator[Written]:
    """`written(trajectories)`: a fresh run folder with a journal of them."""
    with TemporaryDirectory() as folder:
        numbers = iter(range(1_000_000))

        def write(trajectories: Iterable[Trajectory]) -> Path:
            run = Path(folder) / str(next(numbers))
            run.mkdir()

            async def fill() -> None:
                async with Journal.open(run, writer="inline") as journal:
                    for trajectory in trajectories:
                        await journal.seal(trajectory)

            anyio.run(fill)
            return run

        yield write

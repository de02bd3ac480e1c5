"""What a unittest module says about a set of files, for many at once: forked, so that an endless loop ends."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

import pytest

_SCRIPT = r"""
import asyncio, io, json, os, pathlib, signal, sys, tempfile, unittest
sys.dont_write_bytecode = True
answers = []
for files, tests in json.load(sys.stdin):
    read, write = os.pipe()
    with tempfile.TemporaryDirectory() as place:
        child = os.fork()
        if child == 0:
            signal.setitimer(signal.ITIMER_VIRTUAL, 2.0)
            silence = os.open(os.devnull, os.O_RDWR)
            os.dup2(silence, 1)
            os.dup2(silence, 2)
            try:
                for path, text in {**files, "the_tests.py": tests}.items():
                    file = pathlib.Path(place, path)
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_text(text)
                sys.path.insert(0, place)
                suite = unittest.defaultTestLoader.loadTestsFromName("the_tests")
                result = unittest.TextTestRunner(stream=io.StringIO()).run(suite)
                os.write(write, b"1" if result.wasSuccessful() and result.testsRun else b"0")
            finally:
                os._exit(0)
        os.close(write)
        answers.append(os.read(read, 1) == b"1")
        os.close(read)
        os.waitpid(child, 0)
json.dump(answers, sys.stdout)
"""


@pytest.fixture(scope="session")
def all_pass() -> Callable[[Sequence[tuple[Mapping[str, str], str]]], list[bool]]:
    """For each (files, text of a test module): whether all its tests pass."""

    def ask(cases: Sequence[tuple[Mapping[str, str], str]]) -> list[bool]:
        done = subprocess.run(
            [sys.executable, "-c", _SCRIPT],
            input=json.dumps(cases),
            capture_output=True,
            text=True,
            timeout=50,
            check=True,
        )
        return list(json.loads(done.stdout))

    return ask

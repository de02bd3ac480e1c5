"""What a demo repository is made of: a small program with its tests, and the bugs that can be planted in it."""

from collections.abc import Mapping

from attrs import frozen

from agentkit.errors import InvariantError


@frozen
class Plant:
    """One bug: in `file`, the text `find`, which occurs once, becomes `replace`. `kind` names the class of mistake."""

    kind: str
    file: str
    find: str
    replace: str

    def apply(self, files: Mapping[str, str]) -> dict[str, str]:
        """`files` with the bug in it.

        Raises:
            InvariantError: `find` does not occur exactly once.
        """
        count = files[self.file].count(self.find)
        if count != 1:
            raise InvariantError(
                f"plant of kind {self.kind!r} finds {self.find!r} {count} times in {self.file!r}, not once"
            )
        return {**files, self.file: files[self.file].replace(self.find, self.replace)}


@frozen
class Program:
    """A correct small package.

    `files` are its modules by path; `tests` is the visible unittest module, `held_out` one that only the grader has.
    """

    name: str
    about: str
    files: Mapping[str, str]
    tests: str
    held_out: str
    plants: tuple[Plant, ...]

    @property
    def test_path(self) -> str:
        """Where the visible tests lie in the repository."""
        return f"tests/test_{self.name}.py"

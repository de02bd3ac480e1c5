"""A demo program: publish and subscribe on asyncio."""

from agentkit.runs.demo.program import Plant, Program

EVENTS = Program(
    name="events",
    about="A publish and subscribe hub on asyncio, with topics by pattern and a retry helper.",
    files={
        "events/__init__.py": '''"""Publish and subscribe."""

from events.hub import Hub
from events.retry import retry

__all__ = ["Hub", "retry"]
''',
        "events/pattern.py": '''"""Topics are words with dots between; * stands for one word, # for all that follow."""


def matches(pattern, topic):
    """Whether the topic is one of the pattern's."""
    wanted = pattern.split(".")
    words = topic.split(".")
    for number, word in enumerate(wanted):
        if word == "#":
            return True
        if number >= len(words):
            return False
        if word != "*" and word != words[number]:
            return False
    return len(wanted) == len(words)
''',
        "events/hub.py": '''"""The hub."""

from events.pattern import matches


class Hub:
    def __init__(self):
        self.handlers = []
        self.failures = []

    def on(self, pattern, handler, priority=0):
        """Call the coroutine function for every matching event; higher priorities first."""
        self.handlers.append((pattern, handler, priority))
        self.handlers.sort(key=lambda entry: -entry[2])

    def off(self, handler):
        """Forget a handler; how many registrations there were."""
        before = len(self.handlers)
        self.handlers = [entry for entry in self.handlers if entry[1] is not handler]
        return before - len(self.handlers)

    async def emit(self, topic, value):
        """The results of all handlers, in order; one that fails is noted and left out."""
        results = []
        for pattern, handler, _ in list(self.handlers):
            if not matches(pattern, topic):
                continue
            try:
                results.append(await handler(topic, value))
            except Exception as error:
                self.failures.append((topic, str(error)))
        return results
''',
        "events/retry.py": '''"""Trying again."""


async def retry(function, times=3, errors=(ValueError,)):
    """The result of the coroutine function, tried up to so many times; the last error if all fail."""
    if times < 1:
        raise TypeError("times must be positive")
    for attempt in range(1, times + 1):
        try:
            return await function()
        except errors:
            if attempt == times:
                raise
''',
    },
    tests="""import asyncio
import unittest

from events import Hub, retry
from events.pattern import matches


class TestEvents(unittest.TestCase):
    def test_patterns(self):
        cases = [("a.b", "a.b"), ("a.*", "a.b"), ("#", "x.y"), ("a.#", "a.b.c")]
        self.assertEqual([matches(p, t) for p, t in cases], [True] * 4)
        cases = [("a.b", "a.c"), ("a.*", "a"), ("a.*", "a.b.c"), ("a.b.c", "a.b")]
        self.assertEqual([matches(p, t) for p, t in cases], [False] * 4)

    def test_emit(self):
        async def double(topic, value):
            return value * 2

        async def name(topic, value):
            return topic

        hub = Hub()
        hub.on("n.*", double)
        hub.on("#", name, priority=5)
        self.assertEqual(asyncio.run(hub.emit("n.one", 4)), ["n.one", 8])

    def test_failures_are_noted(self):
        async def bad(topic, value):
            raise ValueError("no")

        hub = Hub()
        hub.on("#", bad)
        self.assertEqual(asyncio.run(hub.emit("t", 1)), [])
        self.assertEqual(hub.failures, [("t", "no")])
        self.assertEqual(hub.off(bad), 1)

    def test_retry(self):
        tries = []

        async def third():
            tries.append(1)
            if len(tries) < 3:
                raise ValueError("not yet")
            return "done"

        self.assertEqual(asyncio.run(retry(third)), "done")

    def test_retry_gives_up(self):
        async def never():
            raise ValueError("never")

        self.assertRaises(ValueError, asyncio.run, retry(never, times=2))
""",
    held_out="""import asyncio
import unittest

from events import Hub, retry
from events.pattern import matches


class TestEventsHeldOut(unittest.TestCase):
    def test_patterns(self):
        for pattern, topic, wanted in (
            ("*.b", "a.b", True),
            ("a.#", "a", True),
            ("a.*.c", "a.b.c", True),
            ("a.*.c", "a.b.d", False),
            ("a.b.c", "a.b", False),
        ):
            self.assertEqual(matches(pattern, topic), wanted, (pattern, topic))

    def test_priorities(self):
        hub, seen = Hub(), []

        def recorder(mark):
            async def record(topic, value):
                seen.append(mark)

            return record

        for mark in (1, 3, 2):
            hub.on("#", recorder(mark), priority=mark)
        asyncio.run(hub.emit("t", None))
        self.assertEqual(seen, [3, 2, 1])

    def test_off(self):
        async def one(topic, value):
            return 1

        async def two(topic, value):
            return 2

        hub = Hub()
        hub.on("a", one)
        hub.on("b", one)
        hub.on("a", two)
        self.assertEqual(hub.off(one), 2)
        self.assertEqual(asyncio.run(hub.emit("a", 0)), [2])

    def test_retry_counts(self):
        for times in (1, 2, 5):
            tries = []

            async def never():
                tries.append(1)
                raise ValueError

            self.assertRaises(ValueError, asyncio.run, retry(never, times=times))
            self.assertEqual(len(tries), times)

    def test_retry_lets_other_errors_through(self):
        tries = []

        async def other():
            tries.append(1)
            raise KeyError

        self.assertRaises(KeyError, asyncio.run, retry(other))
        self.assertEqual(len(tries), 1)
""",
    plants=(
        Plant("forgotten await", "events/retry.py", "return await function()", "return function()"),
        Plant("off by one", "events/retry.py", "range(1, times + 1)", "range(1, times)"),
        Plant("wrong operator", "events/pattern.py", 'word != "*" and word', 'word != "*" or word'),
        Plant(
            "swapped operands",
            "events/hub.py",
            "return before - len(self.handlers)",
            "return len(self.handlers) - before",
        ),
        Plant("wrong operator", "events/hub.py", "lambda entry: -entry[2]", "lambda entry: entry[2]"),
        Plant(
            "missing edge case", "events/pattern.py", "        if number >= len(words):\n            return False\n", ""
        ),
    ),
)

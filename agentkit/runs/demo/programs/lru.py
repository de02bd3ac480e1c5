"""A demo program: a least-recently-used cache."""

from agentkit.runs.demo.program import Plant, Program

LRU = Program(
    name="lru",
    about="A least-recently-used cache with statistics, and a decorator that memoises with it.",
    files={
        "lru/__init__.py": '''"""A least-recently-used cache."""

from lru.cache import Cache
from lru.memo import memoise

__all__ = ["Cache", "memoise"]
''',
        "lru/cache.py": '''"""The cache: a dict keeps the order of use, oldest first."""


class Cache:
    def __init__(self, size):
        if size < 1:
            raise ValueError("size must be positive")
        self.size = size
        self.hits = 0
        self.misses = 0
        self.entries = {}

    def __len__(self):
        return len(self.entries)

    def get(self, key, default=None):
        if key not in self.entries:
            self.misses += 1
            return default
        self.hits += 1
        value = self.entries.pop(key)
        self.entries[key] = value
        return value

    def put(self, key, value):
        self.entries.pop(key, None)
        self.entries[key] = value
        while len(self.entries) > self.size:
            oldest = next(iter(self.entries))
            del self.entries[oldest]

    def ratio(self):
        """Hits as a share of all reads; 0 before the first."""
        total = self.hits + self.misses
        if total == 0:
            return 0.0
        return self.hits / total
''',
        "lru/memo.py": '''"""Memoising functions."""

from lru.cache import Cache

MISSING = object()


def memoise(size=8):
    """A decorator: results are kept by positional and keyword arguments."""

    def decorate(function):
        cache = Cache(size)

        def call(*args, **kwargs):
            key = (args, tuple(sorted(kwargs.items())))
            value = cache.get(key, MISSING)
            if value is MISSING:
                value = function(*args, **kwargs)
                cache.put(key, value)
            return value

        call.cache = cache
        return call

    return decorate
''',
    },
    tests="""import unittest

from lru import Cache, memoise


class TestLru(unittest.TestCase):
    def test_forgets_the_least_recently_used(self):
        cache = Cache(2)
        cache.put("a", 1)
        cache.put("b", 2)
        cache.get("a")
        cache.put("c", 3)
        self.assertEqual((cache.get("a"), cache.get("b"), cache.get("c")), (1, None, 3))

    def test_holds_as_many_as_it_says(self):
        cache = Cache(3)
        for n in range(5):
            cache.put(n, n)
        self.assertEqual(len(cache), 3)

    def test_ratio(self):
        cache = Cache(1)
        self.assertEqual(cache.ratio(), 0.0)
        cache.put("a", 1)
        cache.get("a")
        cache.get("b")
        self.assertEqual(cache.ratio(), 0.5)

    def test_memoise(self):
        calls = []

        @memoise()
        def double(x, scale=2):
            calls.append(x)
            return x * scale

        self.assertEqual([double(2), double(2), double(3), double(2, scale=5), double(2, scale=6)], [4, 4, 6, 10, 12])
        self.assertEqual(calls, [2, 3, 2, 2])
""",
    held_out="""import random
import unittest

from lru import Cache, memoise


class TestLruHeldOut(unittest.TestCase):
    def test_agrees_with_a_slow_model(self):
        dice = random.Random(7)
        cache, order = Cache(4), []
        for _ in range(2000):
            key = dice.randrange(8)
            if dice.random() < 0.5:
                self.assertEqual(cache.get(key), key if key in order else None)
                if key in order:
                    order.remove(key)
                    order.append(key)
            else:
                cache.put(key, key)
                if key in order:
                    order.remove(key)
                order.append(key)
                order = order[-4:]
            self.assertEqual(list(cache.entries), order)
        self.assertEqual(cache.ratio(), cache.hits / (cache.hits + cache.misses))

    def test_size(self):
        self.assertRaises(ValueError, Cache, 0)
        cache = Cache(1)
        cache.put(1, "one")
        self.assertEqual(cache.get(1), "one")

    def test_memoise_keeps_none(self):
        calls = []

        @memoise(2)
        def nothing(x):
            calls.append(x)

        nothing(1)
        nothing(1)
        self.assertEqual(calls, [1])
""",
    plants=(
        Plant(
            "wrong comparison",
            "lru/cache.py",
            "while len(self.entries) > self.size",
            "while len(self.entries) >= self.size",
        ),
        Plant(
            "dropped statement",
            "lru/cache.py",
            "        value = self.entries.pop(key)\n        self.entries[key] = value\n        return value",
            "        value = self.entries[key]\n        return value",
        ),
        Plant("missing edge case", "lru/cache.py", "        if total == 0:\n            return 0.0\n", ""),
        Plant("wrong attribute", "lru/cache.py", "total = self.hits + self.misses", "total = self.hits + self.miss"),
        Plant("inverted condition", "lru/memo.py", "if value is MISSING", "if value is not MISSING"),
        Plant(
            "wrong key",
            "lru/memo.py",
            "key = (args, tuple(sorted(kwargs.items())))",
            "key = (args, tuple(sorted(kwargs)))",
        ),
    ),
)

"""A demo program: a heap and a priority queue."""

from agentkit.runs.demo.program import Plant, Program

HEAP = Program(
    name="heap",
    about="A binary heap, a stable priority queue on top of it, and merging of sorted streams.",
    files={
        "heap/__init__.py": '''"""A binary heap and what can be built on it."""

from heap.binary import Heap
from heap.queue import PriorityQueue, merge

__all__ = ["Heap", "PriorityQueue", "merge"]
''',
        "heap/binary.py": '''"""The heap: items[0] is the smallest."""


class Heap:
    def __init__(self, items=()):
        self.items = []
        for item in items:
            self.push(item)

    def __len__(self):
        return len(self.items)

    def push(self, item):
        self.items.append(item)
        child = len(self.items) - 1
        while child > 0:
            parent = (child - 1) // 2
            if self.items[parent] <= self.items[child]:
                break
            self.swap(parent, child)
            child = parent

    def pop(self):
        if not self.items:
            raise IndexError("empty heap")
        self.swap(0, len(self.items) - 1)
        smallest = self.items.pop()
        parent = 0
        while True:
            child = 2 * parent + 1
            if child >= len(self.items):
                break
            if child + 1 < len(self.items) and self.items[child + 1] < self.items[child]:
                child += 1
            if self.items[parent] <= self.items[child]:
                break
            self.swap(parent, child)
            parent = child
        return smallest

    def swap(self, i, j):
        self.items[i], self.items[j] = self.items[j], self.items[i]
''',
        "heap/queue.py": '''"""Things to do, most urgent first."""

from heap.binary import Heap


class PriorityQueue:
    """Lower numbers are more urgent; equal ones come out in the order they went in."""

    def __init__(self):
        self.heap = Heap()
        self.count = 0

    def __len__(self):
        return len(self.heap)

    def add(self, what, priority=0):
        self.heap.push((priority, self.count, what))
        self.count += 1

    def take(self):
        priority, number, what = self.heap.pop()
        return what


def merge(*streams):
    """One sorted list from sorted lists."""
    heap = Heap((stream[0], number, 0) for number, stream in enumerate(streams) if stream)
    out = []
    while len(heap):
        value, number, at = heap.pop()
        out.append(value)
        if at + 1 < len(streams[number]):
            heap.push((streams[number][at + 1], number, at + 1))
    return out
''',
    },
    tests="""import unittest

from heap import Heap, PriorityQueue, merge


class TestHeap(unittest.TestCase):
    def test_pops_in_order(self):
        heap = Heap([5, 2, 8, 1, 9, 3])
        self.assertEqual([heap.pop() for _ in range(6)], [1, 2, 3, 5, 8, 9])

    def test_empty(self):
        self.assertRaises(IndexError, Heap().pop)

    def test_queue_is_stable(self):
        queue = PriorityQueue()
        for what, priority in (("b", 1), ("c", 1), ("a", 0), ("d", 2)):
            queue.add(what, priority)
        self.assertEqual([queue.take() for _ in range(len(queue))], ["a", "b", "c", "d"])

    def test_merge(self):
        self.assertEqual(merge([1, 4, 7], [], [2, 3, 9]), [1, 2, 3, 4, 7, 9])
""",
    held_out="""import random
import unittest

from heap import Heap, PriorityQueue, merge


class TestHeapHeldOut(unittest.TestCase):
    def test_sorts(self):
        dice = random.Random(1)
        for size in range(40):
            items = [dice.randrange(20) for _ in range(size)]
            heap = Heap(items)
            self.assertEqual(len(heap), size)
            self.assertEqual([heap.pop() for _ in items], sorted(items))

    def test_stays_a_heap(self):
        dice = random.Random(4)
        heap, model = Heap(), []
        for _ in range(500):
            if model and dice.random() < 0.45:
                self.assertEqual(heap.pop(), model.pop(0))
            else:
                value = dice.randrange(50)
                heap.push(value)
                model = sorted(model + [value])

    def test_stability(self):
        queue = PriorityQueue()
        for n in range(30):
            queue.add(n, n % 3)
        self.assertEqual([queue.take() for _ in range(30)], sorted(range(30), key=lambda n: (n % 3, n)))

    def test_merge(self):
        streams = [sorted(random.Random(n).choices(range(30), k=n)) for n in range(6)]
        self.assertEqual(merge(*streams), sorted(sum(streams, [])))
        self.assertEqual(merge(), [])
""",
    plants=(
        Plant("off by one", "heap/binary.py", "child = 2 * parent + 1", "child = 2 * parent + 2"),
        Plant(
            "endless loop",
            "heap/binary.py",
            "            self.swap(parent, child)\n            child = parent\n",
            "            self.swap(parent, child)\n",
        ),
        Plant(
            "wrong comparison",
            "heap/binary.py",
            "self.items[child + 1] < self.items[child]",
            "self.items[child + 1] > self.items[child]",
        ),
        Plant(
            "swapped arguments",
            "heap/queue.py",
            "self.heap.push((priority, self.count, what))",
            "self.heap.push((self.count, priority, what))",
        ),
        Plant("missing edge case", "heap/queue.py", "enumerate(streams) if stream)", "enumerate(streams))"),
        Plant("wrong attribute", "heap/queue.py", "return len(self.heap)", "return len(self.heaps)"),
    ),
)

"""A demo program: graph search."""

from agentkit.runs.demo.program import Plant, Program

GRAPH = Program(
    name="graph",
    about="Graphs as dicts of neighbours: shortest paths, topological order, components.",
    files={
        "graph/__init__.py": '''"""Graph search."""

from graph.order import components, topological
from graph.paths import cheapest, shortest

__all__ = ["cheapest", "components", "shortest", "topological"]
''',
        "graph/paths.py": '''"""Ways from here to there."""

import heapq


def shortest(graph, start, goal):
    """A path with the fewest steps, or None."""
    before = {start: None}
    queue = [start]
    while queue:
        node = queue.pop(0)
        if node == goal:
            path = []
            while node is not None:
                path.append(node)
                node = before[node]
            return path[::-1]
        for neighbour in graph.get(node, ()):
            if neighbour not in before:
                before[neighbour] = node
                queue.append(neighbour)
    return None


def cheapest(graph, start, goal):
    """The least total cost, or None; graph[node] maps neighbours to costs."""
    best = {start: 0}
    heap = [(0, start)]
    while heap:
        cost, node = heapq.heappop(heap)
        if node == goal:
            return cost
        if cost > best[node]:
            continue
        for neighbour, step in graph.get(node, {}).items():
            total = cost + step
            if neighbour not in best or total < best[neighbour]:
                best[neighbour] = total
                heapq.heappush(heap, (total, neighbour))
    return None
''',
        "graph/order.py": '''"""Orders and groups."""


def topological(graph):
    """Nodes so that each comes before its successors, smallest first where free; ValueError on a cycle."""
    waiting = {}
    for node, successors in graph.items():
        waiting.setdefault(node, 0)
        for successor in successors:
            waiting[successor] = waiting.get(successor, 0) + 1
    ready = sorted(node for node, count in waiting.items() if count == 0)
    out = []
    while ready:
        node = ready.pop(0)
        out.append(node)
        for successor in graph.get(node, ()):
            waiting[successor] -= 1
            if waiting[successor] == 0:
                ready.append(successor)
        ready.sort()
    if len(out) < len(waiting):
        raise ValueError("cycle")
    return out


def reach(graph, node, seen=None):
    """Everything that can be reached from the node, itself included."""
    seen = set() if seen is None else seen
    seen.add(node)
    for neighbour in graph[node]:
        if neighbour not in seen:
            reach(graph, neighbour, seen)
    return seen


def components(graph):
    """The connected parts of an undirected graph as sorted lists, in order."""
    parts = []
    done = set()
    for node in sorted(graph):
        if node not in done:
            part = reach(graph, node)
            done |= part
            parts.append(sorted(part))
    return parts
''',
    },
    tests="""import unittest

from graph import cheapest, components, shortest, topological


class TestGraph(unittest.TestCase):
    def test_shortest(self):
        graph = {"a": ["b", "c"], "b": ["d"], "c": ["e"], "e": ["d"]}
        self.assertEqual(shortest(graph, "a", "d"), ["a", "b", "d"])

    def test_shortest_takes_the_short_way(self):
        graph = {1: [2, 5], 2: [3], 3: [4], 5: [4]}
        self.assertEqual(shortest(graph, 1, 4), [1, 5, 4])

    def test_no_way(self):
        self.assertIsNone(shortest({"a": []}, "a", "z"))

    def test_cheapest(self):
        graph = {"a": {"b": 7, "c": 1}, "c": {"b": 2}, "b": {"d": 1}}
        self.assertEqual(cheapest(graph, "a", "d"), 4)
        self.assertIsNone(cheapest({"a": {"b": 1}}, "a", "z"))

    def test_topological(self):
        clothes = {"shirt": ["tie"], "tie": ["coat"], "belt": ["coat"]}
        self.assertEqual(topological(clothes), ["belt", "shirt", "tie", "coat"])
        self.assertEqual(topological({"a": ["z", "b"]}), ["a", "b", "z"])

    def test_cycle(self):
        self.assertRaises(ValueError, topological, {1: [2], 2: [1]})

    def test_components(self):
        self.assertEqual(components({1: [2], 2: [1], 3: [], 4: [5], 5: [4]}), [[1, 2], [3], [4, 5]])
""",
    held_out="""import random
import unittest

from graph import cheapest, components, shortest, topological


class TestGraphHeldOut(unittest.TestCase):
    def test_unit_costs_agree_with_steps(self):
        dice = random.Random(11)
        for _ in range(60):
            graph = {n: {dice.randrange(9): 1 for _ in range(2)} for n in range(9)}
            path, cost = shortest(graph, 0, 8), cheapest(graph, 0, 8)
            self.assertEqual(None if path is None else len(path) - 1, cost)
            for one, two in zip(path or [], (path or [])[1:]):
                self.assertIn(two, graph[one])

    def test_topological_is_an_order(self):
        dice = random.Random(2)
        for _ in range(50):
            graph = {n: [m for m in range(n + 1, 10) if dice.random() < 0.3] for n in range(10)}
            order = topological(graph)
            self.assertEqual(sorted(order), list(range(10)))
            for node, successors in graph.items():
                for successor in successors:
                    self.assertLess(order.index(node), order.index(successor))
        self.assertRaises(ValueError, topological, {0: [1], 1: [2], 2: [1]})

    def test_components(self):
        self.assertEqual(components({}), [])
        self.assertEqual(components({3: [1], 1: [3, 2], 2: [1], 0: []}), [[0], [1, 2, 3]])

    def test_itself(self):
        self.assertEqual(shortest({}, 1, 1), [1])
        self.assertEqual(cheapest({}, 1, 1), 0)
""",
    plants=(
        Plant(
            "mutable default",
            "graph/order.py",
            "seen=None):\n"
            '    """Everything that can be reached from the node, itself included."""\n'
            "    seen = set() if seen is None else seen\n",
            'seen=set()):\n    """Everything that can be reached from the node, itself included."""\n',
        ),
        Plant("wrong constant", "graph/paths.py", "queue.pop(0)", "queue.pop()"),
        Plant("missing slice", "graph/paths.py", "return path[::-1]", "return path"),
        Plant("wrong comparison", "graph/paths.py", "total < best[neighbour]", "total > best[neighbour]"),
        Plant("dropped statement", "graph/order.py", "        ready.sort()\n", ""),
        Plant("missing edge case", "graph/paths.py", "graph.get(node, {}).items()", "graph[node].items()"),
    ),
)

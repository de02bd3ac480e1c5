"""A demo program: a prefix tree."""

from agentkit.runs.demo.program import Plant, Program

TRIE = Program(
    name="trie",
    about="A prefix tree of words with counts: completion, longest match, deletion.",
    files={
        "trie/__init__.py": '''"""A prefix tree."""

from trie.complete import complete, longest_match
from trie.tree import Trie

__all__ = ["Trie", "complete", "longest_match"]
''',
        "trie/tree.py": '''"""The tree: a node is a dict of children and a count of words that end there."""


class Node:
    def __init__(self):
        self.children = {}
        self.count = 0


class Trie:
    def __init__(self, words=()):
        self.root = Node()
        for word in words:
            self.add(word)

    def add(self, word, times=1):
        node = self.root
        for char in word:
            if char not in node.children:
                node.children[char] = Node()
            node = node.children[char]
        node.count += times

    def find(self, prefix):
        """The node of a prefix, or None."""
        node = self.root
        for char in prefix:
            node = node.children.get(char)
            if node is None:
                return None
        return node

    def count(self, word):
        node = self.find(word)
        return 0 if node is None else node.count

    def remove(self, word):
        """Forget the word; True if it was there. Nodes no longer needed go too."""
        if self.count(word) == 0:
            return False
        path = [self.root]
        for char in word:
            path.append(path[-1].children[char])
        path[-1].count = 0
        for depth in range(len(word), 0, -1):
            if path[depth].children or path[depth].count:
                break
            del path[depth - 1].children[word[depth - 1]]
        return True
''',
        "trie/complete.py": '''"""Questions to a tree."""


def walk(node, prefix):
    """Every (word, count) below the node, in order."""
    if node.count:
        yield prefix, node.count
    for char in sorted(node.children):
        yield from walk(node.children[char], prefix + char)


def complete(trie, prefix, limit=3):
    """The most frequent words with the prefix; ties in alphabetical order."""
    node = trie.find(prefix)
    if node is None:
        return []
    found = sorted(walk(node, prefix), key=lambda pair: (-pair[1], pair[0]))
    return [word for word, count in found[:limit]]


def longest_match(trie, text):
    """The longest word that text starts with, or an empty string."""
    node = trie.root
    best = 0
    for at, char in enumerate(text):
        node = node.children.get(char)
        if node is None:
            break
        if node.count:
            best = at + 1
    return text[:best]
''',
    },
    tests="""import unittest

from trie import Trie, complete, longest_match


class TestTrie(unittest.TestCase):
    def setUp(self):
        self.trie = Trie(["tea", "ten", "to", "tea", "in", "inn"])

    def test_counts(self):
        self.assertEqual([self.trie.count(w) for w in ("tea", "te", "inn", "zoo")], [2, 0, 1, 0])

    def test_complete(self):
        self.assertEqual(complete(self.trie, "t"), ["tea", "ten", "to"])
        self.assertEqual(complete(self.trie, "t", limit=1), ["tea"])

    def test_nothing_to_complete(self):
        self.assertEqual(complete(self.trie, "x"), [])

    def test_longest_match(self):
        self.assertEqual(longest_match(self.trie, "inner"), "inn")
        self.assertEqual(longest_match(self.trie, "zebra"), "")

    def test_remove(self):
        self.assertTrue(self.trie.remove("inn"))
        self.assertFalse(self.trie.remove("inn"))
        self.assertEqual(longest_match(self.trie, "inner"), "in")
        self.assertEqual(self.trie.find("inn"), None)
""",
    held_out="""import random
import unittest

from trie import Trie, complete, longest_match


class TestTrieHeldOut(unittest.TestCase):
    def test_agrees_with_a_dict(self):
        dice = random.Random(9)
        trie, model = Trie(), {}
        for _ in range(800):
            word = "".join(dice.choice("ab") for _ in range(dice.randrange(1, 5)))
            if dice.random() < 0.3:
                self.assertEqual(trie.remove(word), model.pop(word, 0) > 0)
            else:
                trie.add(word)
                model[word] = model.get(word, 0) + 1
            self.assertEqual(trie.count(word), model.get(word, 0))
        ranked = sorted((w for w in model if w.startswith("a")), key=lambda w: (-model[w], w))
        self.assertEqual(complete(trie, "a", 5), ranked[:5])

    def test_removal_leaves_nothing(self):
        trie = Trie(["abc"])
        trie.remove("abc")
        self.assertEqual(trie.root.children, {})

    def test_longest_match(self):
        trie = Trie(["a", "abc"])
        self.assertEqual([longest_match(trie, t) for t in ("ab", "abcd", "", "b")], ["a", "abc", "", ""])

    def test_add_times(self):
        trie = Trie()
        trie.add("x", times=4)
        self.assertEqual(trie.count("x"), 4)
""",
    plants=(
        Plant("wrong constant", "trie/complete.py", "best = at + 1", "best = at"),
        Plant(
            "wrong operator",
            "trie/complete.py",
            "key=lambda pair: (-pair[1], pair[0])",
            "key=lambda pair: (pair[1], pair[0])",
        ),
        Plant("missing edge case", "trie/complete.py", "    if node is None:\n        return []\n", ""),
        Plant(
            "wrong operator",
            "trie/tree.py",
            "if path[depth].children or path[depth].count",
            "if path[depth].children and path[depth].count",
        ),
        Plant("wrong assignment", "trie/tree.py", "node.count += times", "node.count = times"),
        Plant(
            "missing return",
            "trie/tree.py",
            "return 0 if node is None else node.count",
            "0 if node is None else node.count",
        ),
    ),
)

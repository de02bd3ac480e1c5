"""The programs that the demo's repositories are made from: each with its tests and the bugs that can be planted."""

from agentkit.runs.demo.programs.calc import CALC
from agentkit.runs.demo.programs.csvlite import CSVLITE
from agentkit.runs.demo.programs.days import DAYS
from agentkit.runs.demo.programs.events import EVENTS
from agentkit.runs.demo.programs.graph import GRAPH
from agentkit.runs.demo.programs.heap import HEAP
from agentkit.runs.demo.programs.intervals import INTERVALS
from agentkit.runs.demo.programs.inventory import INVENTORY
from agentkit.runs.demo.programs.ledger import LEDGER
from agentkit.runs.demo.programs.lru import LRU
from agentkit.runs.demo.programs.matrix import MATRIX
from agentkit.runs.demo.programs.roman import ROMAN
from agentkit.runs.demo.programs.stats import STATS
from agentkit.runs.demo.programs.trie import TRIE
from agentkit.runs.demo.programs.wrapping import WRAPPING

PROGRAMS = (
    ROMAN,
    WRAPPING,
    CALC,
    CSVLITE,
    INTERVALS,
    MATRIX,
    STATS,
    DAYS,
    LRU,
    GRAPH,
    HEAP,
    TRIE,
    LEDGER,
    INVENTORY,
    EVENTS,
)

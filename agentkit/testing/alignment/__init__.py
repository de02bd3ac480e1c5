"""Token alignment, tested: a renderer against the chat template's own full renders, on conversations that are made up.

`check_alignment` tries every property on one subject; `alignment_suite` makes pytest tests of them. Needs the extra
`testing`.
"""

from agentkit.testing.alignment.conversations import Conversation as Conversation
from agentkit.testing.alignment.conversations import Exchange as Exchange
from agentkit.testing.alignment.conversations import Sampling as Sampling
from agentkit.testing.alignment.oracles import HFOracle as HFOracle
from agentkit.testing.alignment.oracles import Oracle as Oracle
from agentkit.testing.alignment.oracles import TemplateOracle as TemplateOracle
from agentkit.testing.alignment.properties import PROPERTIES as PROPERTIES
from agentkit.testing.alignment.properties import Kind as Kind
from agentkit.testing.alignment.properties import Property as Property
from agentkit.testing.alignment.report import AlignmentFailed as AlignmentFailed
from agentkit.testing.alignment.report import Counterexample as Counterexample
from agentkit.testing.alignment.report import Misaligned as Misaligned
from agentkit.testing.alignment.search import Finding as Finding
from agentkit.testing.alignment.search import check_alignment as check_alignment
from agentkit.testing.alignment.search import find_all as find_all
from agentkit.testing.alignment.search import search as search
from agentkit.testing.alignment.subject import Subject as Subject
from agentkit.testing.alignment.subject import subject_of as subject_of
from agentkit.testing.alignment.suite import alignment_suite as alignment_suite

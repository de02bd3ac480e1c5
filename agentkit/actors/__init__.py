"""Who waits: agents, budgets, mailboxes, pools, supervision."""

from agentkit.actors.actor import Actor as Actor
from agentkit.actors.agent import Agent as Agent
from agentkit.actors.agent import Loop as Loop
from agentkit.actors.events import Answered as Answered
from agentkit.actors.events import Ended as Ended
from agentkit.actors.events import Event as Event
from agentkit.actors.events import Observed as Observed
from agentkit.actors.events import Sampled as Sampled
from agentkit.actors.loops import chat as chat
from agentkit.actors.loops import react as react
from agentkit.actors.outcomes import OutcomePolicy as OutcomePolicy
from agentkit.actors.permits import FairPermits as FairPermits
from agentkit.actors.pool import Pool as Pool
from agentkit.actors.run import Run as Run
from agentkit.actors.rollout import Result as Result
from agentkit.actors._conversation import Bookmark as Bookmark
from agentkit.actors.rollout import Rollout as Rollout
from agentkit.actors.subagents import SubAgent as SubAgent

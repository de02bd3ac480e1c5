"""agentkit: async actors for agentic RL. One interaction loop for evaluation and training.

Compose an `Agent` of a model, an env, tools and a reward; run it in a `Pool`; get token-exact trajectories.
"""

from agentkit.actors import Actor as Actor
from agentkit.actors import Agent as Agent
from agentkit.actors import OutcomePolicy as OutcomePolicy
from agentkit.actors import Pool as Pool
from agentkit.actors import Result as Result
from agentkit.actors import Rollout as Rollout
from agentkit.actors import SubAgent as SubAgent
from agentkit.actors import chat as chat
from agentkit.actors import react as react
from agentkit.errors import AgentkitError as AgentkitError
from agentkit.errors import ConfigError as ConfigError
from agentkit.errors import ModelError as ModelError
from agentkit.errors import RolloutEnded as RolloutEnded
from agentkit.errors import SandboxDead as SandboxDead
from agentkit.errors import ToolError as ToolError
from agentkit.protocols import Action as Action
from agentkit.protocols import Blame as Blame
from agentkit.protocols import Budget as Budget
from agentkit.protocols import Env as Env
from agentkit.protocols import ExitReason as ExitReason
from agentkit.protocols import Files as Files
from agentkit.protocols import Grade as Grade
from agentkit.protocols import Message as Message
from agentkit.protocols import MessageModel as MessageModel
from agentkit.protocols import Observation as Observation
from agentkit.protocols import Outcome as Outcome
from agentkit.protocols import Score as Score
from agentkit.protocols import Shell as Shell
from agentkit.protocols import Task as Task
from agentkit.protocols import TokenModel as TokenModel
from agentkit.protocols import Tool as Tool
from agentkit.protocols import ToolCall as ToolCall
from agentkit.protocols import ToolContext as ToolContext
from agentkit.protocols import Trajectory as Trajectory
from agentkit.protocols import assistant as assistant
from agentkit.protocols import system as system
from agentkit.protocols import user as user
from agentkit.tools import tool as tool
from agentkit.errors import ContextOverflow as ContextOverflow
from agentkit.errors import SandboxError as SandboxError
from agentkit.protocols import FinishReason as FinishReason
from agentkit.protocols import Finish as Finish
from agentkit.protocols import GradeStatus as GradeStatus
from agentkit.protocols import ObservationStatus as ObservationStatus
from agentkit.protocols import RolloutKey as RolloutKey
from agentkit.protocols import TextChunk as TextChunk
from agentkit.protocols import TokenChunk as TokenChunk
from agentkit.protocols import Reward as Reward
from agentkit.protocols import Sink as Sink
from agentkit.protocols import ToolSpec as ToolSpec
from agentkit.protocols import Chain as Chain

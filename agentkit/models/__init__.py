"""Models that need nothing: scripted, replayed."""

from agentkit.models.replay import ReplayModel as ReplayModel
from agentkit.models.scripted import ScriptedMessageModel as ScriptedMessageModel
from agentkit.models.scripted import ScriptedModel as ScriptedModel

"""How a rollout is judged: rewards are async callables; here is what most of them need."""

from agentkit.rewards.answers import answer_of as answer_of
from agentkit.rewards.answers import exact_match as exact_match
from agentkit.rewards.scores import as_score as as_score
from agentkit.rewards.weighted import weighted as weighted

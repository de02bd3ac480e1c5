"""Credit beyond one scalar for each rollout: advantages by session, turn and state, and weights of tokens.

`agentkit_verl.credit.registered` puts the estimators and the policy losses into verl's registries. What is named here
needs neither torch nor verl.
"""

from agentkit_verl.credit.context import BatchRows as BatchRows
from agentkit_verl.credit.context import batch_rows as batch_rows
from agentkit_verl.credit.context import current_rows as current_rows
from agentkit_verl.credit.settings import CreditSettings as CreditSettings

"""What an agent can do: tools from functions, the checks around them, a shell and the ends of a rollout."""

from agentkit.tools.bash import bash as bash
from agentkit.tools.bash import execute_bash as execute_bash
from agentkit.tools.bind import check_needs as check_needs
from agentkit.tools.finish import finish as finish
from agentkit.tools.finish import submit as submit
from agentkit.tools.function import FunctionTool as FunctionTool
from agentkit.tools.function import tool as tool
from agentkit.tools.schema import check_arguments as check_arguments
from agentkit.tools.threads import stuck_threads as stuck_threads
from agentkit.tools.terminal_session import terminal as terminal

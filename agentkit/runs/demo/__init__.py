"""The demo: real bug-fixing tasks, run by a scripted policy through the same loop, sandboxes and journal as any run."""

from agentkit.runs.demo.env import BugRepoEnv as BugRepoEnv
from agentkit.runs.demo.policy import ScriptedBugFixer as ScriptedBugFixer
from agentkit.runs.demo.reward import tests_pass as tests_pass
from agentkit.runs.demo.run import run_demo as run_demo
from agentkit.runs.demo.tasks import demo_tasks as demo_tasks

"""A small project to start from: an agent, tasks, a run and tests."""

from agentkit.runs.init.project import write_project as write_project

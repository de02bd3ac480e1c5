"""A run in numbers: success with honest intervals, pass@k, why rollouts ended, where the time went."""

from agentkit.runs.report.summary import report as report
from agentkit.runs.report.summary import summarise as summarise
from agentkit.runs.report.facts import Facts as Facts
from agentkit.runs.report.facts import RolloutFacts as RolloutFacts
from agentkit.runs.report.facts import read_facts as read_facts
from agentkit.runs.report.stats import Estimate as Estimate
from agentkit.runs.report.stats import Histogram as Histogram
from agentkit.runs.report.stats import TaskBootstrap as TaskBootstrap
from agentkit.runs.report.stats import pass_at_k as pass_at_k
from agentkit.runs.report.stats import wilson as wilson
from agentkit.runs.report.values import Report as Report
from agentkit.runs.report.values import Notable as Notable
from agentkit.runs.report.values import Spread as Spread
from agentkit.runs.report.page import between as between
from agentkit.runs.report.page import inspect_command as inspect_command
from agentkit.runs.report.page import render_page as render_page
from agentkit.runs.report.page import time_text as time_text
from agentkit.runs.report.svg import short as short

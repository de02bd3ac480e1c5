"""Tests of a tokenizer and its chat template: does the record of a rollout equal what the template would render?

Put your own folder (or a name on the hub) in place of models/mine. It needs `pip install -e '.[testing,hf]'`, and runs
as `pytest test_my_template.py`.
"""

# --8<-- [start:suite]
from agentkit.testing import alignment_suite

SEARCH = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Searches the web.",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
    },
}

TestMyTemplate = alignment_suite("models/mine", tools=[SEARCH], reasoning=False)
# --8<-- [end:suite]

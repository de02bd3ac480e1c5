"""What the page on parsing shows."""

import anyio

from agentkit.parsing import HermesParser, parse


async def main() -> None:
    # --8<-- [start:parse]
    parsed = parse(HermesParser(), '<tool_call>{"name": "now", "arguments": {}}</tool_call>')
    assert parsed.attempts[0].name == "now"
    # --8<-- [end:parse]


if __name__ == "__main__":
    anyio.run(main)

"""A rollout server for the chaos test: it knows what each rollout of a prompt does, and which of them go wrong."""

import asyncio
from collections import Counter
from typing import Any

import ray
from agentkit_verl.cpu.replica import CPUReplica

KINDS = ("sandbox_dead", "tool_hang", "server_error", "reward_crash", "deadline")
"""What goes wrong, in turn, in every fifth rollout."""


def kind_of(number: int, session: int) -> str | None:
    """What goes wrong in the rollout that is number `session` of prompt `number` to ask the server."""
    count = number * 8 + session
    return KINDS[(count // 5) % len(KINDS)] if count % 5 == 4 else None


class ScriptedServer:
    """Answers as a policy would that calls a shell once and then finishes."""

    def __init__(self, tokenizer: str, n: int) -> None:
        from transformers import AutoTokenizer

        self._tokenizer = AutoTokenizer.from_pretrained(tokenizer)
        self._n = n
        self._sessions: dict[tuple[int, str], int] = {}
        self._begun: Counter[int] = Counter()
        self._running: dict[str, asyncio.Event] = {}
        self.counts: Counter[str] = Counter()

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any
    ) -> Any:
        from verl.workers.rollout.replica import TokenOutput

        text = self._tokenizer.decode(prompt_ids)
        number = int(text.split("<|im_start|>user\nTask ")[1].split(".")[0])
        turn = text.count("<|im_start|>assistant") - 1
        if turn == 0:
            kind = kind_of(number, self._begun[number]) if self._begun[number] < self._n else None
            self._begun[number] += 1
        else:
            kind = text.split("kind=")[1].split(";")[0] if "kind=" in text else None
        self.counts["calls"] += 1
        aborted = self._running[request_id] = asyncio.Event()
        try:
            ids, stop = await self._answer(turn, kind, aborted)
        finally:
            del self._running[request_id]
        return TokenOutput(
            token_ids=ids,
            log_probs=[-0.5] * len(ids),
            stop_reason=stop,
            num_preempted=0,
            extra_fields={"global_steps": 3},
        )

    async def _answer(self, turn: int, kind: str | None, aborted: asyncio.Event) -> tuple[list[int], str]:
        await asyncio.sleep(0.01)
        if kind == "server_error":
            raise RuntimeError("planted: the engine fell over")
        if kind == "deadline":
            await aborted.wait()
            self.counts["aborted"] += 1
            return self._tokenizer.encode("half a th", add_special_tokens=False), "aborted"
        if turn == 0:
            command = "sleep 1000" if kind == "tool_hang" else f"echo 'kind={kind};'"
            said = f'<tool_call>\n{{"name": "execute_bash", "arguments": {{"command": "{command}"}}}}\n</tool_call>'
            if kind == "sandbox_dead":
                said = '<tool_call>\n{"name": "unplug", "arguments": {}}\n</tool_call>'
        else:
            answer = "crash" if kind == "reward_crash" else "fine"
            said = f'<tool_call>\n{{"name": "finish", "arguments": {{"answer": "{answer}"}}}}\n</tool_call>'
        return self._tokenizer.encode(said + "<|im_end|>", add_special_tokens=False), "completed"

    async def abort_request(self, request_id: str, reset_prefix_cache: bool = True) -> None:
        if request_id in self._running:
            self._running[request_id].set()

    async def get_state(self) -> dict[str, int]:
        return {"running": len(self._running), **self.counts}


class ScriptedReplica(CPUReplica):
    """Starts such a server in place of one with a model."""

    async def launch_servers(self) -> None:
        name = f"chaos_server_{self.replica_rank}"
        server = ray.remote(ScriptedServer).options(name=name, num_cpus=0, max_concurrency=2000)
        handle = server.remote(self.model_config.path, 8)
        await handle.get_state.remote()
        self.servers, self._server_handle, self._server_address = [handle], handle, name

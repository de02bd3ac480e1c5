"""What `verl_loop.py` measures: a scripted conversation, verl's own loop and ours on it, and the least it can cost."""

import asyncio
import json
import pickle
import sys
import time
from array import array
from collections.abc import Sequence
from functools import cache
from itertools import chain, pairwise, takewhile
from pathlib import Path
from typing import Any

from _report import ROOT
from _turns import Turn, turns
from attrs import field, frozen

sys.path.insert(0, str(ROOT))

SUBJECT = "qwen3"
STOP = "<|im_end|>"
MESSAGES = (
    {"role": "system", "content": "You repair Python projects. Read before you write, and say when you are done."},
    {"role": "user", "content": "The tests fail since the last release of the dependencies. Find out why, fix it."},
)
RESULTS: dict[str, str] = {}
"""What the tool returns, by path."""


@frozen
class Said:
    """One answer of the policy, and the text that the template writes from its stop to the next generation."""

    ids: list[int]
    tail: str


@frozen
class Script:
    """A conversation of `len(said)` turns: tool calls, and a last word. `ids` is the whole of it, as it must come out.

    `opening` is the text of the first prompt.
    """

    tokenizer: Any
    opening: str
    said: Sequence[Said]
    ids: list[int]
    mask: list[int]
    starts: list[int]
    """The length of the prompt of each turn."""

    @staticmethod
    def of(tokenizer: Any, tool: Any, made: Sequence[Turn], last: list[int], count: int) -> "Script":
        """The first `count - 1` of the turns, and the last word."""
        said = [*(Said(turn.sampled, turn.tail) for turn in made[: count - 1]), Said(last, "")]
        schema = [tool.tool_schema.model_dump(exclude_unset=True, exclude_none=True)]
        opening = tokenizer.apply_chat_template(
            list(MESSAGES), tools=schema, add_generation_prompt=True, tokenize=False
        )
        encode = tokenizer.backend_tokenizer.encode
        ids = list(encode(opening, add_special_tokens=False).ids)
        mask, starts = [0] * len(ids), []
        for each in said:
            tail = encode(each.tail, add_special_tokens=False).ids
            starts.append(len(ids))
            ids += [*each.ids, *tail]
            mask += [1] * len(each.ids) + [0] * len(tail)
        return Script(tokenizer, opening, said, ids, mask, starts)

    def logprobs(self) -> list[float]:
        """Those of the sampled tokens as the server gives them, 0 elsewhere."""
        given = chain.from_iterable(map(logprobs_of, self.said))
        return [next(given) if sampled else 0.0 for sampled in self.mask]


def logprobs_of(said: Said) -> list[float]:
    """What the server says of an answer: values that 32 bits hold exactly."""
    return [-0.5 - at / 1024 for at in range(len(said.ids))]


def conversations(counts: Sequence[int], *, sampled: int, observed: int) -> dict[int, Script]:
    """A script for each count of turns, all of them the beginning of the longest."""
    from tests.vocabularies.loading import load

    tokenizer = load(SUBJECT)
    made = turns(tokenizer, max(counts) - 1, sampled, observed, STOP, {}, talks=False)
    RESULTS.update((str(turn.said.tool_calls[0].arguments["path"]), turn.result.content) for turn in made)
    last = tokenizer.backend_tokenizer.encode(f"Done: all tests pass.{STOP}", add_special_tokens=False).ids
    return {count: Script.of(tokenizer, edit_tool(), made, list(last), count) for count in counts}


async def edit(path: str, old: str, new: str) -> str:
    """Replace one piece of a file with another.

    Args:
        path: The file.
        old: Must occur exactly once.
        new: What takes its place.
    """
    return RESULTS[path]


def edit_tool() -> Any:
    """`edit` as verl has tools, for both loops."""
    from verl.tools.function_tool import FUNCTION_TOOL_REGISTRY, function_tool

    if "edit" not in FUNCTION_TOOL_REGISTRY:
        function_tool(edit)
    return FUNCTION_TOOL_REGISTRY["edit"]


class _Remote:
    """What Ray makes of a method of an actor, without Ray."""

    def __init__(self, method: Any) -> None:
        self.remote = method


class Server:
    """A rollout server that has its answers ready, and knows the turn by the prompt's length.

    With `fresh` each answer has objects of its own, as one has that came from another process.
    """

    def __init__(self, script: Script, *, with_logprobs: bool, fresh: bool = False) -> None:
        from verl.workers.rollout.replica import TokenOutput

        self._turns = {start: turn for turn, start in enumerate(script.starts)}
        self._answers = [
            TokenOutput(
                token_ids=said.ids,
                log_probs=logprobs_of(said) if with_logprobs else None,
                stop_reason="completed",
                num_preempted=0,
                extra_fields=dict.fromkeys(("global_steps", "min_global_steps", "max_global_steps"), 1),
            )
            for said in script.said
        ]
        self._pickled = [pickle.dumps(answer) for answer in self._answers] if fresh else None
        self.marks: list[float] = []
        """The CPU seconds of the process at each request."""
        self.generate = _Remote(self._generate)

    async def _generate(self, *, prompt_ids: list[int], **_: Any) -> Any:
        self.marks.append(time.process_time())
        await asyncio.sleep(0)  # an answer of another process never comes at once
        turn = self._turns[len(prompt_ids)]
        return self._answers[turn] if self._pickled is None else pickle.loads(self._pickled[turn])


class Client:
    """As much of verl's client as both loops need: what the real one costs is the same for both."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def _acquire_server(self, request_id: str) -> tuple[str, Server]:
        return "0", self._server

    async def generate(self, request_id: str, **arguments: Any) -> Any:
        _, server = await self._acquire_server(request_id)
        return await server.generate.remote(request_id=request_id, **arguments)


@frozen
class Ran:
    """What a session took, in CPU seconds, and its row."""

    output: Any
    construct: float
    session: float
    turns: list[float] = field(factory=list)
    """From request to request."""
    begin: float = 0.0
    """Until the first request."""
    end: float = 0.0
    """After the last one."""


class Loop:
    """One of the two loops over a server of its own."""

    def __init__(self, script: Script, folder: Path, *, with_logprobs: bool, fresh: bool = False) -> None:
        from verl.experimental.agent_loop.agent_loop import DictConfigWrap, ToolListWrap
        from verl.utils.dataset.rl_dataset import RLHFDataset

        config = _config(folder, with_logprobs)
        self._script = script
        self._server = Server(script, with_logprobs=with_logprobs, fresh=fresh)
        self._params = {
            "temperature": 1.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "logprobs": with_logprobs
        }  # fmt: skip
        self._handed: dict[str, Any] = {
            "trainer_config": DictConfigWrap(config),
            "server_manager": Client(self._server),
            "tokenizer": script.tokenizer,
            "processor": None,
            "dataset_cls": RLHFDataset,
            "data_config": DictConfigWrap(config.data),
            "hf_model_type": "qwen3",
            "tools": ToolListWrap([edit_tool()]),
        }
        self._sessions = 0

    def _made(self) -> Any:
        raise NotImplementedError

    async def session(self) -> Ran:
        """Construct the loop as verl does for each trajectory, and run it. Only one at a time has its turns told."""
        self._sessions += 1
        self._server.marks.clear()
        row = {
            "raw_prompt": [dict(message) for message in MESSAGES], "agent_name": "bench", "data_source": "bench",
            "index": 0, "uid": f"task-{self._sessions}", "session_id": 0, "global_steps": 1, "extra_info": {},
            "tools_kwargs": {}, "reward_model": {},
        }  # fmt: skip
        started = time.process_time()
        loop = self._made()
        made = time.process_time()
        output = await loop.run(dict(self._params), **row)
        ended = time.process_time()
        (output,) = output if isinstance(output, list) else [output]
        marks = self._server.marks
        between = [later - earlier for earlier, later in pairwise(marks)]
        return Ran(output, made - started, ended - made, between, marks[0] - made, ended - marks[-1])

    def check(self, output: Any) -> None:
        """Raises SystemExit unless the row is the script, token by token, with log-probabilities where asked for."""
        ids = [*output.prompt_ids, *output.response_ids]
        split = self._script.starts[0]
        if ids != self._script.ids or list(output.response_mask) != self._script.mask[split:]:
            same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(ids, self._script.ids, strict=False)))
            raise SystemExit(f"{type(self).__name__}: {len(ids)} ids for {len(self._script.ids)}, {same} the same")
        scored = None if output.response_logprobs is None else list(output.response_logprobs)
        if scored != (self._script.logprobs()[split:] if self._params["logprobs"] else None):
            raise SystemExit(f"{type(self).__name__}: the log-probabilities are not those that were sampled")


class Theirs(Loop):
    """`ToolAgentLoop` of verl."""

    def _made(self) -> Any:
        from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop

        return ToolAgentLoop(**self._handed)


class Ours(Loop):
    """`AgentKitLoop`, with all that a rollout has: deadlines, budget, permits, and a record that is sealed."""

    def _made(self) -> Any:
        from agentkit_verl import AgentKitLoop

        return AgentKitLoop(**self._handed, name="bench")


@cache  # it takes seconds
def _config(folder: Path, with_logprobs: bool) -> Any:
    import verl
    from hydra import compose, initialize_config_dir

    path = folder / "agents.yaml"
    budget = {"max_turns": 1000, "max_tokens": 1_000_000, "trajectory_s": 3600}
    entry = {"name": "bench", "_target_": "agentkit_verl.AgentKitLoop", "agent": {"budget": budget}}
    path.write_text(json.dumps([{**entry, "pool": {"max_rollouts": 10_000}}]))
    options = {
        "name": "vllm", "prompt_length": 4096, "response_length": 400_000, "agent.agent_loop_config_path": path,
        "agent.num_workers": 1, "multi_turn.format": "hermes", "multi_turn.max_tool_response_length": 1_000_000,
        "calculate_log_probs": with_logprobs,
    }  # fmt: skip
    given = [f"actor_rollout_ref.rollout.{key}={value}" for key, value in options.items()]
    with initialize_config_dir(str(Path(str(verl.__file__)).parent / "trainer" / "config"), version_base=None):
        return compose("ppo_trainer", overrides=given)


def limit(script: Script, *, with_logprobs: bool, fast: bool = False) -> list[float]:
    """CPU seconds of the least there is to do, turn by turn; the first prompt's count as the first turn's.

    Each text that is new is encoded once, each answer decoded once, and what came is added to arrays. `fast` encodes
    without the places in the text.
    """
    backend = script.tokenizer.backend_tokenizer
    scores = list(map(logprobs_of, script.said))

    def encode(text: str) -> list[int]:
        if fast:
            return list(backend.encode_batch_fast([text], add_special_tokens=False)[0].ids)
        return list(backend.encode(text, add_special_tokens=False).ids)

    spent: list[float] = []
    started = time.process_time()
    ids = array("i", encode(script.opening))
    mask, logprobs = bytearray(len(ids)), array("f", bytes(4 * len(ids)))
    for said, scored in zip(script.said, scores, strict=True):
        backend.decode(said.ids, skip_special_tokens=False)
        ids.fromlist(said.ids)
        mask += b"\1" * len(said.ids)
        if with_logprobs:
            logprobs.fromlist(scored)
        if said.tail:
            new = encode(said.tail)
            ids.fromlist(new)
            mask += bytes(len(new))
            if with_logprobs:
                logprobs.frombytes(bytes(4 * len(new)))
        spent.append(-started + (started := time.process_time()))
    if list(ids) != script.ids or list(mask) != script.mask:
        raise SystemExit("limit: the ids are not those of the script")
    return spent

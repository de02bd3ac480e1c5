"""Sessions of `AgentKitLoop` in this process, as verl's workers run them, with a policy that says what a test wants."""

import asyncio
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from tests.verl.rig.model import cached, make_model

_numbers = count()


@functools.cache
def _configuration() -> Any:
    """verl's own, composed once."""
    import verl
    from hydra import compose, initialize_config_dir

    with initialize_config_dir(str(Path(verl.__file__).parent / "trainer" / "config"), version_base=None):
        return compose(
            "ppo_trainer",
            overrides=[
                "actor_rollout_ref.rollout.name=vllm",
                "actor_rollout_ref.rollout.prompt_length=512",
                "actor_rollout_ref.rollout.response_length=1024",
                "actor_rollout_ref.rollout.multi_turn.format=hermes",
                "actor_rollout_ref.rollout.calculate_log_probs=true",
                "actor_rollout_ref.rollout.agent.num_workers=1",
            ],
        )


@functools.cache
def _tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(cached("random", make_model))


class Says:
    """A client of verl that says what `answer(prompt)` gives, in the model's own tokens, each after a short while.

    An answer of None never comes. `sampled` has what was given for each prompt.
    """

    def __init__(self, tokenizer: Any, answer: Callable[[str], str | None], *, seconds: float = 0.0) -> None:
        self.tokenizer, self.answer, self.seconds = tokenizer, answer, seconds
        self.sampled: list[tuple[list[int], list[int]]] = []
        self.params: list[Mapping[str, Any]] = []
        self.running = self.most_running = 0

    async def generate(
        self, request_id: str, *, prompt_ids: Sequence[int], sampling_params: Mapping[str, Any], **_: Any
    ) -> Any:
        from verl.workers.rollout.replica import TokenOutput

        self.params.append(sampling_params)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            text = self.answer(self.tokenizer.decode(prompt_ids))
            if text is None:
                await asyncio.sleep(3600)
                raise AssertionError("nobody waits for so long")
            await asyncio.sleep(self.seconds)
        finally:
            self.running -= 1
        ids = self.tokenizer.encode(text, add_special_tokens=False)[: sampling_params["max_tokens"]]
        start = len(prompt_ids)
        self.sampled.append((list(prompt_ids), ids))
        logprobs = [-(1.0 + (start + at) % 7) for at in range(len(ids))]
        return TokenOutput(token_ids=ids, log_probs=logprobs, stop_reason="completed", extra_fields={"global_steps": 3})


class Loops:
    """One worker process of verl: its configuration, its client, and a loop for each session."""

    def __init__(
        self,
        folder: Path,
        answer: Callable[[str], str | None],
        *overrides: str,
        entry: Mapping[str, Any],
        code: str = "",
        seconds: float = 0.0,
    ) -> None:
        from omegaconf import OmegaConf

        self.folder, self.module = folder, f"parts_of_loops_{next(_numbers)}"
        (folder / f"{self.module}.py").write_text(code)
        self.agents = folder / "agents.yaml"
        self.write(entry)
        self.tokenizer = _tokenizer()
        self.client = Says(self.tokenizer, answer, seconds=seconds)
        own = [f"actor_rollout_ref.rollout.agent.agent_loop_config_path={self.agents}", *overrides]
        self.config: Any = OmegaConf.merge(_configuration(), OmegaConf.from_dotlist(own))

    def write(self, entry: Mapping[str, Any]) -> None:
        """The agents' file anew; PARTS in it is the module of `code`."""
        entries = [{"name": "toy", "_target_": "agentkit_verl.AgentKitLoop", **entry}]
        self.agents.write_text(json.dumps(entries, indent=1).replace("PARTS", self.module))

    @property
    def parts(self) -> Any:
        """The module of `code`, once an agent was made of it."""
        import sys

        return sys.modules[self.module]

    def loop(self) -> Any:
        """A loop, as verl makes one for each session."""
        from agentkit_verl import AgentKitLoop
        from verl.experimental.agent_loop.agent_loop import DictConfigWrap, ToolListWrap
        from verl.utils.dataset.rl_dataset import RLHFDataset

        return AgentKitLoop(
            trainer_config=DictConfigWrap(self.config),
            server_manager=self.client,
            tokenizer=self.tokenizer,
            processor=None,
            dataset_cls=RLHFDataset,
            data_config=DictConfigWrap(self.config.data),
            hf_model_type="qwen2",
            tools=ToolListWrap([]),
            name="toy",
        )

    async def session(
        self, uid: str | None, number: int = 0, *, content: str = "Go.", loop: Any = None, **row: Any
    ) -> Any:
        """One session of a group: a list of rows for V1, one row for v0, which has no `uid`."""
        params = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "logprobs": True, "repetition_penalty": 1.0}
        given: dict[str, Any] = {"raw_prompt": [{"role": "user", "content": content}], "data_source": "toy", "index": 7}
        if uid is not None:
            given |= {"uid": uid, "session_id": number, "global_steps": 4}
        return await (loop or self.loop()).run(params, **{**given, **row})

    async def group(self, uid: str | None, size: int, **row: Any) -> list[Any]:
        """All sessions of a group; failures as exceptions."""
        sessions = (self.session(uid, number, **row) for number in range(size))
        return list(await asyncio.gather(*sessions, return_exceptions=True))

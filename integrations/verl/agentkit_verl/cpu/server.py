"""The rollout server for CPUs, as verl's client, replicas and checkpoint managers call it."""
# pyright: basic, reportMissingImports=false
# torch and verl are not installed where pyright runs.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import torch
from verl.workers.rollout.replica import TokenOutput

from agentkit_verl.cpu.batch import Batch
from agentkit_verl.cpu.engine import Engine
from agentkit_verl.cpu.sampling import Sampling


class CPUServer:
    """Samples from a causal language model of transformers: what runs in the Ray actor.

    It answers what verl's vLLM server answers, with the same meanings. `abort_request` and a cancelled call end a
    request at once; `abort_all_requests` also closes the gate, behind which later requests wait for
    `resume_generation`. `extra_fields` of a result have `global_steps`, the weights of its last token, and
    `min_global_steps` and `max_global_steps`, which differ where weights came while it ran.

    Args:
        path: The model's folder.
        prompt_length: Tokens, as in verl's rollout configuration.
        response_length: Tokens; the limit of a request that has none, less what its prompt has beyond `prompt_length`.
        context: Tokens that a prompt and its reply have together; by default what the model can.
        dtype: Of weights and computation, as torch names it.
        seed: Where random numbers begin. Which request gets which depends on what runs with it, so that a run is
            repeated only by a `seed` in each request.
        threads: CPUs that the model computes on.
        most_rows: Requests sampled together; others wait.
        trust_remote_code: Lets transformers run code that comes with the model.
    """

    def __init__(
        self,
        path: str,
        *,
        prompt_length: int,
        response_length: int,
        context: int | None = None,
        dtype: str = "float32",
        seed: int = 0,
        threads: int = 1,
        most_rows: int = 256,
        trust_remote_code: bool = False,
    ) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        torch.set_num_threads(threads)
        kind = getattr(torch, dtype.removeprefix("torch."))
        model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=kind, trust_remote_code=trust_remote_code)
        model.eval()
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code)
        most = int(getattr(model.config, "max_position_embeddings", 0)) or prompt_length + response_length
        if context is not None and context > most:
            raise ValueError(f"max_model_len is {context}, more than the {most} positions that the model has")
        self._context = context or most
        self._prompt_length = prompt_length
        self._response_length = response_length
        ends = {tokenizer.eos_token_id} | set(_tokens(model.config.eos_token_id))
        if model.generation_config is not None:
            ends |= set(_tokens(model.generation_config.eos_token_id))
        self._ends = frozenset(ends - {None})
        self._engine = Engine(Batch(model, vocabulary=len(tokenizer), seed=seed, most_rows=most_rows))

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling_params: Mapping[str, Any],
        request_id: str,
        image_data: Sequence[Any] | None = None,
        video_data: Sequence[Any] | None = None,
        audio_data: Sequence[Any] | None = None,
        **_: Any,
    ) -> TokenOutput:
        """Samples a reply; `stop_reason` is `completed`, also at the limit, or `aborted`.

        Raises:
            ValueError: The prompt leaves no room, a sampling parameter makes no sense, there are images, videos or
                sounds, or a request of this name is under way.

        Cancellation: the request leaves the batch before its next token.
        """
        if image_data or video_data or audio_data:
            raise ValueError("the rollout server for CPUs reads text alone; found images, videos or sounds")
        prompt = [int(token) for token in prompt_ids]
        room = self._context - len(prompt)
        if room < 1:
            raise ValueError(f"the prompt has {len(prompt)} tokens: of the model's {self._context} none is left")
        sampling = Sampling.of(
            sampling_params,
            default_limit=min(self._response_length, self._prompt_length + self._response_length - len(prompt)),
            room=room,
            ends=self._ends,
        )
        found = await self._engine.generate(request_id, prompt, sampling)
        first, last = found.versions
        return TokenOutput(
            token_ids=list(found.tokens),
            log_probs=list(found.logprobs) if sampling.logprobs else None,
            stop_reason="aborted" if found.aborted else "completed",
            num_preempted=0,
            extra_fields={"global_steps": last, "min_global_steps": first, "max_global_steps": last},
        )

    async def abort_request(self, request_id: str, reset_prefix_cache: bool = True) -> dict[str, Any]:
        """Lets a request return what it has, marked `aborted`."""
        if self._engine.abort(request_id):
            return {"aborted": True, "request_id": request_id}
        return {"aborted": False, "request_id": request_id, "error": f"request {request_id} is not under way"}

    async def abort_all_requests(self, reset_prefix_cache: bool = True, reject_request: bool = False) -> dict[str, Any]:
        """Aborts what runs and closes the gate; returns once the model is still.

        Args:
            reset_prefix_cache: Taken for compatibility; there is none.
            reject_request: Hand later requests back, aborted, instead of letting them wait.
        """
        aborted = await self._engine.pause(reject=reject_request)
        return {"aborted_count": len(aborted), "request_ids": aborted}

    async def resume_generation(self) -> None:
        """Opens the gate."""
        self._engine.resume()

    async def wait_for_requests_to_drain(self) -> None:
        """Returns once nothing is running."""
        await self._engine.drain()

    async def load_weights(self, weights: Mapping[str, torch.Tensor], global_steps: int | None = None) -> int:
        """Replaces weights between two tokens: how many. `global_steps` is their version.

        Raises:
            ValueError: A name or a shape is not the model's; nothing has been replaced.
        """
        await self._engine.load(weights, global_steps)
        return len(weights)

    async def set_global_steps(self, global_steps: int) -> None:
        """Says which version the weights are."""
        await self._engine.load({}, global_steps)

    async def get_state(self) -> dict[str, Any]:
        """Counts, see `EngineState`."""
        return attrs.asdict(self._engine.state())

    async def sleep(self) -> None:
        """Waits until nothing is running; there is no memory to give back."""
        await self._engine.drain()

    async def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Nothing was given back."""

    async def clear_kv_cache(self) -> None:
        """Nothing is kept between requests."""

    async def release_kv_cache(self) -> None:
        """Nothing is kept between requests."""

    async def resume_kv_cache(self) -> None:
        """Nothing is kept between requests."""

    async def start_profile(self, **_: Any) -> None:
        """Not profiled."""

    async def stop_profile(self) -> None:
        """Not profiled."""


def _tokens(found: int | Sequence[int] | None) -> Sequence[int]:
    if found is None:
        return ()
    return (found,) if isinstance(found, int) else tuple(found)

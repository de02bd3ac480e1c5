"""Models of one's own: one that samples tokens, with true log-probabilities, and one behind a chat API.

Nothing to inherit. Both push what they have into `emit` as it comes, so that a deadline loses nothing.
"""

import math
import random
from collections import Counter, defaultdict
from itertools import pairwise

import anyio
from anyio.lowlevel import checkpoint

import agentkit as ak
from agentkit.parsing import HermesParser
from agentkit.protocols import EmitText, EmitTokens, Finish, FinishReason, MessageRequest, TextChunk, TokenChunk
from agentkit.protocols import TokenRequest as Request
from agentkit.tokens import byte_chatml

LINES = ["the cat sat on the mat", "the dog sat on the cat", "a dog and a cat sat on a mat"]


# --8<-- [start:tokens]
class Bigram:
    """A token-level policy: the next token depends on the last one, as often as `lines` have it so."""

    def __init__(self, lines: list[str], *, seed: int) -> None:
        self.renderer, self.parser = byte_chatml(), HermesParser()  # how messages become ids, and text becomes calls
        self._random = random.Random(seed)
        self._first, self._after = Counter[int](), defaultdict[int, Counter[int]](Counter)
        stop_id = self.renderer.tokenizer.control["<|im_end|>"]
        for line in lines:
            ids = [*self.renderer.tokenizer.encode(line), stop_id]
            self._first[ids[0]] += 1
            for token_id, following in pairwise(ids):
                self._after[token_id][following] += 1

    async def sample_tokens(self, request: Request, emit: EmitTokens) -> Finish:
        """Samples one token at a time, from the last id of what was sampled so far."""
        choices = self._first
        for _ in range(request.max_tokens):
            (token_id,) = self._random.choices(list(choices), list(choices.values()))
            emit(TokenChunk([token_id], [math.log(choices[token_id] / choices.total())], policy_version=0))
            if token_id in request.stop_ids:
                return Finish(FinishReason.STOP)
            choices = self._after[token_id]
            await checkpoint()  # others get their turn
        return Finish(FinishReason.LENGTH)


# --8<-- [end:tokens]


# --8<-- [start:messages]
class Echo:
    """A message-level policy, as behind a chat API: no tokens, so its trajectories have no chains."""

    async def sample_message(self, request: MessageRequest, emit: EmitText) -> Finish:
        """The last message, louder."""
        said = request.messages[-1].content.upper()
        for word in said.split():
            emit(TextChunk(f"{word} "))
            await checkpoint()
        return Finish(message=ak.assistant(said))


# --8<-- [end:messages]


async def main() -> None:
    for trajectory in [await ak.Agent(Bigram(LINES, seed=seed)).run("Say something.") for seed in (1, 2)]:
        (turn,), (chain,) = trajectory.turns, trajectory.chains
        logprob = sum(chain.logprobs[turn.start : turn.stop])
        print("bigram:", repr(turn.action.content), f"{turn.stop - turn.start} tokens, logprob {logprob:.2f}")
    trajectory = await ak.Agent(Echo()).run("is anybody there?")
    print("echo:", repr(trajectory.turns[0].action.content), len(trajectory.chains), "chains")


if __name__ == "__main__":
    anyio.run(main)

"""What a renderer must know of a model family beyond its template, as data."""

from attrs import frozen

from agentkit.errors import ConfigError
from agentkit.protocols.tokens import Tokenizer


@frozen(kw_only=True)
class Family:
    """How the turns of a model family end.

    `stops` are the control tokens that end a turn when sampled (those the tokenizer lacks are ignored); `close` is the
    one appended after a turn that was cut short. With `stop_is_header` the stop is the first token of the next turn and
    nothing closes one, so `close` stays empty. `reasons` says whether the policy may write reasoning: with False, a
    template that drops earlier reasoning counts as append-only as long as no turn has any.
    """

    name: str
    stops: tuple[str, ...]
    close: str = ""
    stop_is_header: bool = False
    reasons: bool = True

    def stop_ids(self, tokenizer: Tokenizer) -> frozenset[int]:
        """The ids of `stops` in this tokenizer.

        Raises:
            ConfigError: the tokenizer lacks what this family needs.
        """
        control = tokenizer.control
        found = frozenset(control[text] for text in self.stops if text in control)
        if not found:
            raise ConfigError(f"family {self.name!r} stops at {self.stops!r}, none of which the tokenizer knows")
        if not self.stop_is_header and self.close not in control:
            raise ConfigError(f"family {self.name!r} closes a turn with {self.close!r}, which the tokenizer lacks")
        return found


CHATML = Family(name="chatml", stops=("<|im_end|>", "<|endoftext|>"), close="<|im_end|>")
QWEN = Family(name="qwen", stops=("<|im_end|>", "<|endoftext|>"), close="<|im_end|>")
LLAMA3 = Family(name="llama3", stops=("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"), close="<|eot_id|>")
GLM = Family(name="glm", stops=("<|user|>", "<|observation|>", "<|endoftext|>"), stop_is_header=True)

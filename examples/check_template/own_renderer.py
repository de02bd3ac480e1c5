"""A renderer of one's own, held against the template itself: this one forgets the newline that follows a stop token."""

# --8<-- [start:broken]
from agentkit.testing import AlignmentFailed, TemplateOracle, check_alignment, subject_of
from agentkit.tokens import CHATML, ByteTokenizer, TemplateRenderer, templates


class Forgetful(TemplateRenderer):
    """The policy does not sample the newline, so who appends "what comes next" by hand easily drops it."""

    def bridge(self, action, new, tools, *, sampled):
        close, rest = super().bridge(action, new, tools, sampled=sampled)
        return close, rest[1:]


tokenizer = ByteTokenizer()
renderer = Forgetful(tokenizer, templates.chatml, CHATML)
oracle = TemplateOracle(tokenizer, templates.chatml)
# --8<-- [end:broken]


def main() -> None:
    # --8<-- [start:check]
    subject = subject_of(renderer=renderer, oracle=oracle)
    try:
        check_alignment(subject, examples=50)
    except AlignmentFailed as failed:
        print(failed)
    # --8<-- [end:check]


if __name__ == "__main__":
    main()

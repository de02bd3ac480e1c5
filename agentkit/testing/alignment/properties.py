"""The properties of token alignment: what each says, what to do where it does not hold, and what it is tried on."""

from collections.abc import Callable
from enum import StrEnum
from typing import TypeAlias

from attrs import frozen

from agentkit.testing.alignment import record_properties as record
from agentkit.testing.alignment import template_properties as template
from agentkit.testing.alignment.conversations import Conversation
from agentkit.testing.alignment.subject import Subject

Check: TypeAlias = Callable[[Subject, Conversation, int], bool]


class Kind(StrEnum):
    """What conversations a property is tried on."""

    CANONICAL = "canonical"
    """Each turn is sampled as the template itself writes it."""
    RESPLIT = "resplit"
    """Each turn is sampled as other ids of the same text, or as the template writes it."""
    WHOLE = "whole"
    """Turns are sampled as any ids, each ending with a stop token."""
    ANY = "any"
    """Turns are sampled as any ids, or cut at a length limit."""
    PARALLEL = "parallel"
    """As canonical, each turn with two calls."""
    ONE_TURN = "one turn"
    """As canonical, one turn long, with plain results."""


_RENDERER = "the renderer is at fault: with one of your own, compare its bridge with the template; else report it"
_EITHER = (
    "where the template rewrites here, use one that keeps what it wrote, keep_history=True or "
    "Agent(on_rewrite='new_chain'); else the renderer is at fault: compare its bridge with the template"
)
_TEXT = (
    "the template sorts, compares, counts or replaces what messages say, or reads the time of day: use one that writes "
    "each text as it is; with a renderer of your own, compare what it encodes; where neither is so, report it"
)
_RECORD = "the record is at fault, not the template: report it with this output"
REWRITES = (
    "use a template that keeps what it wrote (a training template of the family), keep_history=True to keep the chain "
    "as the policy saw it, or Agent(on_rewrite='new_chain'); where only reasoning is dropped, and the policy writes "
    "none, reasoning=False"
)
_CONTENT = "keep this renderer away from text from outside: what a tool says must never be a control token"


@frozen
class Property:
    """One property: a function of a subject, a conversation and a number that raises `Misaligned` where it fails."""

    check: Check
    kind: Kind
    advice: str = _RENDERER

    @property
    def name(self) -> str:
        """Its function's name."""
        return str(self.check.__name__)

    @property
    def says(self) -> str:
        """What holds, in a sentence."""
        return str(self.check.__doc__).partition("\n")[0]


PROPERTIES: tuple[Property, ...] = (
    Property(record.earlier_tokens_never_change, Kind.ANY),
    Property(record.every_token_has_mask_and_logprob, Kind.ANY, _RECORD),
    Property(record.sampled_ids_are_kept_verbatim, Kind.ANY),
    Property(record.mask_is_one_where_sampled, Kind.ANY, _RECORD),
    Property(record.logprobs_are_the_engines, Kind.ANY, _RECORD),
    Property(record.the_model_is_sent_the_chain, Kind.ANY, _RECORD),
    Property(record.chunks_make_no_difference, Kind.ANY, _RECORD),
    Property(template.the_bridge_does_not_depend_on_the_sample, Kind.WHOLE),
    Property(template.the_chain_is_the_full_render, Kind.CANONICAL, _EITHER),
    Property(template.control_tokens_are_those_of_the_full_render, Kind.RESPLIT),
    Property(template.content_forges_no_control_token, Kind.CANONICAL, _CONTENT),
    Property(template.a_prompt_is_what_the_template_writes, Kind.CANONICAL, _TEXT),
    Property(template.content_reads_as_the_template_writes_it, Kind.CANONICAL, _TEXT),
    Property(template.results_of_a_turn_go_in_together, Kind.PARALLEL, _EITHER),
    Property(template.a_cut_turn_is_closed_once, Kind.CANONICAL),
    Property(template.separators_stand_once, Kind.WHOLE),
    Property(record.a_rewritten_history_opens_a_chain, Kind.CANONICAL),
    Property(template.the_same_question_has_one_answer, Kind.CANONICAL),
    Property(template.the_work_is_that_of_the_new_text, Kind.ONE_TURN),
    Property(record.the_record_reads_back, Kind.ANY, _RECORD),
    Property(record.a_failed_generation_leaves_no_trace, Kind.ANY, _RECORD),
    Property(template.refusals_were_declared, Kind.WHOLE, REWRITES),
)
"""All of them. Those on records hold for every conversation; those on templates compare with its own full render."""

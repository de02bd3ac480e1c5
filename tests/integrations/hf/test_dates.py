"""What a template writes of the date: one date for a whole trajectory, or one for all of them."""

from collections.abc import Callable
from datetime import date, datetime, timedelta
from typing import Any

import pytest
from agentkit_hf import certify, hf_renderer

from agentkit.actors import Agent
from agentkit.errors import ConfigError
from agentkit.models import ScriptedModel
from agentkit.parsing import HermesParser
from agentkit.protocols import Dated, ToolSpec, user

MOVING = """\
{{- '<|im_start|>system\\n' + strftime_now('%d %b %Y') + '<|im_end|>\\n' }}
{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""
STILL = MOVING.replace("strftime_now('%d %b %Y')", "'now'")


@pytest.fixture(scope="module")
def tokenizer(train_tokenizer: Callable[..., Any]) -> Any:
    return train_tokenizer(MOVING)


def test_a_dated_renderer_writes_its_date_and_no_other(tokenizer: Any):
    renderer = hf_renderer(tokenizer)
    assert isinstance(renderer, Dated)
    assert renderer.certificate.moves
    fixed = renderer.dated(datetime(2031, 2, 3))
    assert "03 Feb 2031" in tokenizer.decode(fixed.prompt([user("Hi")], ()))
    assert fixed.dated(datetime(2032, 1, 1)).prompt([user("Hi")], ()) == fixed.prompt([user("Hi")], ())
    assert "2031" not in tokenizer.decode(renderer.prompt([user("Hi")], ()))


def test_a_template_that_reads_no_clock_is_left_as_it_is(tokenizer: Any):
    renderer = hf_renderer(tokenizer, chat_template=STILL)
    assert not renderer.certificate.moves
    assert renderer.dated(datetime(2031, 2, 3)) is renderer


@pytest.mark.parametrize("today", ["2026-01-02", date(2026, 1, 2)])
def test_one_date_may_be_given_for_all(tokenizer: Any, today: str | date):
    renderer = hf_renderer(tokenizer, today=today)
    assert not renderer.certificate.moves
    prompt = renderer.dated(datetime(2031, 2, 3)).prompt([user("Hi")], ())
    assert "02 Jan 2026" in tokenizer.decode(prompt)


def test_a_date_that_is_none_is_told(tokenizer: Any):
    with pytest.raises(ConfigError, match=r"today must be a date such as 2026-11-30, found 'tomorrow'"):
        hf_renderer(tokenizer, today="tomorrow")


def test_the_certificate_says_that_the_template_moves(tokenizer: Any):
    assert certify(tokenizer).moves
    assert not certify(tokenizer, chat_template=STILL).moves


async def test_a_rollout_writes_one_date_however_long_it_takes(tokenizer: Any, monkeypatch: pytest.MonkeyPatch):
    class Clock(datetime):
        """Every look at it is a day later."""

        days = 0

        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            Clock.days += 1
            return datetime(2031, 2, 3) + timedelta(days=Clock.days)

    monkeypatch.setattr("agentkit.actors._policy.datetime", Clock)
    renderer = hf_renderer(tokenizer)

    async def rewriting(rollout: Any) -> None:
        for n in range(3):
            await rollout.sample()
            rollout.rewrite([user(f"Go on, {n}.")])

    model = ScriptedModel(["one", "two", "three"], renderer=renderer, parser=HermesParser())
    trajectory = await Agent(model, loop=rewriting).run("Hi")
    texts = [tokenizer.decode(list(chain.token_ids)) for chain in trajectory.chains]
    assert len(texts) == 3
    assert all("04 Feb 2031" in text for text in texts)


def test_a_clock_that_cannot_be_held_is_told(tokenizer: Any):
    source = MOVING.replace("strftime_now('%d %b %Y')", "strftime_now('%d' + ' %Y')")
    with pytest.raises(ConfigError, match="reads the clock in a format that it works out itself"):
        hf_renderer(tokenizer, chat_template=source)


def test_of_several_templates_the_one_for_tools_is_dated_too(train_tokenizer: Callable[..., Any]):
    told = MOVING.replace("'<|im_end|>\\n' }}", "' ' + (tools | tojson) + '<|im_end|>\\n' }}", 1)
    tokenizer = train_tokenizer({"default": STILL, "tool_use": told})
    fixed = hf_renderer(tokenizer).dated(datetime(2031, 2, 3))
    look = ToolSpec("look", "Look.", {"type": "object", "properties": {}})
    assert "03 Feb 2031" in tokenizer.decode(fixed.prompt([user("Hi")], (look,)))
    assert "\nnow<" in tokenizer.decode(fixed.prompt([user("Hi")], ()))


def test_a_template_that_writes_the_microsecond_is_certified(tokenizer: Any):
    renderer = hf_renderer(tokenizer, chat_template=MOVING.replace("%d %b %Y", "%H:%M:%S.%f"))
    assert renderer.certificate.moves
    assert renderer.rewrites == ()
    fixed = renderer.dated(datetime(2031, 2, 3, 4, 5, 6, 7))
    assert "04:05:06.000007" in tokenizer.decode(fixed.prompt([user("Hi")], ()))

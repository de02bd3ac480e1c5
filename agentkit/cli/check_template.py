"""`agentkit check-template MODEL`: whether token chains can grow under a chat template, and what to do where not."""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from agentkit.cli.terminal import escape
from agentkit.errors import ConfigError, MissingExtraError
from agentkit.extras import require
from agentkit.tokens import Certificate, Mode, Verdict

JSON_VERSION = 1

_ABOUT = """\
First the certificate: for each way in which a conversation goes on, whether the template only adds to what it wrote
(exact), changes it (rewritten), or cannot go on at all (refused). Then properties, tried on conversations that are made
up: token chains grown by agentkit are held against the template's own full renders. A property that fails is shown with
the smallest conversation for which it does.

exit status: 0 where all is exact or refused beforehand, and every property holds; 1 where a property fails, or the
template rewrites and neither --keep-history nor --allow-rewrites is given, or refuses the result of a tool although
--tools is given; 2 where there is no such tokenizer, or something given does not fit it.
"""
_MODES = {
    Mode.FREE: "the generation prompt leaves reasoning to the policy",
    Mode.OPEN: "the generation prompt opens a thought",
    Mode.CLOSED: "the generation prompt holds an empty thought",
}
_WORDS: dict[str, object] = {"true": True, "false": False, "none": None, "null": None}
_ODD = "a result with "
_ALIGNMENT = "agentkit.testing.alignment"  # by name: no other command needs tests, and this one only where it is used


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> Any:
    """The parser of `check-template`."""
    parser = subparsers.add_parser(
        "check-template",
        help="say whether token chains can grow under a chat template",
        description="Says what a chat template does with every append that agents make, and tests agentkit on it.",
        epilog=_ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", metavar="MODEL", help="a folder with a tokenizer, a GGUF file, or a name on the hub")
    parser.add_argument("--template", metavar="FILE", help="a chat template instead of the tokenizer's own")
    parser.add_argument("--tools", metavar="FILE", help="a JSON list of the agent's tools in OpenAI form")
    parser.add_argument(
        "--kwarg", action="append", default=[], metavar="NAME=VALUE", help="for the template: enable_thinking=false"
    )
    parser.add_argument(
        "--family", default="auto", metavar="NAME", help="how turns end, where it is not found by itself"
    )
    parser.add_argument("--no-reasoning", action="store_true", help="the policy writes no reasoning")
    parser.add_argument("--no-system", action="store_true", help="no conversation has a system message")
    parser.add_argument("--keep-history", action="store_true", help="keep what the policy saw where it is rewritten")
    parser.add_argument("--allow-rewrites", action="store_true", help="do not fail for what the template rewrites")
    parser.add_argument("--examples", type=int, default=30, metavar="N", help="conversations a property (30; 0: none)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="which conversations are tried (0)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    return parser


def run(args: argparse.Namespace) -> int:
    """Prints the certificate and what came of each property."""
    try:
        report = _Report(args)
    except (ConfigError, MissingExtraError) as error:  # elsewhere an error is 1, which here is a template that fails
        print(f"agentkit: {escape(str(error), lines=True)}", file=sys.stderr)
        return 2
    return report.as_json() if args.json else report.as_text()


class _Report:
    """A template, asked and tried."""

    def __init__(self, args: argparse.Namespace) -> None:
        if args.examples < 0:
            raise ConfigError(f"--examples must be at least 0, found {args.examples}")
        if args.examples:
            require("hypothesis", extra="testing", purpose="trying conversations (all but --examples 0)")
        self._args = args
        self._alignment: Any = import_module(_ALIGNMENT)
        options = _kwargs(args.kwarg)
        if args.template is not None:
            options["chat_template"] = _read(args.template, "--template")
        if args.family != "auto":
            options["family"] = args.family
        self._tools = _tools(args.tools)
        self._subject = self._alignment.subject_of(
            args.model,
            tools=self._tools,
            reasoning=not args.no_reasoning,
            keep_history=args.keep_history,
            with_system=not args.no_system,
            **options,
        )
        shown = self._subject.tools if self._tools else ()
        self._certificate: Certificate = self._subject.renderer.certify(shown)

    @property
    def _fails_by_rewriting(self) -> bool:
        return bool(self._certificate.rewrites) and not (self._args.keep_history or self._args.allow_rewrites)

    @property
    def _fails_by_refusing(self) -> bool:
        """Whether agents with these tools cannot go on after a call."""
        cells = [cell for cell in self._certificate.cells if cell.situation.tools]
        results = [cell.finding for cell in cells if cell.situation.roles == ("tool",)]
        return bool(self._tools and results) and all(finding.verdict is Verdict.REFUSED for finding in results)

    def _findings(self) -> Iterator[Any]:
        if self._args.examples:
            yield from self._alignment.find_all(self._subject, examples=self._args.examples, seed=self._args.seed)

    def as_text(self) -> int:
        certificate, args = self._certificate, self._args
        moves = "; it reads the clock, which agentkit stops for a trajectory" if certificate.moves else ""
        _say(f"{args.model}: family {certificate.family}; {_MODES[certificate.mode]}{moves}")
        _say("")
        for line in _matrix(certificate):
            _say(line)
        failed = []
        if args.examples:
            _say(f"\nproperties, each tried on {args.examples} conversations (seed {args.seed}); how many got to it")
        for finding in self._findings():
            if finding.counterexample is not None:
                failed.append(finding)
            verdict = "FAILS" if finding.counterexample else "holds" if finding.reached else "  -  "
            reached = "" if finding.counterexample else f" ({finding.reached} of {finding.tried} got there)"
            _say(f"  {verdict}  {finding.prop.name}{reached}")
        for finding in failed:
            _say("")
            _say(str(finding.counterexample))
        if advice := self._advice():
            _say("\nwhat to do")
            for line in advice:
                _say(f"  {line}")
        is_bad = bool(failed) or self._fails_by_rewriting or self._fails_by_refusing
        _say(f"\n{_verdict(certificate, failed=len(failed) if args.examples else None, kept=args.keep_history)}")
        return int(is_bad)

    def as_json(self) -> int:
        certificate, findings = self._certificate, list(self._findings())
        is_bad = any(finding.counterexample for finding in findings)
        is_bad = is_bad or self._fails_by_rewriting or self._fails_by_refusing
        tree = {
            "version": JSON_VERSION,
            "model": self._args.model,
            "family": certificate.family,
            "mode": certificate.mode,
            "writes_date": certificate.moves,
            "is_exact": certificate.is_exact,
            "cases": [
                {
                    "case": cell.case,
                    "tools": cell.situation.tools,
                    "verdict": cell.finding.verdict,
                    "difference": cell.finding.difference,
                }
                for cell in certificate.cells
            ],
            "examples": self._args.examples,
            "seed": self._args.seed,
            "properties": [
                {
                    "name": finding.prop.name,
                    "says": finding.prop.says,
                    "tried": finding.tried,
                    "reached": finding.reached,
                    "counterexample": None if finding.counterexample is None else str(finding.counterexample),
                }
                for finding in findings
            ],
            "advice": self._advice(),
            "ok": not is_bad,
        }
        print(json.dumps(tree, indent=2))  # ASCII: nothing of a template reaches the terminal as it is
        return int(is_bad)

    def _advice(self) -> list[str]:
        certificate, args = self._certificate, self._args
        advice: list[str] = []
        if certificate.rewrites and not args.keep_history:
            if not args.no_reasoning and all(", with reasoning" in rewrite for rewrite in certificate.rewrites):
                advice.append("--no-reasoning (hf_renderer(reasoning=False)) if the policy writes no reasoning")
            advice += [
                "--template FILE (chat_template=...): a training template of the family, which keeps what it wrote",
                "--keep-history (keep_history=True): the chain stays as the policy saw it, only the new is rendered",
                "--allow-rewrites (allow_rewrites=True): conversations do not get there, or go on in a new chain, with "
                "Agent(on_rewrite='new_chain')",
            ]
        roles = {cell.situation.roles for cell in certificate.cells if cell.finding.verdict is Verdict.REFUSED}
        taken = {cell.situation.roles for cell in certificate.cells if cell.finding.verdict is not Verdict.REFUSED}
        if ("tool",) in roles - taken:
            advice.append("use another template, or give results as user messages: no result of a tool can be appended")
        elif ("tool", "tool") in roles - taken:
            advice.append("let the policy make one call a turn: two results cannot be appended")
        return advice


def _matrix(certificate: Certificate) -> Iterator[str]:
    """A line for each case, without tools and with; odd results that all are exact share one."""
    rows: dict[str, dict[bool, Any]] = {}
    for cell in certificate.cells:
        rows.setdefault(cell.case, {})[cell.situation.tools] = cell.finding
    odd = [case for case, row in rows.items() if case.startswith(_ODD) and all(each.is_exact for each in row.values())]
    width = max(map(len, ("what is appended", *rows)))
    yield f"{'what is appended':<{width}}  {'no tools':<10}  tools"
    for case, row in rows.items():
        if case not in odd:
            verdicts = [str(row[tools].verdict) if tools in row else "-" for tools in (False, True)]
            yield f"{case:<{width}}  {verdicts[0]:<10}  {verdicts[1]}"
            for difference in dict.fromkeys(each.difference for each in row.values() if each.difference):
                yield f"    {difference}"
    if odd:
        yield f"{f'a result with odd content ({len(odd)} kinds)':<{width}}  {'exact':<10}  exact"


def _verdict(certificate: Certificate, *, failed: int | None, kept: bool) -> str:
    cells = certificate.cells
    exact = sum(cell.finding.is_exact for cell in cells)
    rewritten = sum(cell.finding.verdict is Verdict.REWRITTEN for cell in cells)
    said = f"{exact} of {len(cells)} cases exact, {rewritten} {'kept as they were' if kept else 'rewritten'}, "
    said += f"{len(cells) - exact - rewritten} refused"
    if failed is None:
        return f"{said}; no property was tried"
    if not failed:
        return f"{said}; no property fails"
    return f"{said}; {failed} {'property fails' if failed == 1 else 'properties fail'}"


def _say(text: str) -> None:
    print(escape(text, lines=True), flush=True)


def _kwargs(given: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for each in given:
        name, equals, text = each.partition("=")
        if not equals or not name.isidentifier():
            raise ConfigError(f"--kwarg must be NAME=VALUE, found {each!r}")
        if name in ("reasoning", "keep_history", "with_system", "allow_rewrites", "chat_template", "family", "tools"):
            raise ConfigError(f"--kwarg is for what the template reads; for {name!r} there is an option of its own")
        found[name] = _value(text)
    return found


def _value(text: str) -> Any:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        return json.loads(text)
    except ValueError:
        return text


def _read(name: str, option: str) -> str:
    try:
        return Path(name).expanduser().read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {option} {name!r}: {error}") from error


def _tools(name: str | None) -> list[Any]:
    if name is None:
        return []
    try:
        tools: object = json.loads(_read(name, "--tools"))
    except ValueError as error:
        raise ConfigError(f"--tools {name!r} is no JSON: {error}") from error
    if not isinstance(tools, list) or not tools or not all(isinstance(tool, dict) for tool in tools):
        raise ConfigError(f"--tools must be a JSON list with at least one tool in OpenAI form, found {name!r}")
    return tools

"""Tool calls in the formats that models were trained on: which one a chat template uses, its grammar, and its parser."""

from __future__ import annotations

import json
import secrets
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pumice.llm.schemas import closed

# Between tokens of JSON, so that a model cannot write spaces until its answer is full.
GUIDANCE = {"x-guidance": {"whitespace_pattern": r"[ \n]{0,8}"}}


@dataclass(frozen=True)
class ToolFormat:
    """How a call is written: `before` it, its JSON object with `name` and the key for arguments, and `after` it.

    `opening` and `closing` surround all calls together, `between` separates them.
    """

    name: str
    arguments: str
    before: str = ""
    after: str = ""
    opening: str = ""
    closing: str = ""
    between: str = ""

    @property
    def marker(self) -> str:
        """The text that begins the first call; empty where only its JSON object tells a call from text."""
        return self.opening or self.before

    def write(self, calls: Sequence[tuple[str, Any]]) -> str:
        """Calls, names with their arguments, as the model writes them.

        >>> print(HERMES.write([("add", {"a": 1})]))
        <tool_call>
        {"name": "add", "arguments": {"a": 1}}
        </tool_call>
        """
        written = [json.dumps({"name": name, self.arguments: given}, ensure_ascii=False) for name, given in calls]
        return self.opening + self.between.join(f"{self.before}{w}{self.after}" for w in written) + self.closing


HERMES = ToolFormat("hermes", "arguments", before="<tool_call>\n", after="\n</tool_call>", between="\n")
MISTRAL = ToolFormat("mistral", "arguments", opening="[TOOL_CALLS][", closing="]", between=", ")
LLAMA = ToolFormat("llama", "parameters", between="; ")
FORMATS = {f.name: f for f in (HERMES, MISTRAL, LLAMA)}


def format_of(template: str) -> ToolFormat:
    """The format that a chat template writes calls in; Hermes' where it knows none, as that is described to the model then.

    >>> format_of("{% if tools %}<tool_call>{% endif %}").name, format_of("[TOOL_CALLS]").name, format_of("{{ messages }}").name
    ('hermes', 'mistral', 'hermes')
    """
    if "<tool_call>" in template:
        return HERMES
    if "[TOOL_CALLS]" in template:
        return MISTRAL
    return LLAMA if '"parameters"' in template and "tools" in template else HERMES


def describe(tools: Sequence[Mapping[str, Any]]) -> str:
    """A system text about tools, for models whose chat template has no place for them.

    >>> describe([{"type": "function", "function": {"name": "now"}}]).splitlines()[1]
    '{"type": "function", "function": {"name": "now"}}'
    """
    listed = "\n".join(json.dumps(t, ensure_ascii=False) for t in tools)
    example = HERMES.write([("NAME", {})])
    return f"You may call these functions:\n{listed}\nTo call one, answer with its name and arguments, for each call:\n{example}"


def _literal(text: str) -> str:
    return json.dumps(text)


def tool_grammar(
    format: ToolFormat,
    tools: Sequence[Mapping[str, Any]],
    *,
    required: bool,
    parallel: bool,
    schema: Mapping[str, Any] | None = None,
) -> str:
    """A Lark grammar of answers that call tools: with arguments as their schemas want them, and as many calls as are allowed.

    Objects whose schema names properties have no others, unless it allows them.
    Where calls are not `required`, text may come before and after them, or, with `schema`, JSON in their place.

    >>> print(tool_grammar(HERMES, [{"function": {"name": "now"}}], required=True, parallel=False))
    %llguidance {}
    start: calls
    calls: one
    one: "<tool_call>\\n" call "\\n</tool_call>"
    call: call_0
    call_0: "{\\"name\\": \\"now\\", \\"arguments\\": " args_0 "}"
    args_0: %json {"type": "object", "x-guidance": {"whitespace_pattern": "[ \\\\n]{0,8}"}}
    """
    if schema is not None and not required and not format.marker:
        return "\n".join(["%llguidance {}", f"start: %json {json.dumps(_call_or(schema, format, tools))}"])
    between = f" ({_literal(format.between)} one)*" if parallel else ""
    opening = f"{_literal(format.opening)} " if format.opening else ""
    closing = f" {_literal(format.closing)}" if format.closing else ""
    rules = []
    free = not required and schema is None
    lazy = free and bool(format.marker)
    if required:
        rules.append("start: calls")
    elif schema is not None:
        rules += ["start: calls | json", f"json: %json {json.dumps({**schema, **GUIDANCE})}"]
    elif lazy:
        # The text before a call ends where the marker appears: from there on it is a call.
        rules += ["start: (text_then_call)* TEXT" if parallel else "start: text_then_call? TEXT", "TEXT: /(.|\\n)*/"]
        rules += [f"trigger[lazy]: TEXT {_literal(format.marker)}"]
        rest = "one" if format.opening else f"call {_literal(format.after)}"
        more = between if format.opening else ""
        rules += [f"text_then_call: trigger {rest}{more}{closing}"]
    else:
        rules += ["start: calls | TEXT", "TEXT: /([^{ \\n](.|\\n)*)?/"]
    if not lazy:
        rules.append(f"calls: {opening}one{between}{closing}")
    if not lazy or format.opening:
        before = f"{_literal(format.before)} " if format.before else ""
        after = f" {_literal(format.after)}" if format.after else ""
        rules.append(f"one: {before}call{after}")
    rules.append("call: " + " | ".join(f"call_{k}" for k in range(len(tools))))
    for k, tool in enumerate(tools):
        function = tool["function"]
        begin = json.dumps({"name": function["name"]}, ensure_ascii=False)[:-1] + f', "{format.arguments}": '
        given = closed(function.get("parameters") or {"type": "object"})
        rules.append(f'call_{k}: {_literal(begin)} args_{k} "}}"')
        rules.append(f"args_{k}: %json {json.dumps({**given, **GUIDANCE})}")
    return "\n".join(["%llguidance {}", *rules])


def _call_or(schema: Mapping[str, Any], format: ToolFormat, tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A schema of what another one describes, or a call: where no mark begins a call, both begin alike."""
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"const": tool["function"]["name"]},
                format.arguments: closed(tool["function"].get("parameters") or {"type": "object"}),
            },
            "required": ["name", format.arguments],
            "additionalProperties": False,
        }
        for tool in tools
    ]
    # References of the schema are relative to its root.
    roots = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
    return {"anyOf": [*calls, {k: v for k, v in schema.items() if k not in roots}], **roots, **GUIDANCE}


@dataclass(frozen=True)
class ToolCall:
    """A call that a model made; `arguments` is the JSON text of an object."""

    id: str
    name: str
    arguments: str


_ALPHABET = string.ascii_letters + string.digits


def new_call_id(format: ToolFormat) -> str:
    """An id for a call; Mistral's templates take none that is not nine letters and digits.

    >>> len(new_call_id(MISTRAL)), new_call_id(HERMES)[:5]
    (9, 'call_')
    """
    if format is MISTRAL:
        return "".join(secrets.choice(_ALPHABET) for _ in range(9))
    return f"call_{secrets.token_hex(12)}"


class ToolCallParser:
    """Finds the calls in an answer while it is generated; what is no call is text.

    >>> parser = ToolCallParser(HERMES, {"now"})
    >>> parser.push("Wait.<tool"), parser.push('_call>\\n{"name": "now", "arg')
    (('Wait.', []), ('', []))
    >>> text, calls = parser.push('uments": {}}\\n</tool_call>')
    >>> text, calls[0].name, calls[0].arguments, parser.finish()
    ('', 'now', '{}', ('', []))
    """

    def __init__(self, format: ToolFormat, names: set[str]) -> None:
        self._format, self._names = format, names
        self._held = ""
        self._inside = False  # after the marker
        self._started = False  # text or a call was given
        self.found = 0
        # "\n" of the marker is optional: models leave it out at times.
        self._marker, self._after = format.marker.strip(), format.after.strip() or format.closing.strip()

    def push(self, text: str) -> tuple[str, list[ToolCall]]:
        """The text, and the calls, that are complete with this piece of the answer."""
        self._held += text
        said, calls = "", []
        while True:
            more, found, again = self._advance()
            said += more
            calls += found
            if not again:
                break
        if said or calls:
            self._started = True
        self.found += len(calls)
        return said, calls

    def finish(self) -> tuple[str, list[ToolCall]]:
        """What is left when the answer ends: calls whose end is missing, or text that looked like one."""
        calls, rest = self._calls(self._held)
        said = rest.strip() if calls else self._held
        if calls and said in (self._after, ""):
            said = ""
        if self._inside and not calls:
            said = self._marker + said if said.strip() else ""
        self._held, self._inside = "", False
        self.found += len(calls)
        return said, calls

    def _advance(self) -> tuple[str, list[ToolCall], bool]:
        """Text, calls, and whether there may be more in what is held."""
        if self._inside:
            calls, rest = self._calls(self._held)
            rest = rest.lstrip()
            if calls and (not self._after or rest.startswith(self._after)):
                self._held, self._inside = rest[len(self._after) :].lstrip("\n"), False
                return "", calls, True
            return "", [], False
        begins = self._held.lstrip()
        if not self._started and begins[:1] in ("{", "[") and (not self._marker or not self._marker.startswith(begins[:1])):
            # An object as the whole answer: the markers of some formats are special tokens, which texts do not show.
            return "", [], False
        if not self._marker:
            said, self._held = (self._held, "") if self._started or begins else ("", self._held)
            return said, [], False
        at = self._held.find(self._marker)
        if at >= 0:
            said, self._held, self._inside = self._held[:at], self._held[at + len(self._marker) :], True
            if self._marker.endswith("["):
                self._held = "[" + self._held
            return said.rstrip("\n") if at else "", [], True
        if not self._started and begins.startswith("[{"):
            return "", [], False
        keep = next((n for n in range(min(len(self._marker) - 1, len(self._held)), 0, -1)
                     if self._held.endswith(self._marker[:n])), 0)  # fmt: skip
        said, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return said, [], False

    def _calls(self, text: str) -> tuple[list[ToolCall], str]:
        """The calls at the beginning of a text, and the text after them; no calls if it is anything else."""
        if "}" not in text:
            return [], text
        decoder, calls, rest = json.JSONDecoder(), [], text.lstrip()
        while rest[:1] in ("{", "["):
            try:
                found, end = decoder.raw_decode(rest)
            except (ValueError, RecursionError):
                break
            made = [self._call(entry) for entry in (found if isinstance(found, list) else [found])]
            if not made or any(call is None for call in made):
                break
            calls += [call for call in made if call is not None]
            rest = rest[end:].lstrip()
            if isinstance(found, list):
                # The list's own bracket stood for what surrounds the calls.
                rest = (self._format.closing or "") + rest
            if not rest.startswith(";"):
                break
            rest = rest[1:].lstrip()
        return calls, rest if calls else text

    def _call(self, entry: Any) -> ToolCall | None:
        if not isinstance(entry, dict) or entry.get("name") not in self._names:
            return None
        given = entry.get(self._format.arguments, entry.get("arguments", entry.get("parameters", {})))
        if isinstance(given, str):  # some models write it as a text, as OpenAI's API has it
            try:
                given = json.loads(given)
            except ValueError:
                return None
        if not isinstance(given, dict):
            return None
        return ToolCall(new_call_id(self._format), entry["name"], json.dumps(given, ensure_ascii=False))

"""Tools and skills in `pumice chat`: which there are, what the user sees of each step, and the question before a call."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pumice.cli.generate import interruptible
from pumice.cli.text_input import shortened
from pumice.errors import InputError

if TYPE_CHECKING:
    from pumice.assist.agent import Agent, AgentEvent
    from pumice.assist.tool import Tool
    from pumice.llm.model import LanguageModel
    from pumice.serve.tools import ToolCall

# Characters of a call's arguments that a user is shown before agreeing to it.
_MOST_SHOWN = 2000


class ChatTools:
    """What the options --tools, --skill, --root, --mcp and --fetch ask for; false without any of them."""

    def __init__(
        self,
        tools: Sequence[str],
        skills: Sequence[str],
        root: Path | None,
        mcp: Sequence[str] = (),
        *,
        fetch: bool,
        yes: bool,
        steps: int,
    ) -> None:
        self._servers, self._open = list(mcp), ExitStack()
        self._files, self._skills, self._root, self._fetch = list(tools), list(skills), root, fetch
        self._yes, self._steps = yes, steps

    def __bool__(self) -> bool:
        return bool(self._files or self._skills or self._root or self._fetch or self._servers)

    def check(self, *, receipts: bool, stop: Any) -> None:
        """Refuses options that do not go together, before a model is loaded."""
        for name, given in (("--receipt", receipts), ("--stop", stop)):
            if given:
                raise InputError(f"{name} and tools do not go together", hint=f"leave {name} or the tools out")
        self._found = self._tools()
        from pumice.assist.skill import find_skills

        known = find_skills() if self._skills else None
        self._chosen = [known.get(name) for name in self._skills] if known else []

    def _tools(self) -> list[Tool]:
        from pumice.assist.builtin_tools import builtin_tools
        from pumice.assist.tool import tools_of_file

        found = []
        own = builtin_tools(root=self._root, fetch=self._fetch)
        found += own if "builtin" in self._files else [t for t in own if t.name not in ("calculate", "search_docs")]
        for file in self._files:
            found += [] if file == "builtin" else tools_of_file(file)
        return found

    def agent(self, model: LanguageModel, options: Mapping[str, Any]) -> Agent:
        """The agent of a chat. A skill with inputs becomes a tool, the text of any other part of the system text."""
        from pumice.assist.agent import Agent, AgentLimits
        from pumice.assist.mcp.client import McpConnection
        from pumice.assist.tool import tools_of_file

        tools, system = list(self._found), [options.get("system") or ""]
        for target in self._servers:
            tools += self._open.enter_context(McpConnection(target)).tools
        for skill in self._chosen:
            if skill.inputs:
                tools.append(skill.as_tool(model))
            else:
                system.append(skill.prompt)
            if skill.tools_file is not None:
                if not self._yes and not self._agreed(f"run the Python file {skill.tools_file} of the skill {skill.name}?"):
                    raise InputError(f"the tools of the skill {skill.name} were not loaded", hint="agree to it, or leave it out")
                tools += tools_of_file(skill.tools_file)
        given = {k: v for k, v in options.items() if k not in ("system", "stop")}
        return Agent(
            model,
            tools,
            system="\n\n".join(filter(None, system)) or None,
            limits=AgentLimits(steps=self._steps),
            approve=self.approve,
            **given,
        )

    def close(self) -> None:
        """Ends the MCP servers that were started."""
        self._open.close()

    def describe(self, agent: Agent) -> str:
        """A line about the tools."""
        named = ", ".join(f"{t.name}{' (asks)' if t.needs_consent and not self._yes else ''}" for t in agent.tools.values())
        return f"tools: {named}"

    def answer(self, agent: Agent, line: str) -> None:
        """Shows an answer with all its steps."""
        with interruptible() as pressed:
            found = agent.ask(line, on_event=self._show, cancelled=pressed)
        print(flush=True)
        if found.stopped != "done":
            print(f"[stopped: {found.stopped}]", file=sys.stderr)

    def _show(self, event: AgentEvent) -> None:
        if event.kind == "text":
            print(event.text, end="", flush=True)
        elif event.kind == "call" and event.call is not None:
            print(f"\n→ {event.call.name}({shortened(event.call.arguments)})", file=sys.stderr, flush=True)
        elif event.kind in ("result", "refused") and event.result is not None:
            cut = f" [{event.result.size} characters]" if event.result.cut else ""
            print(f"← {shortened(event.result.text)}{cut}", file=sys.stderr, flush=True)
        elif event.kind == "limit":
            print(f"[{event.text}]", file=sys.stderr, flush=True)

    def approve(self, call: ToolCall, tool: Tool) -> bool:
        """Asks the user; without a terminal the answer is no, unless --yes was given."""
        return self._yes or self._agreed(f"run {tool.name} ({tool.effect}) with {call.arguments[:_MOST_SHOWN]}?")

    def _agreed(self, question: str) -> bool:
        if not sys.stdin.isatty():
            print(f"{_printable(question)} no: there is no terminal to ask at; --yes agrees", file=sys.stderr)
            return False
        try:
            return input(f"{_printable(question)} [y/N] ").strip().lower() in ("y", "yes")
        except (EOFError, KeyboardInterrupt):
            return False


def _printable(text: str) -> str:
    """A text in which nothing can move the cursor or hide what a user agrees to.

    >>> _printable("a\\x1b[2Jb")
    'a\\\\x1b[2Jb'
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)

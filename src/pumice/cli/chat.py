"""`pumice chat`: a conversation in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from pumice.cli.generate import interruptible, speed_line
from pumice.cli.pull import progress_bar
from pumice.errors import InputError, PumiceError

HELP = "/reset forgets the conversation, /system TEXT sets the system text, /stats shows speeds, /quit or Ctrl-D ends"


class Conversation:
    """The messages so far and what the slash commands do to them.

    >>> c = Conversation("be brief")
    >>> c.command("/system be kind"), c.messages
    ('system text set, conversation forgotten', [{'role': 'system', 'content': 'be kind'}])
    """

    def __init__(self, system: str | None) -> None:
        self.system = system
        self.messages: list[dict[str, str]] = []
        self.reset()

    def reset(self) -> None:
        self.messages = [{"role": "system", "content": self.system}] if self.system else []

    def command(self, line: str) -> str | None:
        """What a slash command answers; None for an ordinary line."""
        name, _, rest = line.partition(" ")
        if name == "/reset":
            self.reset()
            return "conversation forgotten"
        if name == "/system":
            self.system = rest.strip() or None
            self.reset()
            return "system text set, conversation forgotten" if self.system else "no system text, conversation forgotten"
        if name == "/help":
            return HELP
        if line.startswith("/"):
            raise InputError(f"there is no command {name}", hint=HELP)
        return None


def run(model: str, *, device: str, context: int, options: Mapping[str, Any], lora: Mapping[str, Any] | None = None) -> int:
    """Talk until the user leaves; the exit code."""
    from pumice.llm.load import load, require_language_model

    with progress_bar(quiet=False) as report:
        loaded = require_language_model(load(model, device=device, context=context, **(lora or {}), progress=report), model)
    talk = Conversation(options.get("system"))
    rest = {k: v for k, v in options.items() if k not in ("system", "raw")}
    last: Any = None
    with loaded:
        print(f"{model} on {loaded.describe_device()['name']}; {HELP}", file=sys.stderr)
        while True:
            try:
                line = input("> ").strip()
            except EOFError:
                print(file=sys.stderr)
                return 0
            except KeyboardInterrupt:
                print("\n(/quit or Ctrl-D ends)", file=sys.stderr)
                continue
            if line == "/quit":
                return 0
            if line == "/stats":
                print(speed_line(last, loaded.describe_device()) if last else "nothing was said yet", file=sys.stderr)
                continue
            try:
                said = talk.command(line)
                if said is not None:
                    print(said, file=sys.stderr)
                elif line:
                    last = _answer(loaded, talk, line, rest)
            except PumiceError as e:
                full = "context" in e.fields and len(talk.messages) > 1
                print("; ".join(filter(None, (e.message, e.hint, "or /reset" if full else ""))), file=sys.stderr)


def _answer(loaded: Any, talk: Conversation, line: str, options: Mapping[str, Any]) -> Any:
    asked = [*talk.messages, {"role": "user", "content": line}]
    with interruptible() as pressed:
        answer = loaded.generate(asked, on_text=lambda t: print(t, end="", flush=True), cancelled=pressed, **options)
    print(flush=True)
    # Only now: a question that failed must not stay in the history without its answer.
    talk.messages = [*asked, {"role": "assistant", "content": answer.text}]
    return answer

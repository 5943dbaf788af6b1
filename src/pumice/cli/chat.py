"""`pumice chat`: a conversation in the terminal."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

from pumice.cli.generate import check_before_loading, cut_line, interruptible, speed_line
from pumice.cli.pull import progress_bar
from pumice.cli.receipt_option import ReceiptFile
from pumice.core.collection import keeping_all
from pumice.errors import InputError, PumiceError

if TYPE_CHECKING:
    from pumice.cli.agent_chat import ChatTools
    from pumice.llm.answers import Generation
    from pumice.llm.chat import Chat

HELP = (
    "/reset forgets the conversation, /undo the last answer, /system TEXT sets the system text, /stats shows speeds, /help shows"
    ' this, /quit or Ctrl-D ends; """ begins and ends a message of several lines, a \\ at the end of a line continues it'
)
# A line that is one word of this form was meant as a command; paths and sentences are not.
_COMMAND = re.compile(r"/[a-z]+")
_NO_TEMPLATE = "note: this model has no chat template: it continues the text so far, and answers nothing"


def command(chat: Chat, line: str) -> str | None:
    """What a slash command did to the chat; None for a line to send to the model."""
    name, _, rest = line.partition(" ")
    if line == "/reset":
        chat.reset()
        return "conversation forgotten"
    if name == "/system":
        chat.reset(system=rest.strip())
        return "system text set, conversation forgotten" if chat.system else "no system text, conversation forgotten"
    if line == "/undo":
        return f"forgotten: {chat.undo()}"
    if line == "/help":
        return HELP
    if _COMMAND.fullmatch(line):
        raise InputError(f"there is no command {line}", hint=f"a space before it sends it as text; {HELP}")
    return None


def read_message(ask: Callable[[str], str]) -> str:
    """A message: a line, lines that each end with a backslash but the last, or lines between triple quotes.

    >>> lines = iter(['one \\\\', 'two', '\"\"\"three', '', 'four\"\"\"'])
    >>> read_message(lambda prompt: next(lines)), read_message(lambda prompt: next(lines))
    ('one \\ntwo', 'three\\n\\nfour')
    """
    line = ask("> ")
    if not line.lstrip().startswith('"""'):
        while line.endswith("\\"):
            line = line[:-1] + "\n" + ask("... ")
        return line
    text = line.lstrip()[3:]
    while not text.rstrip().endswith('"""'):
        text += "\n" + ask("... ")
    return text.rstrip()[:-3].strip("\n")


def _edit_lines() -> None:
    """Arrow keys, history and pasted line breaks for `input`, where Python has readline; it is not imported without a terminal.

    This comes before a device is opened: a GPU driver may bring libedit, whose functions have the same names and would be
    called instead of readline's.
    """
    if not sys.stdin.isatty():
        return
    with suppress(ImportError):
        readline: Any = importlib.import_module("readline")
        # A pasted text is one message, with any line breaks.
        readline.parse_and_bind("set enable-bracketed-paste on")


def run(
    model: str,
    *,
    load_options: Mapping[str, Any],
    options: Mapping[str, Any],
    receipts: ReceiptFile | None = None,
    tools: ChatTools | None = None,
) -> int:
    """Talk until the user leaves; the exit code."""
    from pumice.llm.load import load

    check_before_loading(options)
    if tools:
        tools.check(receipts=receipts is not None, stop=options.get("stop"))
    _edit_lines()
    with keeping_all(), progress_bar(quiet=False) as report:
        loaded = load(model, "generate", **load_options, ready_for=options, progress=report)
    last: Any = None
    with loaded, ExitStack() as stack:
        print(f"{model} on {loaded.describe_device()['name']}; {HELP}", file=sys.stderr)
        if loaded.template is None:
            if options.get("system"):
                raise InputError(
                    f"{model} has no chat template, so there is no place for a system text", hint="leave --system out"
                )
            print(_NO_TEMPLATE, file=sys.stderr)
        chat: Any
        if tools:
            stack.callback(tools.close)
            chat = tools.agent(loaded, options)
            print(tools.describe(chat), file=sys.stderr)
        else:
            chat = loaded.chat(**{**options, "system": options.get("system") or None})
        while True:
            try:
                line = read_message(input)
            except EOFError:
                print(file=sys.stderr)
                return 0
            except KeyboardInterrupt:
                print("\n(/quit or Ctrl-D ends)", file=sys.stderr)
                continue
            # A command starts a line; anything after a space is text.
            word = line.rstrip()
            if word == "/quit":
                return 0
            if word == "/stats":
                print(speed_line(last, loaded.describe_device()) if last else "nothing was said yet", file=sys.stderr)
                continue
            try:
                said = command(chat, word)
                if said is not None:
                    print(said, file=sys.stderr)
                elif line.strip() and tools:
                    tools.answer(chat, line.strip())
                elif line.strip():
                    last = _answer(chat, line.strip())
                    if receipts is not None:
                        print(f"receipt: {receipts.save(last.receipt)}", file=sys.stderr)
            except PumiceError as e:
                full = "context" in e.fields and len(chat.history) > 1
                print("; ".join(filter(None, (e.message, e.hint, "or /reset" if full else ""))), file=sys.stderr)


def _answer(chat: Chat, line: str) -> Generation:
    with interruptible() as pressed:
        answer = chat.send(line, on_text=lambda t: print(t, end="", flush=True), cancelled=pressed)
    print(flush=True)
    if answer.finish_reason == "length":
        print(cut_line(answer, chat.model.engine.context), file=sys.stderr)
    return answer

"""Chat templates: a conversation as the text that a model was trained on, rendered without trusting the template."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from pumice.core.fields import Fields
from pumice.errors import FormatError, InputError, PumiceError, UnknownName
from pumice.text.metering import LimitReached, Limits, conversation_size

if TYPE_CHECKING:
    import jinja2

_OLDEST_JINJA = (3, 1, 6)  # the first without a known way out of its sandbox
_ORIGIN = "check where the model comes from, or pass a template of your own"


class ChatTemplate:
    """Renders messages with a model's template, as `transformers` does.

    `source` is a template, or several by name of which "default" and "tool_use" are chosen by themselves. `special` holds
    further special tokens by their Hugging Face name (`pad_token`, …) that templates may print. The template is compiled
    when it is first used.

    >>> template = ChatTemplate("{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}", "<s>", "</s>")
    >>> template.render([{"role": "user", "content": "Hi"}])
    '<s><user>Hi'
    """

    def __init__(
        self,
        source: str | Mapping[str, str] | Sequence[Mapping[str, str]],
        bos_token: str = "",
        eos_token: str = "",
        *,
        special: Mapping[str, Any] | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self.sources = _named(source, self.limits)
        self._special = {**(special or {}), "bos_token": bos_token, "eos_token": eos_token}
        self._compiled: dict[str, jinja2.Template] = {}

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any], *, limits: Limits | None = None) -> ChatTemplate | None:
        """The template that a GGUF file carries, None if it has none.

        >>> ChatTemplate.from_gguf({"tokenizer.ggml.model": "gpt2"}) is None
        True
        """
        fields = Fields(metadata, "the GGUF metadata", "tokenizer.")
        named = [name for name in fields.texts("chat_templates") if fields.has(f"chat_template.{name}")]
        sources = {name: fields.text(f"chat_template.{name}") for name in named}
        if fields.has("chat_template"):
            sources["default"] = fields.text("chat_template")
        if not sources:
            return None
        # Strings of a file are decoded one by one: the whole vocabulary would take longer than all else here.
        listed = fields.get("ggml.tokens")
        tokens = listed if hasattr(listed, "raw") else fields.texts("ggml.tokens")
        special = {}
        for name, field in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
            token = fields.whole(f"ggml.{field}_token_id", -1, least=-1, most=0xFFFFFFFF)
            if 0 <= token < len(tokens):
                special[f"{name}_token"] = tokens[token]
        return cls(sources, special.pop("bos_token", ""), special.pop("eos_token", ""), special=special, limits=limits)

    @classmethod
    def from_folder(cls, folder: Path, *, limits: Limits | None = None) -> ChatTemplate | None:
        """The template of a model folder in Hugging Face's layout, None if it has none.

        >>> ChatTemplate.from_folder(Path("nowhere")) is None
        True
        """
        from pumice.core.json_file import read_json, read_optional_json
        from pumice.text.file_tokenizer import special_names

        config = read_optional_json(folder / "tokenizer_config.json")
        source = config.get("chat_template")
        if (path := folder / "chat_template.jinja").is_file():
            source = path.read_text(encoding="utf-8", errors="replace")
        elif (path := folder / "chat_template.json").is_file():
            source = read_json(path).get("chat_template", source)
        if source is None:
            return None
        special: dict[str, Any] = special_names({**read_optional_json(folder / "special_tokens_map.json"), **config})
        return cls(source, special.pop("bos_token", ""), special.pop("eos_token", ""), special=special, limits=limits)

    @property
    def special(self) -> dict[str, Any]:
        """The special tokens that templates may print, by their Hugging Face name.

        >>> ChatTemplate("", "<s>", "</s>").special
        {'bos_token': '<s>', 'eos_token': '</s>'}
        """
        return dict(self._special)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        template: str | None = None,
        **extra: Any,
    ) -> str:
        """The prompt for a conversation; `extra` are further variables that the template knows (`enable_thinking`, …).

        Encode it with `add_special=False`: the template itself writes the begin-of-text token where there is one.

        >>> ChatTemplate("{{ raise_exception('no system role') }}").render([{"role": "system", "content": "Be brief"}])
        Traceback (most recent call last):
        pumice.errors.InputError: [input] the chat template does not take this conversation: no system role
          hint: ...
        """
        _check_messages(messages)
        name = self._choose(template, tools)
        given = {"messages": messages, "tools": tools, "documents": documents}
        variables = {**self._special, **extra, **given, "add_generation_prompt": add_generation_prompt}
        plain = {key: _plain(value, key, self.limits.nesting) for key, value in variables.items()}
        return self._guarded(name, plain)

    def _choose(self, name: str | None, tools: object) -> str:
        if name is None:
            name = "tool_use" if tools is not None and "tool_use" in self.sources else "default"
            if name not in self.sources and len(self.sources) == 1:
                name = next(iter(self.sources))
        if name not in self.sources:
            raise UnknownName(
                f"the model has no chat template {name!r}", hint=f"it has {', '.join(sorted(self.sources))}", template=name
            )
        return name

    def _guarded(self, name: str, variables: Mapping[str, Any]) -> str:
        jinja2 = _jinja()
        from pumice.text.sandbox import Refusal, Sandbox, metered

        try:
            if name not in self._compiled:
                with warnings.catch_warnings():  # Python has opinions on code that Jinja generates
                    warnings.simplefilter("ignore", SyntaxWarning)
                    self._compiled[name] = Sandbox().from_string(self.sources[name])
            with metered(self.limits, conversation_size(variables)):
                return self._compiled[name].render(variables)
        except Refusal as error:
            raise InputError(
                f"the chat template does not take this conversation: {_shown(error)}",
                hint="change the roles or the order of the messages to what the model was trained on",
                template=name,
            ) from None
        except LimitReached as error:
            _refuse(name, f"the chat template was stopped: {_shown(error)}")
        except (RecursionError, MemoryError, OverflowError) as error:
            _refuse(name, f"the chat template was stopped: {type(error).__name__}")
        except jinja2.exceptions.SecurityError as error:
            _refuse(name, f"the chat template tried what it may not do: {_shown(error)}")
        except (jinja2.TemplateSyntaxError, SyntaxError) as error:
            _refuse(name, f"the chat template is not valid Jinja: {_shown(error)}")
        except Exception as error:  # a template is foreign code: it may raise anything
            raise InputError(
                f"the chat template failed on this conversation: {type(error).__name__}: {_shown(error)}",
                hint="check that each message has the fields that the template reads, such as role and content",
                template=name,
            ) from None


def _shown(error: Exception) -> str:
    """The words of an error as a terminal may show them: a template writes some of them."""
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in str(error)[:500])


def _refuse(name: str, message: str) -> NoReturn:
    raise FormatError(message, hint=_ORIGIN, template=name) from None


def _jinja() -> Any:
    try:
        import jinja2
    except ImportError:
        raise PumiceError("chat templates need the package jinja2", hint="pip install 'pumice[llm]'") from None
    version = tuple(int(part) for part in jinja2.__version__.split(".")[:3] if part.isdigit())
    if version < _OLDEST_JINJA:
        raise PumiceError(
            f"chat templates need jinja2 3.1.6 or newer, this is {jinja2.__version__}",
            hint="older ones let a template run code: pip install -U jinja2",
        )
    return jinja2


def _named(source: object, limits: Limits) -> dict[str, str]:
    """The templates by name, whichever of the three forms in use they come in."""
    named: object = source
    if isinstance(source, str):
        named = {"default": source}
    elif isinstance(source, Sequence) and all(isinstance(entry, Mapping) for entry in source):
        named = {entry.get("name"): entry.get("template") for entry in source}
    if not isinstance(named, Mapping) or not named or not all(isinstance(t, str) for pair in named.items() for t in pair):
        raise FormatError(
            "the chat template is neither text nor a set of named texts",
            hint="chat_template is a string, a dict of strings, or a list of {name, template}",
            got=type(source).__name__,
        )
    for name, text in named.items():
        if len(text) > limits.source:
            raise FormatError(
                f"the chat template {name!r} has {len(text)} characters, more than {limits.source}",
                hint=_ORIGIN,
                template=name,
                size=len(text),
                limit=limits.source,
            )
    return dict(named)


def _check_messages(messages: object) -> None:
    hint = 'pass a list such as [{"role": "user", "content": "Hi"}]'
    if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence):
        raise InputError(f"messages are a list, not a {type(messages).__name__}", hint=hint, got=type(messages).__name__)
    for at, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise InputError(f"message {at} has no role", hint=hint, at=at)


def _plain(value: Any, where: str, depth: int) -> Any:
    """A copy of `value` of JSON types only, as templates can call methods on their arguments."""
    if depth < 0:
        raise InputError(f"{where} nests too deep for a chat template", hint="pass plain JSON values", field=where)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)  # subclasses, such as enums, may print something else
    if isinstance(value, int | float):
        return int(value) if isinstance(value, int) else float(value)
    if isinstance(value, Mapping):
        return {_plain(key, where, depth - 1): _plain(item, where, depth - 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, where, depth - 1) for item in value]
    raise InputError(
        f"{where} holds a {type(value).__name__}, which chat templates do not take",
        hint="pass JSON values: text, numbers, booleans, None, lists and dicts",
        field=where,
        got=type(value).__name__,
    )

"""Skills: folders with a SKILL.md of front matter and a prompt, found, checked, listed and run."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pumice import config
from pumice.assist.marks import marks_of, neutralised
from pumice.core.fields import Fields
from pumice.errors import FormatError, InputError, MissingName, PumiceError, UnknownName
from pumice.llm.grammar import Grammar

if TYPE_CHECKING:
    from pumice.assist.tool import Tool
    from pumice.llm.answers import Generation
    from pumice.llm.model import LanguageModel

SKILL_FILE = "SKILL.md"
_MOST_BYTES = 1 << 16
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_INPUT = re.compile(r"\{\{\s*(\w+)\s*\}\}")
_FRONT = re.compile(r"\A---[ \t]*\n(.*?)\n---[ \t]*(?:\n|\Z)", re.DOTALL)
# Fields of the format that other programs follow as well; Pumice does not use them.
_FOREIGN = ("license", "version", "metadata", "allowed-tools", "compatibility")
_KNOWN = ("name", "description", "inputs", "answer", "options", "tools", *_FOREIGN)
_OPTIONS = ("max_tokens", "temperature", "top_k", "top_p", "min_p", "seed")


@dataclass(frozen=True)
class SkillInput:
    """What a skill is given: a text; without a default it is required."""

    name: str
    description: str = ""
    default: str | None = None


@dataclass(frozen=True)
class Skill:
    """A prompt with a name, inputs, the form of its answer, and tools; `run` answers with a model.

    `answer` is {} for any text, {"schema": …}, {"regex": …}, or {"choices": INPUT}: one of an input's values.
    """

    name: str
    description: str
    prompt: str
    inputs: tuple[SkillInput, ...] = ()
    answer: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    # The file with its tools, which is Python and runs only where a program or user asks for it.
    tools_file: Path | None = None
    folder: str = ""

    def fill(self, given: Mapping[str, str]) -> str:
        """The prompt with these inputs; one that is missing or unknown is refused.

        >>> Skill("hi", "", "Greet {{ who }}.", (SkillInput("who"),)).fill({"who": "{{ you }}"})
        'Greet {{ you }}.'
        """
        values = self.values(given)
        return _INPUT.sub(lambda m: values[m[1]], self.prompt)

    def values(self, given: Mapping[str, str]) -> dict[str, str]:
        """All inputs with their values."""
        known = {i.name: i for i in self.inputs}
        for name, value in given.items():
            if name not in known:
                raise UnknownName(f"the skill {self.name} has no input {name!r:.60}", hint=_one_of(known), name=name)
            if not isinstance(value, str):
                raise InputError(f"the input {name} is {type(value).__name__}", hint="give a text", name=name)
        values = {}
        for name, entry in known.items():
            if name not in given and entry.default is None:
                raise MissingName(f"the skill {self.name} needs the input {name}", hint=entry.description, name=name)
            values[name] = given[name] if name in given else str(entry.default)
        return values

    def run(self, model: LanguageModel, inputs: Mapping[str, str], **options: Any) -> Generation:
        """The model's answer; `options` are those of `generate` and take the place of the skill's own."""
        given = {**self.options, **{k: v for k, v in options.items() if v is not None}}
        marks = marks_of(model)
        safe = {name: neutralised(value, marks) for name, value in inputs.items()}
        found: Generation = model.generate(self.fill(safe), **self._form(inputs), **given)
        return found

    def _form(self, inputs: Mapping[str, str]) -> dict[str, Any]:
        if "schema" in self.answer:
            return {"json_schema": self.answer["schema"]}
        if "choices" in self.answer:
            choices = choices_of(self.values(inputs)[self.answer["choices"]])
            return {"grammar": Grammar.regex("|".join(re.escape(c) for c in choices))}
        return {"grammar": Grammar.regex(self.answer["regex"])} if "regex" in self.answer else {}

    def as_tool(self, model: LanguageModel) -> Tool:
        """The skill as a tool that an agent may call: it answers with the model, and does nothing else."""
        from pumice.assist.tool import Tool

        texts = {i.name: {"type": "string", "maxLength": 4000, "description": i.description} for i in self.inputs}
        schema = {
            "type": "object",
            "properties": texts,
            "required": [i.name for i in self.inputs if i.default is None],
            "additionalProperties": False,
        }
        name = f"skill_{self.name.replace('-', '_')}"
        return Tool(name, self.description, schema, lambda **given: self.run(model, given).text, "read")


def choices_of(text: str) -> list[str]:
    """The values of a list with commas.

    >>> choices_of("good, bad")
    ['good', 'bad']
    """
    found = [c.strip() for c in text.split(",") if c.strip()]
    if len(found) < 2:
        raise InputError(f"{text!r:.60} is no list of choices", hint="give two or more, with commas between them")
    return found


def read_skill(folder: str | Path) -> Skill:
    """The skill in a folder; one that is not well formed, or that leads out of its folder, is refused."""
    folder = Path(folder)
    text = _plain_text(folder / SKILL_FILE, folder)
    front = _FRONT.match(text)
    if front is None:
        raise FormatError(f"{folder / SKILL_FILE} has no front matter", hint="begin it with --- and name: and description:")
    fields = Fields(_yaml(front[1], folder), f"the front matter of {folder / SKILL_FILE}")
    unknown = sorted(set(fields.values) - set(_KNOWN))
    if unknown:
        raise fields.refuse(f"{unknown[0]!r:.60}", "fields are " + " ".join(_KNOWN))
    name = fields.text("name")
    if not _NAME.fullmatch(name) or len(name) > 64:
        raise fields.refuse(f"name = {name!r:.80}", "lower-case letters, digits and single dashes")
    if folder.resolve().name != name:
        raise fields.refuse(f"name = {name}", f"the folder is called {folder.resolve().name}; both must agree")
    skill = Skill(
        name,
        fields.text("description"),
        text[front.end() :].strip(),
        tuple(_inputs(fields)),
        _answer(fields),
        _options(fields),
        _tools_file(fields, folder),
        str(folder),
    )
    _check_prompt(skill, fields)
    return skill


def _inputs(fields: Fields) -> Iterable[SkillInput]:
    given = fields.values.get("inputs", {})
    if not isinstance(given, Mapping):
        raise fields.refuse(f"inputs = {given!r:.60}", "names with descriptions, or with description and default")
    for name, entry in given.items():
        about = entry if isinstance(entry, Mapping) else {"description": entry}
        default = about.get("default")
        if not isinstance(name, str) or not name.isidentifier() or set(about) - {"description", "default"}:
            raise fields.refuse(f"inputs.{name!r:.40}", "a name with description: and, if it may be left out, default:")
        yield SkillInput(name, str(about.get("description") or ""), None if default is None else str(default))


def _answer(fields: Fields) -> dict[str, Any]:
    given = fields.values.get("answer", {})
    kinds = {"schema": Mapping, "regex": str, "choices": str}
    right = isinstance(given, Mapping) and len(given) <= 1 and all(isinstance(v, kinds.get(k, ())) for k, v in given.items())
    if not right:
        raise fields.refuse(f"answer = {given!r:.60}", "one of schema: {…}, regex: TEXT and choices: INPUT")
    return dict(given)


def _options(fields: Fields) -> dict[str, Any]:
    given = fields.values.get("options", {})
    numbers = isinstance(given, Mapping) and all(k in _OPTIONS and type(v) in (int, float) for k, v in given.items())
    if not numbers:
        raise fields.refuse(f"options = {given!r:.60}", "numbers for " + " ".join(_OPTIONS))
    return dict(given)


def _tools_file(fields: Fields, folder: Path) -> Path | None:
    if not fields.has("tools"):
        return None
    path = folder / fields.text("tools")
    _check_inside(path, folder)
    return path


def _check_prompt(skill: Skill, fields: Fields) -> None:
    named = set(_INPUT.findall(skill.prompt))
    known = {i.name for i in skill.inputs}
    if named - known:
        raise fields.refuse(f"inputs without {sorted(named - known)[0]}", "the prompt uses it")
    if known - named - {skill.answer.get("choices")}:
        raise fields.refuse(f"inputs.{sorted(known - named)[0]}", "the prompt does not use it")
    if not skill.prompt:
        raise fields.refuse("no prompt", "write it after the front matter")
    if "choices" in skill.answer and skill.answer["choices"] not in known:
        raise fields.refuse(f"answer.choices = {skill.answer['choices']!r:.40}", "it names an input")


def _check_inside(path: Path, folder: Path) -> None:
    """Refuses a path that is no plain file of the folder itself: links, `..`, devices."""
    shown = str(path)[:200]
    try:
        inside = (
            path.resolve(strict=True).is_relative_to(folder.resolve(strict=True)) and ".." not in path.parts[len(folder.parts) :]
        )
        mode = os.lstat(path).st_mode
    except (OSError, RuntimeError):
        raise FormatError(f"there is no file {shown}", hint=f"a skill is a folder with a {SKILL_FILE}") from None
    if not inside or not stat.S_ISREG(mode):
        raise FormatError(f"{shown} is no plain file inside of the skill's folder", hint="links and .. are refused")


def _plain_text(path: Path, folder: Path) -> str:
    _check_inside(path, folder)
    with path.open("rb") as file:
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise FormatError(f"{path} has more than {_MOST_BYTES} bytes", hint="a prompt must fit into a model's context")
    try:
        return data.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as e:
        raise FormatError(f"{path} is not UTF-8 at byte {e.start}", hint="convert it to UTF-8") from None


def _yaml(text: str, folder: Path) -> dict[str, Any]:
    try:
        import yaml
    except ImportError:
        raise PumiceError("skills need the package PyYAML", hint="pip install 'pumice[assist]'") from None
    try:
        # Aliases can make a small text a huge object.
        if re.search(r"(^|[\s:\[{,-])[&*]\w", text):
            raise FormatError(f"the front matter of {folder / SKILL_FILE} has YAML aliases", hint="write the value out")
        found = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as e:
        line = " ".join(str(e).split())
        raise FormatError(f"the front matter of {folder / SKILL_FILE} is no YAML: {line:.200}", hint="correct it") from None
    if not isinstance(found, dict):
        raise FormatError(f"the front matter of {folder / SKILL_FILE} has no fields", hint="write name: and description:")
    return found


def skill_folders() -> list[Path]:
    """Where skills are looked for besides those that come with Pumice: this project's, then the user's own."""
    return [Path(".pumice") / "skills", config.home / "skills"]


@dataclass(frozen=True)
class SkillSet:
    """The skills that were found by name, and what is wrong with others."""

    skills: Mapping[str, Skill]
    problems: tuple[str, ...] = ()

    def get(self, name: str) -> Skill:
        """The skill of a name."""
        if name not in self.skills:
            raise UnknownName(f"there is no skill {name!r:.80}", hint=_one_of(self.skills), name=name)
        return self.skills[name]


def find_skills(folders: Iterable[str | Path] | None = None) -> SkillSet:
    """The skills that come with Pumice and those in folders; the first of a name counts, the built-in ones come last.

    >>> list(find_skills([]).skills)
    ['classify', 'extract', 'summarise', 'title', 'translate']
    """
    found: dict[str, Skill] = {}
    problems = []
    for parent in skill_folders() if folders is None else map(Path, folders):
        for folder in sorted(parent.iterdir()) if parent.is_dir() else ():
            if not (folder / SKILL_FILE).exists() and not (folder / SKILL_FILE).is_symlink():
                continue
            try:
                if folder.is_symlink():
                    raise FormatError(f"{str(folder)[:200]} is a link", hint="links are refused")
                skill = read_skill(folder)
            except PumiceError as e:
                problems.append("; ".join(filter(None, (e.message, e.hint))))
                continue
            found.setdefault(skill.name, skill)
    with as_file(files("pumice.assist") / "skills") as own:
        for folder in sorted(own.iterdir()):
            found.setdefault(folder.name, read_skill(folder))
    return SkillSet(dict(sorted(found.items())), tuple(problems))


def _one_of(names: Iterable[str]) -> str:
    return "one of " + " ".join(names)

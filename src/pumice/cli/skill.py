"""`pumice skill`: list skills, and run one with a model."""

from __future__ import annotations

import json as json_text
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from pumice.cli.options import CacheDType, Context, Device, Fast, MaxTokens, Precision, Seed, Temperature, precision_of
from pumice.cli.pack import Json

skill_app = typer.Typer(
    name="skill",
    help="Skills: folders with a prompt, its inputs and the form of its answer.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Folders = Annotated[
    list[Path] | None,
    typer.Option(
        "--skills",
        metavar="DIR",
        help="A folder of skills; may be repeated.",
        show_default=".pumice/skills and PUMICE_HOME/skills",
    ),
]


@skill_app.command("list")
def list_skills(skills: Folders = None, json: Json = False) -> None:
    """List the skills that are built in, in this project's .pumice/skills, and the user's own."""
    from pumice.assist.skill import find_skills

    found = find_skills(skills)
    if json:
        rows: list[dict[str, Any]] = []
        for skill in found.skills.values():
            inputs = [{"name": i.name, "description": i.description, "default": i.default} for i in skill.inputs]
            rows.append({"name": skill.name, "description": skill.description, "inputs": inputs, "folder": skill.folder})
        print(json_text.dumps({"skills": rows, "problems": list(found.problems)}))
        return
    for skill in found.skills.values():
        named = ", ".join(i.name if i.default is None else f"{i.name}={i.default}" for i in skill.inputs)
        print(f"{skill.name:<12} {skill.description}" + (f" ({named})" if named else ""))
    for problem in found.problems:
        print(f"not usable: {problem}", file=sys.stderr)


@skill_app.command("run")
def run_skill(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A language model, as `pumice run` takes it.")],
    name: Annotated[str, typer.Argument(metavar="SKILL", help="A name of `pumice skill list`, or the folder of a skill.")],
    text: Annotated[
        str | None, typer.Argument(metavar="TEXT", help="The skill's first input; - or a pipe is standard input.")
    ] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option("-i", "--input", metavar="NAME=TEXT", help="Another input; may be repeated.", show_default="none"),
    ] = None,
    skills: Folders = None,
    device: Device = "auto",
    context: Context = 2048,
    cache_dtype: CacheDType = "f32",
    precision: Precision = None,
    fast: Fast = False,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    seed: Seed = None,
    json: Json = False,
) -> None:
    """Answer with a skill's prompt and the form that it demands."""
    from pumice.assist.skill import find_skills, read_skill
    from pumice.cli.generate import answer_json, interruptible
    from pumice.cli.pull import progress_bar
    from pumice.cli.text_input import whole_prompt
    from pumice.errors import InputError
    from pumice.llm.load import load

    skill = read_skill(name) if Path(name).is_dir() else find_skills(skills).get(name)
    given: dict[str, str] = {}
    for entry in inputs or ():
        key, equals, value = entry.partition("=")
        if not equals:
            raise InputError(f"--input is {entry!r:.60}", hint="write NAME=TEXT", name="input")
        given[key] = value
    first = skill.inputs[0].name if skill.inputs else None
    if first is None and text is not None:
        raise InputError(f"the skill {skill.name} has no inputs", hint="leave the text out", name="text")
    if first is not None and first not in given:
        given[first] = whole_prompt(text)
    elif text is not None:
        raise InputError(f"the input {first} is given twice", hint=f"leave the text or --input {first} out", name="text")
    skill.fill(given)
    options = {"max_tokens": max_tokens, "temperature": temperature, "seed": seed}
    load_options: dict[str, Any] = {"device": device, "context": context, "cache_dtype": cache_dtype}
    load_options["precision"] = precision_of(precision, fast)
    with progress_bar(quiet=json) as report:
        loaded = load(model, "generate", **load_options, progress=report)
    with loaded, interruptible() as pressed:
        answer = skill.run(
            loaded,
            given,
            cancelled=pressed,
            on_text=None if json else lambda piece: print(piece, end="", flush=True),
            **options,
        )
        if json:
            print(json_text.dumps({"skill": skill.name} | answer_json(answer, loaded.describe_device(), loaded.info)))
        else:
            print(flush=True)

"""The commands that write text: `pumice run` and `pumice chat`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from pumice.cli.options import (
    Beams,
    Cache,
    CacheDType,
    Context,
    Cooperative,
    Device,
    Fast,
    Forbid,
    FrequencyPenalty,
    LargestStep,
    LengthPenalty,
    LivePageFile,
    LogitBias,
    Lora,
    LoraScale,
    MaxTokens,
    MinP,
    Packs,
    Precision,
    PresencePenalty,
    Receipt,
    ReceiptPrivate,
    RepeatPenalty,
    Seed,
    Server,
    ServerKeyFile,
    Stop,
    System,
    TargetMs,
    Temperature,
    TopK,
    TopP,
    TypicalP,
    YieldMs,
    precision_of,
)
from pumice.cli.pack import Json


def run(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A path, hf:owner/repo, pypi:package==version/path, or an alias.")
    ],
    prompt: Annotated[
        str | None,
        typer.Argument(metavar="PROMPT", help="What to answer. What is piped in follows it; - or nothing takes that alone."),
    ] = None,
    device: Device = "auto",
    json: Json = False,
    context: Context = 2048,
    cache_dtype: CacheDType = "f32",
    precision: Precision = None,
    fast: Fast = False,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    typical_p: TypicalP = None,
    repeat_penalty: RepeatPenalty = None,
    presence_penalty: PresencePenalty = None,
    frequency_penalty: FrequencyPenalty = None,
    logit_bias: LogitBias = None,
    forbid: Forbid = None,
    beams: Beams = None,
    length_penalty: LengthPenalty = None,
    seed: Seed = None,
    stop: Stop = None,
    system: System = None,
    lora: Lora = None,
    lora_scale: LoraScale = 1.0,
    raw: Annotated[bool, typer.Option("--raw", help="Continue the prompt as it is, without the chat template.")] = False,
    logprobs: Annotated[
        int | None,
        typer.Option(help="Log-probabilities of the tokens, and of this many alternatives (0 to 20).", show_default="none"),
    ] = None,
    json_schema: Annotated[
        Path | None,
        typer.Option(
            "--schema", "--json-schema", metavar="FILE", help="Answer with JSON as this schema describes it.", show_default="none"
        ),
    ] = None,
    draft: Annotated[
        str | None,
        typer.Option(
            metavar="lookup|MODEL",
            help="Draft tokens from the text so far, or by a smaller model: the same answer, in fewer steps.",
            show_default="none",
        ),
    ] = None,
    pack: Packs = None,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse a --max-tokens that the context has no room for.")] = False,
    profile: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a Perfetto trace of one token step, its times to stderr.")
    ] = None,
    cache: Cache = False,
    receipt: Receipt = None,
    receipt_private: ReceiptPrivate = False,
    cooperative: Cooperative = False,
    target_ms: TargetMs = None,
    yield_ms: YieldMs = None,
    largest_step: LargestStep = None,
    page: LivePageFile = None,
    server: Server = None,
    server_key_file: ServerKeyFile = None,
) -> None:
    """One answer, streamed; speed and device on stderr."""
    given = dict(locals())
    from pumice.cli.run_line import run_line

    raise typer.Exit(run_line(**given))


def chat(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A path, hf:owner/repo, pypi:package==version/path, or an alias.")
    ],
    device: Device = "auto",
    context: Context = 2048,
    cache_dtype: CacheDType = "f32",
    precision: Precision = None,
    fast: Fast = False,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    typical_p: TypicalP = None,
    repeat_penalty: RepeatPenalty = None,
    presence_penalty: PresencePenalty = None,
    frequency_penalty: FrequencyPenalty = None,
    logit_bias: LogitBias = None,
    forbid: Forbid = None,
    seed: Seed = None,
    stop: Stop = None,
    system: System = None,
    lora: Lora = None,
    lora_scale: LoraScale = 1.0,
    receipt: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write a signed receipt of each answer: talk.json stands for talk-1.json, talk-2.json and so on.",
            show_default="none",
        ),
    ] = None,
    receipt_private: ReceiptPrivate = False,
    tools: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE.py|builtin",
            help="Functions that the model may call: those of a Python file, or the built-in ones; may be repeated.",
            show_default="none",
        ),
    ] = None,
    skill: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A skill that the model may use, of `pumice skill list`; may be repeated.",
            show_default="none",
        ),
    ] = None,
    root: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Let the model list and read files below this folder.", show_default="none"),
    ] = None,
    mcp: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COMMAND|URL",
            help="An MCP server whose tools the model may call, each after a question; may be repeated.",
            show_default="none",
        ),
    ] = None,
    fetch: Annotated[bool, typer.Option("--fetch", help="Let the model fetch pages of the web; each is asked for.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Run tools without asking, also those that write or run something.")] = False,
    steps: Annotated[int, typer.Option(min=0, help="The most rounds of calls for an answer.")] = 8,
    server: Server = None,
    server_key_file: ServerKeyFile = None,
) -> None:
    """A conversation in the terminal; Ctrl-C stops an answer, Ctrl-D ends."""
    from pumice.cli.agent_chat import ChatTools
    from pumice.cli.chat import run as talk
    from pumice.cli.generate import bias_of
    from pumice.cli.receipt_option import receipt_file

    options: dict[str, Any] = {"max_tokens": max_tokens, "temperature": temperature, "top_k": top_k, "top_p": top_p}
    options |= {"min_p": min_p, "typical_p": typical_p, "repeat_penalty": repeat_penalty, "presence_penalty": presence_penalty}
    options |= {"frequency_penalty": frequency_penalty, "logit_bias": bias_of(logit_bias), "forbid": forbid}
    options |= {"seed": seed, "stop": stop, "system": system}
    if server is not None:
        from pumice.cli.remote import RemoteModel, refuse_local

        refuse_local(
            device=device != "auto", lora=lora, receipt=receipt, tools=tools, skill=skill, root=root, fetch=fetch, mcp=mcp
        )
        raise typer.Exit(RemoteModel(server, model, server_key_file).chat(options))
    load = {"device": device, "context": context, "cache_dtype": cache_dtype, "lora": lora, "lora_scale": lora_scale}
    load["precision"] = precision_of(precision, fast)
    receipts = receipt_file(receipt, private=receipt_private, several=True)
    with_tools = ChatTools(tools or [], skill or [], root, mcp or [], fetch=fetch, yes=yes, steps=steps)
    raise typer.Exit(talk(model, load_options=load, options=options, receipts=receipts, tools=with_tools))

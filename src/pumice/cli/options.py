"""Options that several commands share: one name, one meaning, one line of help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pumice.cli.precision_option import precision_of as precision_of

Device = Annotated[str, typer.Option(help="auto, host, webgpu[:N|:NAME] or vulkan[:N|:NAME].")]
Context = Annotated[int, typer.Option(min=1, help="The most tokens a conversation may have.")]
CacheDType = Annotated[str, typer.Option("--cache-dtype", help="How keys and values are kept: f32, f16 or q8.")]
Precision = Annotated[
    str | None,
    typer.Option(
        metavar="exact|fast|f16|bf16",
        help="Activations as they are; fast: rounded to 8 bits where weights are quantised, which processors multiply faster; "
        "f16, bf16: rounded to these where the GPU has matrix units for them.",
        show_default="exact, or as a bundle says",
    ),
]
Fast = Annotated[bool, typer.Option("--fast", help="Short for --precision fast.")]
MaxTokens = Annotated[
    int | None,
    typer.Option(help="The most tokens of the answer, as far as the context has room.", show_default="the model's own, else 512"),
]
Temperature = Annotated[float | None, typer.Option(help="0 is greedy.", show_default="the model's own, else 0.8")]
TopK = Annotated[
    int | None,
    typer.Option(help="Only the K most likely tokens; 0 switches it off.", show_default="the model's own, else 40"),
]
TopP = Annotated[
    float | None,
    typer.Option(help="Only the most likely tokens that together reach P.", show_default="the model's own, else 0.95"),
]
MinP = Annotated[
    float | None,
    typer.Option(help="Only tokens at least P times as likely as the best.", show_default="the model's own, else 0.05"),
]
RepeatPenalty = Annotated[
    float | None,
    typer.Option(help="Makes tokens that were used less likely; 1 changes nothing.", show_default="the model's own, else 1.0"),
]
TypicalP = Annotated[
    float | None,
    typer.Option(
        help="Only tokens about as surprising as expected, that together reach P.", show_default="the model's own, else 1.0"
    ),
]
PresencePenalty = Annotated[
    float | None, typer.Option(help="Subtracted from the logits of tokens that the answer has, -2 to 2.", show_default="0.0")
]
FrequencyPenalty = Annotated[
    float | None, typer.Option(help="The same for each time that the answer has the token.", show_default="0.0")
]
LogitBias = Annotated[
    list[str] | None,
    typer.Option(metavar="ID=VALUE", help="Added to a token's logit, -100 to 100 or -inf; may be repeated.", show_default="none"),
]
Forbid = Annotated[
    list[str] | None,
    typer.Option(metavar="TOKEN", help="A token, by text, that is never used; may be repeated.", show_default="none"),
]
Beams = Annotated[
    int | None, typer.Option(help="Beam search: this many answers go on together, 1 to 16; without sampling.", show_default="1")
]
LengthPenalty = Annotated[
    float | None,
    typer.Option(help="Beams are ranked by log-probability / length ** P: above 0 favours long answers.", show_default="1.0"),
]
Seed = Annotated[int | None, typer.Option(help="The same seed gives the same answer.", show_default="random")]
Stop = Annotated[list[str] | None, typer.Option(help="A text that ends the answer; may be repeated.", show_default="none")]
System = Annotated[str | None, typer.Option(help="The system text.", show_default="the chat template's own")]
Cache = Annotated[
    bool,
    typer.Option("--cache", help="Give the answer of an earlier run again, of --temperature 0 or a --seed; new ones are kept."),
]
Server = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Let a running `pumice serve` answer; MODEL is a name there.", show_default="none"),
]
ServerKeyFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="The file with the API key for --server.", show_default="none")
]
Lora = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="A LoRA adapter in PEFT's format, applied beside the weights.", show_default="none"),
]
LoraScale = Annotated[float, typer.Option(help="How strongly the adapter works: 1 as in training, 0 not at all.")]
Packs = Annotated[
    list[str] | None,
    typer.Option(
        "--pack",
        metavar="NAME|FILE",
        help="Use the kernels of this pack wherever they fit; may be repeated.",
        show_default="enabled packs, where faster",
    ),
]
TextFile = Annotated[
    Path | None, typer.Option("-f", "--file", help="A file with one text a line, blank lines skipped; - is standard input.")
]
Receipt = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write a signed receipt of what ran; `pumice receipt` reads it.", show_default="none"),
]
Cooperative = Annotated[
    bool, typer.Option("--cooperative", help="Run in short ranges, so that other work on the device gets its turn in between.")
]
TargetMs = Annotated[
    float | None, typer.Option("--target-ms", metavar="MS", help="How long a range takes, of --cooperative.", show_default="4")
]
YieldMs = Annotated[
    float | None, typer.Option("--yield-ms", metavar="MS", help="How long to wait after each range.", show_default="0")
]
LargestStep = Annotated[
    float | None,
    typer.Option("--largest-step", metavar="FLOPS", help="The most work of one dispatch, such as 1e9.", show_default="any"),
]
LivePageFile = Annotated[
    Path | None,
    typer.Option("--page", metavar="FILE", help="Keep a page about it up to date, of --cooperative.", show_default="none"),
]
ReceiptPrivate = Annotated[
    bool, typer.Option("--receipt-private", help="The receipt holds neither texts nor tokens, only hashes that nobody can guess.")
]

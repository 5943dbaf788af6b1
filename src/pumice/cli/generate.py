"""`pumice run`: one answer, streamed to stdout, speed and device on stderr."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from pumice.cli import INTERRUPTED
from pumice.cli.cooperative_option import NOT_SHARED, SharingOptions
from pumice.cli.fast_notice import fast_notice
from pumice.cli.pull import progress_bar
from pumice.cli.receipt_option import ReceiptFile
from pumice.cli.text_input import whole_prompt
from pumice.core.collection import keeping_all


def device_line(info: Mapping[str, Any], precision: str = "exact") -> str:
    """A device as the command line names it, and the precision if it is not the usual one.

    >>> device_line({"name": "host", "target": "host", "software": True}, "fast")
    'host, precision fast'
    """
    name = f"{info['name']} (software)" if info["software"] and info["target"] != "host" else str(info["name"])
    return name if precision == "exact" else f"{name}, precision {precision}"


def speed_line(answer: Any, device: Mapping[str, Any]) -> str:
    """Tokens, speeds and device of an answer, for stderr."""
    t, u = answer.timings, answer.usage
    if answer.cached:
        return f"{u['completion_tokens']} tokens of an earlier run, from the cache; loaded in {t['load_s']:.2f} s"
    drafts = f"{t['accepted']} of {t['drafted']} drafts accepted, " if "drafted" in t else ""
    # The answers of a beam search come at its end: how long the prompt alone took is not known.
    prefill = f" at {t['prefill_tok_s']:.0f}/s" if t["prefill_tok_s"] else ""
    return (
        f"{u['completion_tokens']} tokens at {t['decode_tok_s']:.1f}/s, "
        f"prompt {u['prompt_tokens']}{prefill}, first after {t['first_token_s']:.2f} s, "
        f"{drafts}loaded in {t['load_s']:.2f} s, on {device_line(device, answer.precision)}"
    )


@contextmanager
def interruptible() -> Iterator[Any]:
    """A function that says whether Ctrl-C was pressed meanwhile; the answer stops, the program goes on."""
    pressed = False

    def note(*_: Any) -> None:
        nonlocal pressed
        pressed = True

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)


def bias_of(given: Sequence[str] | None) -> dict[str, float] | None:
    """The option --logit-bias as a mapping.

    >>> bias_of(["15=-inf", "7=2.5"])
    {'15': -inf, '7': 2.5}
    >>> bias_of(["7"])
    Traceback (most recent call last):
    pumice.errors.InputError: [input] --logit-bias is '7'
      hint: write ID=VALUE, such as 42=-100
    """
    from pumice.errors import InputError

    found = {}
    for entry in given or ():
        token, _, value = entry.partition("=")
        try:
            found[token] = float(value)
        except ValueError:
            raise InputError(f"--logit-bias is {entry!r}", hint="write ID=VALUE, such as 42=-100", name="logit_bias") from None
    return found or None


def disk_cache(**unfit: Any) -> Any:
    """The cache of --cache, which later processes find. Options that are about a run do not go with answers that need none.

    >>> disk_cache(receipt=Path("proof.json"), profile=None)
    Traceback (most recent call last):
    pumice.errors.InputError: [input] --receipt and --cache do not go together: nothing runs for an answer that is in the cache
      hint: leave one of them out
    """
    from pumice.errors import InputError
    from pumice.llm.response_cache import ResponseCache

    for name, value in unfit.items():
        if value is not None:
            message = f"--{name} and --cache do not go together: nothing runs for an answer that is in the cache"
            raise InputError(message, hint="leave one of them out", name="cache")
    return ResponseCache(disk=True)


def check_before_loading(options: Mapping[str, Any]) -> None:
    """Refuses options that no model could follow, before any time is spent on one."""
    from pumice.llm.requests import check_options

    check_options(options)


def cut_line(answer: Any, context: int) -> str:
    """The mark of an answer that its limit ended, for stderr."""
    count, total = answer.usage["completion_tokens"], answer.usage["completion_tokens"] + answer.usage["prompt_tokens"]
    larger = "--context" if total >= context else "--max-tokens"
    return f"[cut after {count} tokens; a larger {larger} lets it go on]"


def logprob_lines(logprobs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The tokens of an answer with their log-probabilities and the alternatives, a line each.

    >>> top = [{"token": " a", "id": 5, "logprob": -0.25}, {"token": " b", "id": 6, "logprob": -2.0}]
    >>> list(logprob_lines([{**top[0], "top": top}]))
    ["  -0.250  ' a'            ' a' -0.250  ' b' -2.000"]
    """
    for entry in logprobs:
        others = "  ".join(f"{t['token']!r} {t['logprob']:.3f}" for t in entry["top"])
        yield f"{entry['logprob']:8.3f}  {entry['token']!r:<14}  {others}".rstrip()


def run(
    model: str,
    prompt: str | None,
    *,
    load_options: Mapping[str, Any],
    as_json: bool,
    options: Mapping[str, Any],
    draft: str | None = None,
    profile: Path | None = None,
    receipts: ReceiptFile | None = None,
    sharing: SharingOptions = NOT_SHARED,
) -> int:
    """Load, answer, report; the exit code. `draft` is "lookup", or the name of a model that drafts."""
    from pumice.llm.load import load

    check_before_loading(options)
    prompt = whole_prompt(prompt, raw=bool(options.get("raw")))
    with ExitStack() as stack:
        with keeping_all(), progress_bar(quiet=as_json) as report:
            ready = {**options, "prompt": prompt}
            loaded = stack.enter_context(load(model, "generate", **load_options, ready_for=ready, progress=report))
            loaded.cooperate(sharing.cooperative)
            drafter: Any = draft
            if draft is not None and draft != "lookup":
                same = {k: load_options[k] for k in ("device", "context", "cache_dtype", "precision")}
                drafter = stack.enter_context(load(draft, "generate", **same, progress=report))
        pressed = stack.enter_context(interruptible())
        info = loaded.describe_device()
        stack.enter_context(sharing.watched(f"{model} on {info['name']}"))

        def show(piece: str) -> None:
            print(piece, end="", flush=True)

        answer = loaded.generate(prompt, on_text=None if as_json else show, cancelled=pressed, draft=drafter, **options)
        if as_json:
            proof = {} if receipts is None else receipts.as_json(answer.receipt)
            print(
                json.dumps(answer_json(answer, info, loaded.info) | packs_json(loaded.packs_used()) | proof | sharing.as_json())
            )
        else:
            print(flush=True)
            if answer.finish_reason == "length":
                print(cut_line(answer, loaded.engine.context), file=sys.stderr)
            for line in logprob_lines(answer.logprobs or ()):
                print(line, file=sys.stderr)
            print(speed_line(answer, info), file=sys.stderr)
            for line in pack_lines(loaded.packs_used()):
                print(line, file=sys.stderr)
            if line := sharing.line():
                print(line, file=sys.stderr)
            if notice := fast_notice(loaded, at_terminal=sys.stderr.isatty()):
                print(notice, file=sys.stderr)
            if receipts is not None:
                print(f"receipt: {receipts.save(answer.receipt)}", file=sys.stderr)
        if profile is not None and not pressed():
            found = loaded.engine.profile()
            found.save_trace(profile)
            print(f"{found}\nthe trace of a token step is in {profile}; ui.perfetto.dev shows it", file=sys.stderr)
        return INTERRUPTED if pressed() else 0


def pack_lines(used: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Which kernels of which packs ran, and what failed of them."""
    by_pack: dict[str, list[str]] = {}
    for entry in used:
        mark = ", INSECURE: nobody's signature was checked" if entry["insecure"] else ""
        by_pack.setdefault(f"{entry['pack']} {entry['version']} ({entry['digest'][:12]}…{mark})", []).append(entry["kernel"])
    for pack, kernels in by_pack.items():
        yield f"pack {pack}: {', '.join(kernels)}"
    for failure in packs_json(used).get("degraded", ()):
        yield f"degraded {failure['pack']}/{failure['kernel']}: {failure['code']} × {failure['count']}: {failure['message']}"


def packs_json(used: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The same as data; nothing where no pack is in use."""
    if "pumice.packs.degraded" not in sys.modules:  # no pack was loaded
        return {"packs": list(used)} if used else {}
    from pumice.packs.degraded import degraded

    return {"packs": list(used), "degraded": [d.to_dict() for d in degraded()]}


def answer_json(answer: Any, device: Mapping[str, Any], model: Mapping[str, Any]) -> dict[str, Any]:
    """The object that --json prints."""
    out = {
        "text": answer.text,
        "tokens": answer.tokens,
        "finish_reason": answer.finish_reason,
        "usage": answer.usage,
        "timings": {k: round(v, 6) for k, v in answer.timings.items()},
        "seed": answer.seed,
        "sampling": answer.sampling,
        "precision": answer.precision,
        "cached": answer.cached,
        "device": dict(device),
        "model": dict(model),
    }
    if answer.logprobs is not None:
        out["logprobs"] = answer.logprobs
    return out

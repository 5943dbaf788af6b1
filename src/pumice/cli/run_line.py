"""What `pumice run` does with its options, without typer: a start by a line that is read without it does not import it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pumice.cli.precision_option import precision_of

# Options that are those of `generate`.
_GENERATE = (
    "max_tokens", "temperature", "top_k", "top_p", "min_p", "typical_p", "repeat_penalty", "presence_penalty",
    "frequency_penalty", "forbid", "seed", "stop", "system", "beams", "length_penalty", "raw", "logprobs", "strict",
)  # fmt: skip


def run_line(**given: Any) -> int:
    """The exit code; `given` has a value for each parameter of the command."""
    from pumice.cli.generate import bias_of
    from pumice.cli.text_input import read_text

    options: dict[str, Any] = {name: given[name] for name in _GENERATE}
    schema = given["json_schema"]
    options |= {"logit_bias": bias_of(given["logit_bias"]), "json_schema": schema and read_text(schema)}
    return _at_server(given, options) if given["server"] is not None else _here(given, options)


def _at_server(given: Mapping[str, Any], options: dict[str, Any]) -> int:
    from pumice.cli.remote import RemoteModel, refuse_local

    local = {name: given[name] for name in ("lora", "draft", "profile", "pack", "receipt", "page", "cache")}
    refuse_local(device=given["device"] != "auto", **local)
    remote = RemoteModel(given["server"], given["model"], given["server_key_file"])
    return remote.run(given["prompt"], options, as_json=given["json"])


def _here(given: Mapping[str, Any], options: dict[str, Any]) -> int:
    from pumice.cli.cooperative_option import sharing
    from pumice.cli.generate import disk_cache, run
    from pumice.cli.receipt_option import receipt_file

    load: dict[str, Any] = {
        name: given[name] for name in ("device", "context", "cache_dtype", "lora", "lora_scale", "largest_step")
    }
    load |= {"packs": given["pack"], "precision": precision_of(given["precision"], given["fast"])}
    shared = sharing(given["cooperative"], given["target_ms"], given["yield_ms"], given["page"])
    more: dict[str, Any] = {"draft": given["draft"], "profile": given["profile"], "sharing": shared}
    more["receipts"] = receipt_file(given["receipt"], private=given["receipt_private"])
    if given["cache"]:
        options["cache"] = disk_cache(receipt=given["receipt"], profile=given["profile"])
    return run(given["model"], given["prompt"], load_options=load, as_json=given["json"], options=options, **more)

"""Files of chats: messages, options, keys and values of a conversation, and which model it was with."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pumice.core.whole_file import replacing
from pumice.errors import CheckpointMismatch, FormatError, InputError
from pumice.formats import open_weights
from pumice.formats.safetensors_writer import write_safetensors

Array = np.ndarray[Any, Any]

FORMAT, VERSION = "pumice-chat", "1"
# Places of a weight file that tell it from others, and the bytes that are read at each.
_SAMPLES, _SAMPLE_BYTES = 64, 64
_DAMAGED = "save the chat again with chat.save(file)"


class SavedChat(NamedTuple):
    """What a file of a chat has: `tokens` are those whose keys and values, in that `precision`, are in `cache`."""

    history: list[dict[str, Any]]
    options: dict[str, Any]
    tokens: list[int]
    cache: dict[str, Array]
    precision: str = "exact"


def model_identity(info: Mapping[str, Any], config: object) -> str:
    """A digest of a model's config, weight files and adapter; of the files some bytes all over them, and their sizes."""
    digest = hashlib.sha256(repr((config, info.get("lora_scale"))).encode())
    for name in ("path", "lora"):
        for path in _weight_files(Path(info[name])) if info.get(name) else ():
            size = path.stat().st_size
            digest.update(size.to_bytes(8, "little"))
            with path.open("rb") as file:
                for k in range(_SAMPLES):
                    file.seek(k * size // _SAMPLES)
                    digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def _weight_files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
    else:
        yield from sorted(p for p in path.glob("*") if p.suffix in (".safetensors", ".gguf") and p.is_file())


def save_chat(path: str | os.PathLike[str], chat: SavedChat, identity: str) -> None:
    """Write a chat; readers of `path` see the old file or the whole new one."""
    target = Path(path)
    for name, value in chat.options.items():
        try:
            json.dumps(value)
        except TypeError:
            raise InputError(
                f"the option {name} of this chat cannot be saved", hint="give it with each answer", name=name
            ) from None
    text = json.dumps({"history": chat.history, "options": chat.options})
    metadata = {"format": FORMAT, "version": VERSION, "model": identity, "chat": text, "precision": chat.precision}
    try:
        with replacing(target, durable=True) as file:
            write_safetensors(file, {"tokens": np.array(chat.tokens, np.int32), **chat.cache}, metadata)
    except OSError as e:
        raise InputError(
            f"the chat cannot be written to {target}: {e.strerror or e}", hint="check the folder and its space"
        ) from e


def read_chat(path: str | os.PathLike[str], identity: str) -> SavedChat:
    """The chat in a file, if it was with the model of this identity."""
    with open_weights(Path(path)) as file:
        found = file.metadata
        if found.get("format") != FORMAT or "tokens" not in file.tensors:
            raise FormatError(f"{path} is no file of a chat", hint="chat.save(file) makes one", path=str(path))
        if found.get("version") != VERSION:
            raise FormatError(f"{path} has version {found.get('version')!r}, this reads {VERSION}", hint=_DAMAGED, path=str(path))
        if found.get("model") != identity:
            raise CheckpointMismatch(
                f"the chat in {path} was with another model", hint="load that one, with the same adapter", path=str(path)
            )
        tokens = [int(t) for t in file.array("tokens").reshape(-1)]
        try:
            said = json.loads(str(found["chat"]))
            history, options = said["history"], said["options"]
        except (KeyError, TypeError, ValueError):
            history = options = None
        # Copies: the file is closed.
        cache = {name: np.array(file.array(name)) for name in file.tensors if name != "tokens"}
        if not isinstance(history, list) or not isinstance(options, dict):
            raise FormatError(f"{path} has no messages that can be read", hint=_DAMAGED, path=str(path))
    return SavedChat(history, options, tokens, cache, str(found.get("precision", "exact")))

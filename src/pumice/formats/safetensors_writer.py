"""The safetensors writer: named arrays to one open file, as every other library reads them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pumice.errors import DTypeError, InputError
from pumice.formats.safetensors import MAX_DIMS, MAX_HEADER, MAX_NAME
from pumice.formats.weights import MAX_TENSORS, shown

_NAMES = {
    "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int32": "I32", "uint32": "U32", "int8": "I8", "uint8": "U8",
    "bool": "BOOL",
}  # fmt: skip


class Sink(Protocol):
    """What bytes are written to: an open file, or what counts or hashes on the way to one."""

    def write(self, data: Any, /) -> Any: ...


def write_safetensors(file: Sink, tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str] | None = None) -> None:
    """Write arrays to an open file, in their order; equal arrays give equal bytes.

    Where and how the file comes into place is the caller's business.

    >>> import io
    >>> file = io.BytesIO()
    >>> write_safetensors(file, {"w": np.zeros((2, 2), np.float32)}, {"format": "pt"})
    >>> len(file.getvalue())
    112
    """
    header = _header(tensors, metadata or {})
    file.write(len(header).to_bytes(8, "little") + header)
    for array in tensors.values():
        # Little endian is what every machine has that this runs on; bf16 has no buffer of its own, bytes always do.
        file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def safetensors_bytes(tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str] | None = None) -> int:
    """The size that the file will have.

    >>> safetensors_bytes({"w": np.zeros((2, 2), np.float32)}, {"format": "pt"})
    112
    """
    return 8 + len(_header(tensors, metadata or {})) + sum(array.nbytes for array in tensors.values())


def _header(tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> bytes:
    entries: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    if len(tensors) > MAX_TENSORS:
        raise InputError(f"{len(tensors)} tensors in one file, readers allow {MAX_TENSORS}")
    position = 0
    for name, array in tensors.items():
        if array.dtype.name not in _NAMES:
            raise DTypeError(f"safetensors has no type for {array.dtype}, the dtype of {shown(name)}", name=name)
        if not 0 < len(name) <= MAX_NAME or name == "__metadata__" or array.ndim > MAX_DIMS:
            raise InputError(f"the tensor {shown(name)} of {array.ndim} dims cannot be stored under this name", name=name)
        end = position + array.nbytes
        entries[name] = {"dtype": _NAMES[array.dtype.name], "shape": list(array.shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    # The tensors begin at a multiple of 8, as the format's own writer has it.
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER:
        raise InputError(f"a header of {len(text)} bytes, readers allow {MAX_HEADER}")
    return text

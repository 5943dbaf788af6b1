"""Artefacts of a run: inputs and outputs as bytes that everybody gets from the same value, and their hashes."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pumice.receipts.errors import ReceiptError

if TYPE_CHECKING:
    import numpy as np

TEXT_TYPE = "text/plain; charset=utf-8"
JSON_TYPE = "application/json"
NPY_TYPE = "application/x-npy"
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))


class Artifact:
    """An input or output of a run. Two values are the same artefact if and only if their canonical bytes are.

    Texts, ids and JSON values are immutable or small, so that their bytes are made when they are first needed; arrays can
    change later and are copied at once.

    >>> prompt = Artifact.text("prompt", "Hi")
    >>> prompt.content, prompt.shape, prompt.sha256[:8]
    (b'Hi', (2,), '3639efcd')
    """

    def __init__(self, role: str, media_type: str, shape: Sequence[int], content: bytes | Callable[[], bytes]) -> None:
        self.role, self.media_type = role, media_type
        # Documents of routes have no empty shapes: a scalar is an array of one.
        self.shape = tuple(map(int, shape)) or (1,)
        self._content = content
        self._sha256 = ""

    @staticmethod
    def text(role: str, text: str) -> Artifact:
        """Text as UTF-8; its shape is the number of bytes."""
        try:
            content = text.encode()
        except UnicodeEncodeError:
            raise ReceiptError(f"the text of {role} holds half of a surrogate pair, which UTF-8 has not", role=role) from None
        return Artifact(role, TEXT_TYPE, (len(content),), content)

    @staticmethod
    def ids(role: str, ids: Sequence[int]) -> Artifact:
        """Token ids as a JSON array without spaces; the shape is their number.

        >>> Artifact.ids("tokens", [1, 2]).content
        b'[1,2]'
        """
        kept = tuple(map(int, ids))
        # Python writes whole numbers as JSON does, in half the time.
        return Artifact(role, JSON_TYPE, (len(kept),), lambda: repr(list(kept)).replace(" ", "").encode())

    @staticmethod
    def json(role: str, value: Any) -> Artifact:
        """Any JSON value in its canonical form; the shape is its length, of one that is no list 1.

        >>> Artifact.json("request.stop", ["\\n", "é"]).content.decode()
        '["\\\\n","é"]'
        """
        content = json_bytes(value)
        return Artifact(role, JSON_TYPE, (len(value) if isinstance(value, (list, tuple)) else 1,), content)

    @staticmethod
    def array(role: str, array: np.ndarray[Any, Any]) -> Artifact:
        """The bytes of the array's `.npy` file (version 1.0, C order, little-endian), so that `sha256sum` of one agrees.

        >>> import numpy as np
        >>> found = Artifact.array("x", np.eye(2, dtype=np.float32))
        >>> found.shape, np.load(io.BytesIO(found.content)).tolist()
        ((2, 2), [[1.0, 0.0], [0.0, 1.0]])
        """
        return Artifact(role, NPY_TYPE, array.shape, npy_bytes(array))

    @property
    def content(self) -> bytes:
        """The canonical bytes."""
        if not isinstance(self._content, bytes):
            self._content = self._content()
        return self._content

    @property
    def sha256(self) -> str:
        """The hash of the canonical bytes, in hex."""
        if not self._sha256:
            self._sha256 = hashlib.sha256(self.content).hexdigest()
        return self._sha256

    def __repr__(self) -> str:
        return f"<artefact {self.role}: {self.media_type}, shape {list(self.shape)}>"


def npy_bytes(array: np.ndarray[Any, Any]) -> bytes:
    """An array as a `.npy` file of one form: version 1.0, C order, little-endian."""
    import numpy as np

    ordered = np.ascontiguousarray(array).reshape(array.shape)
    if ordered.dtype.byteorder == ">" or (ordered.dtype.byteorder == "=" and not np.little_endian):
        ordered = ordered.astype(ordered.dtype.newbyteorder("<"))
    file = io.BytesIO()
    np.lib.format.write_array(file, ordered, version=(1, 0), allow_pickle=False)
    return file.getvalue()


def base64_bytes(text: object) -> bytes:
    """The bytes of a base64 text in its one form; ValueError says what it is not.

    >>> base64_bytes("aGk="), base64_bytes("")
    (b'hi', b'')
    >>> base64_bytes("aGl=")
    Traceback (most recent call last):
    ValueError: is not plain base64: bits or characters that mean nothing
    """
    if not isinstance(text, str):
        raise ValueError("is not a text")
    try:
        found = base64.b64decode(text, validate=True)
    except ValueError:
        raise ValueError("is not base64") from None
    if base64.b64encode(found).decode() != text:
        raise ValueError("is not plain base64: bits or characters that mean nothing")
    return found


def array_of(content: bytes) -> np.ndarray[Any, Any]:
    """The array in the bytes of a `.npy` file of that form; a ValueError where it is none. It takes no more memory than they do.

    >>> import numpy as np
    >>> array_of(npy_bytes(np.float32([1, 2]))).tolist()
    [1.0, 2.0]
    """
    import numpy as np

    file = io.BytesIO(content)
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError("it is not of version 1.0")
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
    data = content[file.tell() :]
    if fortran or dtype.hasobject or min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != len(data):
        raise ValueError("its header does not fit its bytes")
    return np.frombuffer(data, dtype).reshape(shape)


def json_value(content: bytes) -> Any:
    """The JSON value in some bytes; a ValueError where there is none.

    >>> json_value(b"[1,2]")
    [1, 2]
    """
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("it nests too deep") from None


def json_bytes(value: Any) -> bytes:
    """JSON in its one form: keys sorted, no spaces, UTF-8, no NaN.

    >>> json_bytes({"b": 1, "a": [True, None, 0.5]})
    b'{"a":[true,null,0.5],"b":1}'
    """
    try:
        return _ENCODER.encode(value).encode()
    except (TypeError, ValueError) as problem:  # such as NaN, an object of Python, or half of a surrogate pair
        raise ReceiptError(f"a receipt cannot hold this: {problem}", hint="give values of JSON") from None

"""Types of the manifest's fields: texts, names, numbers, paths, hashes and keys, each with the rule that it keeps."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any, TypeVar

from pumice.core.expressions import MAX_LENGTH, ExpressionError, parse
from pumice.packs.errors import InvalidKey
from pumice.packs.extra import missing_extra
from pumice.packs.keys import PublicKey
from pumice.packs.paths import MANIFEST, MAX_PATH, PATH_PATTERN, SIGNATURE, path_problem

try:
    from pydantic import AfterValidator, BaseModel, ConfigDict, PlainValidator, WithJsonSchema

    # What the other files of the manifest need of it, so that this is the one place that says it is missing.
    from pydantic import Field as Field
    from pydantic import ValidationError as ValidationError
    from pydantic import model_validator as model_validator
    from pydantic_core import PydanticCustomError as PydanticCustomError
except ImportError:
    raise missing_extra("pydantic") from None

MAX_RANK = 8
MAX_DIM = 2**31 - 1

_T = TypeVar("_T")
_DIM = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}(\.\.\.)?\Z")
# Words of expressions, which no dim can be called.
RESERVED = frozenset({"and", "or", "not", "min", "max", "ceildiv", "attr", "caps", "param", "True", "False", "None"})


class ManifestPart(BaseModel):
    """A part of the manifest: strict types, no NaN, unknown keys kept."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow", allow_inf_nan=False, hide_input_in_errors=True)


class ClosedPart(ManifestPart):
    """A part of Pumice's extension. Unknown keys are refused: one that is ignored could be a condition that does not hold."""

    model_config = ConfigDict(extra="forbid")


def _printable(text: str) -> str:
    if not text.replace("\n", "").isprintable():
        raise ValueError("has characters that cannot be printed")
    return text


def _one_line(text: str) -> str:
    if not text.isprintable():
        raise ValueError("has characters that cannot be printed in a line")
    return text


def _iso_date(text: str) -> str:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("is no date that exists") from None
    return text


def _safe_path(path: str) -> str:
    if path.casefold() in (MANIFEST, SIGNATURE):
        raise ValueError("names the manifest or its signature")
    if problem := path_problem(path):
        raise ValueError(problem)
    return path


def _expression(text: str) -> str:
    try:
        parse(text)
    except ExpressionError as error:
        raise ValueError(error.message) from None
    return text


def _key(text: str) -> str:
    if text:
        try:
            PublicKey.parse(text)
        except InvalidKey as error:
            raise ValueError(error.message) from None
    return text


def _dim(value: Any) -> int | str:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError("should be a whole number or a name")
    if isinstance(value, int) and not 1 <= value <= MAX_DIM:
        raise ValueError(f"should be from 1 to {MAX_DIM}")
    if isinstance(value, str) and (not _DIM.match(value) or value.removesuffix("...") in RESERVED):
        raise ValueError("should be a name of letters, digits and _, with ... after it where it stands for any number of dims")
    return value


def _one_open_name(shape: tuple[int | str, ...]) -> tuple[int | str, ...]:
    if sum(isinstance(dim, str) and dim.endswith("...") for dim in shape) > 1:
        raise ValueError("has more than one name with ..., so that sizes could be read in several ways")
    return shape


Text = Annotated[str, Field(max_length=2000), AfterValidator(_printable)]
Title = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_one_line)]
Identifier = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")]
PackName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,63}$")]
KernelId = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$")]
Label = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.+-]{0,63}$")]
Version = Annotated[str, Field(pattern=r"^v?[0-9][0-9A-Za-z.+!_-]{0,63}$")]
Email = Annotated[str, Field(pattern=r"^[^\s@]{1,64}@[^\s@]{1,190}$"), AfterValidator(_one_line)]
Date = Annotated[
    str,
    Field(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}(T[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?(Z|[+-][0-9]{2}:[0-9]{2}))?$"),
    AfterValidator(_iso_date),
]
Hash = Annotated[str, Field(pattern=r"^sha256:[0-9A-Fa-f]{64}$")]
FilePath = Annotated[str, Field(pattern=PATH_PATTERN, max_length=MAX_PATH), AfterValidator(_safe_path)]
# Empty in a pack that is not signed yet.
OptionalKeyText = Annotated[str, Field(pattern=r"^(ed25519:([A-Za-z0-9+/]{43}=|[0-9A-Fa-f]{64}))?$"), AfterValidator(_key)]
KeyText = Annotated[str, Field(pattern=r"^ed25519:([A-Za-z0-9+/]{43}=|[0-9A-Fa-f]{64})$"), AfterValidator(_key)]
ExpressionText = Annotated[str, Field(min_length=1, max_length=MAX_LENGTH), AfterValidator(_expression)]
Number = Annotated[float, Field(ge=0)]
Scalar = bool | int | float
# JSON has lists where the models have tuples, which strict types would refuse; what is in them stays strict.
Many = Annotated[tuple[_T, ...], Field(strict=False)]
DimPattern = Annotated[
    int | str,
    PlainValidator(_dim),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1, "maximum": MAX_DIM},
                {"type": "string", "pattern": r"^[A-Za-z_][A-Za-z0-9_]{0,31}(\.\.\.)?$"},
            ]
        }
    ),
]
Shape = Annotated[tuple[DimPattern, ...], Field(strict=False, max_length=MAX_RANK), AfterValidator(_one_open_name)]

"""Bodies of requests: read into pydantic models that refuse what they do not know; errors name the field and not its value."""

from __future__ import annotations

import re
from collections.abc import Container
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from starlette.requests import Request as HttpRequest

from pumice.serve.api_errors import ApiError

B = TypeVar("B", bound="Body")

ModelName = Annotated[str, StringConstraints(min_length=1, max_length=256)]
Text = Annotated[str, StringConstraints(max_length=16 << 20)]
StopText = Annotated[str, StringConstraints(min_length=1, max_length=1000)]
Stops = StopText | Annotated[list[StopText], Field(max_length=16)]
FunctionName = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
TokenId = Annotated[int, Field(ge=0, lt=1 << 31)]
JsonObject = dict[str, Any]


class Body(BaseModel):
    """A JSON object without surprises: no unknown fields, no texts for numbers, no NaN."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, defer_build=True)


# What unions put into the place of an error beside the names of fields.
_NO_FIELD = re.compile(r"^(str|int|float|bool|none|null|(list|dict|literal)\[.*|constrained-.*|function-.*|[A-Z].*)$")


def parse(model: type[B], body: bytes) -> B:
    """A body as a model has it; a 400 that names the field otherwise.

    >>> class Point(Body):
    ...     x: int
    >>> parse(Point, b'{"x": 1}').x
    1
    >>> parse(Point, b'{"x": 1, "y": 2}')
    Traceback (most recent call last):
    pumice.serve.api_errors.ApiError: [api] y is not a parameter of this endpoint
      hint: leave it out
    """
    try:
        return model.model_validate_json(body)
    except ValidationError as e:
        found = e.errors(include_url=False, include_input=False, include_context=False)
    except RecursionError:
        raise ApiError(400, "the body nests too deep", code="invalid_json", hint="send a flatter object") from None
    # Of what a union's members say, the member that has the right type knows best what is wrong.
    first = max(found, key=lambda e: (e["type"] == "extra_forbidden", not e["type"].endswith("_type"), len(e["loc"])))
    raise _as_api_error(first, model.model_fields)


def _as_api_error(error: Any, fields: Container[str]) -> ApiError:
    if error["type"] == "json_invalid":
        return ApiError(400, "the body is no JSON", code="invalid_json", hint=error["msg"])
    param = ".".join(str(part) for part in error["loc"] if not _NO_FIELD.match(str(part))) or "body"
    if error["type"] == "extra_forbidden":
        return ApiError(
            400, f"{param} is not a parameter of this endpoint", code="unknown_parameter", param=param, hint="leave it out"
        )
    if error["type"] == "missing":
        return ApiError(400, f"{param} is missing", code="missing_required_parameter", param=param, hint="it must be given")
    message = str(error["msg"]).removeprefix("Value error, ")
    # What fields say together is about the one that the message begins with.
    if param == "body" and (named := re.split(r"[ :]", message)[0]) in fields:
        return ApiError(400, message, code="invalid_value", param=named)
    return ApiError(400, f"{param}: {message}", code="invalid_value", param=param)


async def read(model: type[B], request: HttpRequest) -> B:
    """The body of a request; what it may be at most is checked while it comes."""
    return parse(model, await request.body())

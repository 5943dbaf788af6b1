"""Errors of the API: what went wrong, the HTTP status it has, and whether the client may try again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pumice.errors import InputError, PumiceError


class ApiError(PumiceError):
    """An error with an HTTP status. `param` names the field of the request; `retry_after` is in seconds.

    >>> error = ApiError(404, "there is no model 'x'", code="model_not_found", param="model")
    >>> error.status, error.reason, error.kind
    (404, 'model_not_found', 'not_found_error')
    """

    code = "api"

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        hint: str = "",
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message, hint=hint, status=status, code=code, param=param)
        self.status, self.reason, self.param, self.retry_after = status, code, param, retry_after

    @property
    def kind(self) -> str:
        """OpenAI's and Anthropic's name for this class of errors."""
        return _KINDS.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")

    @property
    def text(self) -> str:
        """The message with what to do about it."""
        return f"{self.message}; {self.hint}" if self.hint else self.message


_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


def overloaded(message: str, retry_after: float, code: str = "rate_limit_exceeded") -> ApiError:
    """A 429: more was asked for than there is room for, and when to come back.

    >>> overloaded("the queue is full", 2.0).status
    429
    """
    return ApiError(429, message, code=code, hint=f"try again in {retry_after:.0f} s", retry_after=retry_after)


def unavailable(message: str, *, code: str = "model_unavailable", hint: str = "", retry_after: float = 1.0) -> ApiError:
    """A 503: nothing is wrong with the request.

    >>> unavailable("the worker ended").retry_after
    1.0
    """
    return ApiError(503, message, code=code, hint=hint or "try again", retry_after=retry_after)


def as_data(error: BaseException) -> dict[str, Any]:
    """An error as a worker sends it; what is not Pumice's own is reported by its type alone, as its text may hold anything.

    >>> as_data(InputError("top_p is 2", hint="it must be in 0…1", name="top_p"))["fields"]
    {'name': 'top_p'}
    """
    if not isinstance(error, PumiceError):
        return {
            "code": "error",
            "message": f"the worker failed: {type(error).__name__}",
            "hint": "",
            "fields": {},
            "input": False,
        }
    plain = {k: v for k, v in error.fields.items() if isinstance(v, str | int | float | bool | None)}
    return {
        "code": error.code,
        "message": error.message,
        "hint": error.hint,
        "fields": plain,
        "input": isinstance(error, InputError),
    }


# Names of Pumice's options that clients know under another name.
_PARAMS = {"grammar": "response_format", "json_schema": "response_format", "repeat_penalty": "repetition_penalty"}


def from_data(data: Mapping[str, Any]) -> ApiError:
    """What a worker sent, as the API reports it.

    >>> from_data(as_data(InputError("too long", context=64, prompt_tokens=70))).reason
    'context_length_exceeded'
    """
    code, message, hint, fields = data["code"], data["message"], data["hint"], data["fields"]
    if data["input"]:
        if "context" in fields:
            return ApiError(400, message, code="context_length_exceeded", param=fields.get("name", "messages"), hint=hint)
        name = fields.get("name") or fields.get("field")
        param = _PARAMS.get(name, name) if isinstance(name, str) else None
        return ApiError(400, message, code="invalid_value", param=param, hint=hint)
    if code == "deadline":
        return ApiError(504, "the request took longer than it may", code="timeout", hint="ask for fewer tokens")
    if code == "queue-full":
        return overloaded(message, 1.0, "queue_full")
    if code in ("device-lost", "timeout", "out-of-memory", "closed", "no-device"):
        return unavailable(message, code=code.replace("-", "_"), hint=hint)
    return ApiError(500, message, code=code.replace("-", "_"), hint=hint)


def let_go(error: BaseException | None) -> None:
    """Forgets the frames that an error has passed: they hold the request, which would stay until Python looks for cycles."""
    while error is not None:
        error.__traceback__ = None
        error.__context__, error = None, error.__context__

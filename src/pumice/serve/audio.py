"""OpenAI's /v1/audio endpoints. No architecture hears or speaks yet: the model is looked up, and the refusal says what it is."""

from __future__ import annotations

import re
from typing import Annotated, Literal, NoReturn

from pydantic import Field
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from pumice.serve.api import Api
from pumice.serve.api_errors import ApiError
from pumice.serve.bodies import Body, JsonObject, ModelName, Text, read
from pumice.serve.facts import RequestFacts

# All that is needed of a form as long as its sound is for nobody.
_MODEL = re.compile(
    rb'\r\ncontent-disposition: form-data; name="model"\r\n(?:content-[^\r\n]*\r\n)*\r\n([^\r\n]{1,256})\r\n', re.IGNORECASE
)
_TASKS = {"generate": "writes text", "embed": "makes embeddings", "rerank": "ranks texts", "classify": "classifies texts"}


class SpeechRequest(Body):
    """POST /v1/audio/speech."""

    model: ModelName
    input: Text
    voice: str | JsonObject
    instructions: Text | None = None
    response_format: Literal["mp3", "opus", "aac", "flac", "wav", "pcm"] | None = None
    speed: Annotated[float, Field(ge=0.25, le=4)] | None = None
    stream_format: Literal["sse", "audio"] | None = None


def _refuse(api: Api, name: str, wanted: str) -> NoReturn:
    host = api.pool.find(name)
    task = _TASKS.get(str(host.info.get("task")), "does something else")
    raise ApiError(
        400,
        f"{host.spec.name} cannot {wanted}: it {task}",
        code="model_not_supported",
        param="model",
        hint="no model of this server works with sounds",
    )


def form_model(body: bytes) -> str | None:
    """The model that a multipart form names; None where it names none.

    >>> form_model(b'--x\\r\\nContent-Disposition: form-data; name="model"\\r\\n\\r\\ntiny\\r\\n--x--\\r\\n'), form_model(b"{}")
    ('tiny', None)
    """
    found = _MODEL.search(body)
    return None if found is None else found[1].decode("utf-8", "replace")


async def speech(api: Api, request: HttpRequest, facts: RequestFacts) -> Response:
    """The sound of a text, from a model that speaks."""
    asked = await read(SpeechRequest, request)
    _refuse(api, asked.model, "speak")


async def transcriptions(api: Api, request: HttpRequest, facts: RequestFacts) -> Response:
    """The text of a sound, from a model that hears."""
    name = form_model(await request.body())
    if name is None:
        hint = "send a multipart form with model and file"
        raise ApiError(400, "model is missing", code="missing_required_parameter", param="model", hint=hint)
    _refuse(api, name, "transcribe sounds")

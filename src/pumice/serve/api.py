"""Api: what the endpoints share: the models, the settings, and how a request becomes calls of a model's host."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from pumice import __version__
from pumice.serve.answers import AnswerStream
from pumice.serve.api_errors import ApiError, overloaded
from pumice.serve.facts import JsonLog, RequestFacts
from pumice.serve.frames import Frame
from pumice.serve.hosts import Call
from pumice.serve.keys import ApiKey, KeyRing
from pumice.serve.metrics import Metrics
from pumice.serve.pool import ModelPool
from pumice.serve.settings import ServerSettings

FINGERPRINT = f"pumice-{__version__}"


class Api:
    """The state of an API process."""

    def __init__(self, pool: ModelPool, settings: ServerSettings, keys: KeyRing | None, log: JsonLog) -> None:
        self.pool, self.settings, self.keys, self.log = pool, settings, keys, log
        self.metrics = Metrics()
        self.started = int(time.time())
        self.draining = False
        # What the bodies of open requests take, but for small ones.
        self._bodies = 0

    def hold(self, count: int) -> None:
        """So many bytes more of a body are in memory, or fewer; a 429 where all of them would take more than there may be."""
        most = max(self.settings.all_bodies_bytes, self.settings.body_bytes)
        if count > 0 and self._bodies + count > most:
            raise overloaded(f"other requests take {self._bodies >> 20} MiB already", 1.0, "bodies_full")
        self._bodies += count

    def submit(self, op: str, model: str, payload: Frame, facts: RequestFacts, *, units: int = 1) -> Call:
        """Let a request wait for a model."""
        host = self.pool.find(model)
        facts.model = host.spec.name
        payload = {"request": facts.id, **payload}
        size = len(json.dumps(payload))
        seconds = self.settings.request_seconds
        return host.submit(op, payload, client=facts.key or "", units=units, size=size, seconds=seconds)

    async def generate(
        self,
        model: str,
        prompts: Sequence[Frame],
        facts: RequestFacts,
        *,
        n: int = 1,
        options: Frame,
        limit: int | None,
        tools: set[str] | None = None,
    ) -> AnswerStream:
        """The answers to some prompts, once the model has taken all of them.

        `limit` are the most tokens of an answer as the client says: a request that the context has no room for is refused.
        """
        most = self.settings.most_tokens
        if n > self.settings.most_choices:
            hint = f"this server gives at most {self.settings.most_choices}"
            raise ApiError(400, f"n is {n}", code="invalid_value", param="n", hint=hint)
        if limit is not None and most is not None and limit > most:
            hint = f"this server gives at most {most} tokens"
            raise ApiError(400, f"{limit} tokens are more than it gives", code="invalid_value", param="max_tokens", hint=hint)
        given = options if limit is None else {**options, "max_tokens": limit}
        extra = {"n": n, "options": given, "strict": limit is not None, "most_tokens": most}
        calls: list[Call] = []
        try:
            for k, prompt in enumerate(prompts):
                own = {"request": f"{facts.id}-{k}"} if len(prompts) > 1 else {}
                calls.append(self.submit("generate", model, {**prompt, **extra, **own}, facts, units=n))
        except ApiError:
            for call in calls:
                call.cancel()
            raise
        if self.settings.log_text:
            facts.text = {"prompts": [p.get("messages") or p.get("text") for p in prompts]}
        stream = AnswerStream(calls, n=n, tools=tools, facts=facts)
        await stream.started()
        return stream

    async def events(self, call: Call, facts: RequestFacts) -> AsyncIterator[Frame]:
        """The events of a call that generates nothing."""
        async for found in call:
            if "prompt_tokens" in found:
                facts.prompt_tokens = found["prompt_tokens"]
            yield found

    def spend(self, key: ApiKey | None, facts: RequestFacts) -> None:
        """Count the tokens of a request for its key."""
        if self.keys is not None and key is not None:
            self.keys.spend(key, facts.prompt_tokens + facts.completion_tokens)


Handler = Callable[[Api, Any, RequestFacts], Any]

"""ModelPool: the models of a server by name; which are loaded, and which must go when another needs the room."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from pumice.serve.api_errors import ApiError, unavailable
from pumice.serve.hosts import ModelHost
from pumice.serve.settings import HostSettings, PoolSettings
from pumice.serve.spec import ModelSpec, check_names

_SECONDS_BETWEEN_LOOKS = 0.1
_SECONDS_BETWEEN_CHECKS = 1.0


class ModelPool:
    """The hosts of all models. The least recently used one that is idle is unloaded when room is needed."""

    def __init__(
        self,
        specs: Sequence[ModelSpec],
        models: HostSettings,
        settings: PoolSettings,
        notice: Callable[..., None] | None = None,
    ) -> None:
        check_names(specs)
        self.settings = settings
        self.hosts = {spec.name: ModelHost(spec, models, self._make_room, notice) for spec in specs}
        self._admitting = asyncio.Lock()
        self._watch: asyncio.Task[None] | None = None

    def find(self, name: str) -> ModelHost:
        """The host of a model; names are only ever compared with those that the server was started with."""
        # Clients of ollama append this tag.
        host = self.hosts.get(name) or self.hosts.get(name.removesuffix(":latest"))
        if host is None:
            shown = name if len(name) <= 80 else f"{name[:80]}…"
            raise ApiError(
                404,
                f"there is no model {shown!r}",
                code="model_not_found",
                param="model",
                hint=f"this server has {', '.join(sorted(self.hosts))}",
            )
        return host

    def start(self) -> None:
        """Load what is to be there from the beginning, and look after models that are not used."""
        hosts = list(self.hosts.values())
        if self.settings.preload:
            for host in hosts[: self.settings.loaded]:
                host.want()
        if self.settings.idle_seconds is not None or self.settings.memory is not None:
            self._watch = asyncio.get_running_loop().create_task(self._look_after())

    @property
    def ready(self) -> bool:
        """Whether every model that should be loaded is: those that were preloaded, or that a request wants."""
        hosts = list(self.hosts.values())
        if any(h.state in ("loading", "restarting") for h in hosts):
            return False
        if not self.settings.preload:
            return any(h.state != "failed" for h in hosts)
        return any(h.state == "ready" for h in hosts)

    async def _make_room(self, host: ModelHost) -> None:
        """Before a model is loaded: unloads others until there is room for it."""
        until = time.monotonic() + host.settings.load_seconds
        async with self._admitting:
            while not self._has_room(host):
                idle = [h for h in self._loaded(host) if h.idle and h.state == "ready"]
                if idle:
                    await min(idle, key=lambda h: h.used).unload()
                elif time.monotonic() > until:
                    raise unavailable(f"there is no room for {host.spec.name}: all other models are in use")
                else:
                    await asyncio.sleep(_SECONDS_BETWEEN_LOOKS)

    def _loaded(self, but: ModelHost) -> list[ModelHost]:
        return [h for h in self.hosts.values() if h is not but and h.worker is not None]

    def _has_room(self, host: ModelHost) -> bool:
        others, settings = self._loaded(host), self.settings
        if settings.loaded is not None and len(others) >= settings.loaded:
            return False
        if settings.memory is None or not others:
            return True
        # What it took the last time that it was loaded; nobody knows before.
        return sum(h.memory for h in others) + host.memory < settings.memory

    async def _look_after(self) -> None:
        """Unloads what nobody uses, and what takes more than there may be: how much that is shows once a model runs."""
        seconds, most = self.settings.idle_seconds, self.settings.memory
        while True:
            await asyncio.sleep(_SECONDS_BETWEEN_CHECKS if seconds is None else min(seconds / 4, _SECONDS_BETWEEN_CHECKS))
            for host in self.hosts.values():
                if seconds is not None and host.state == "ready" and host.idle and time.monotonic() - host.used > seconds:
                    await host.unload()
            async with self._admitting:
                loaded = [h for h in self.hosts.values() if h.worker is not None]
                if most is not None and len(loaded) > 1 and sum(h.memory for h in loaded) > most:
                    idle = [h for h in loaded if h.idle and h.state == "ready"]
                    if idle:
                        await min(idle, key=lambda h: h.used).unload()

    async def close(self) -> None:
        """End all workers."""
        if self._watch is not None:
            self._watch.cancel()
        await asyncio.gather(*(h.close() for h in self.hosts.values()))

"""Connections of strangers: how many there may be, how long one may say nothing, and TLS, whose handshake says nothing yet."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any, ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol

from pumice.errors import InputError


def tls_context(certificate: str | None, private_key: str | None) -> ssl.SSLContext | None:
    """What a server proves its name with; None without files."""
    if (certificate is None) != (private_key is None):
        raise InputError("TLS needs both a certificate and its private key", hint="give --tls-cert and --tls-key")
    if certificate is None:
        return None
    made = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        # Without a password here the library would ask for one on the terminal.
        made.load_cert_chain(certificate, private_key, password="")
    except (OSError, ValueError) as e:
        reason = e.strerror if isinstance(e, OSError) and not isinstance(e, ssl.SSLError) else "they do not fit together"
        raise InputError(
            f"TLS cannot be set up with {certificate} and {private_key}: {reason}",
            hint="give a certificate and its private key, both in PEM form, the key without a password",
            name="tls_cert",
        ) from None
    return made


class GuardedProtocol(H11Protocol):
    """HTTP/1.1 for many strangers: a connection that sends no request goes after a while, or when others need its place."""

    most_connections = 1024
    head_seconds = 15.0
    tls: ClassVar[ssl.SSLContext | None] = None
    # Those that count, the oldest first. uvicorn's own set has connections until they are lost, which is after a whole crowd
    # was accepted.
    counted: ClassVar[dict[GuardedProtocol, None]]

    @classmethod
    def limited(cls, connections: int, head_seconds: float, tls: ssl.SSLContext | None = None) -> type[GuardedProtocol]:
        """The protocol of one server."""
        own: dict[str, Any] = {"most_connections": connections, "head_seconds": head_seconds, "tls": tls, "counted": {}}
        return type("Protocol", (cls,), own)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._socket, self._early, self._is_made = transport, b"", self.tls is None
        self._deadline = self.loop.call_later(self.head_seconds, self._drop_if_idle)
        if self.tls is None:
            super().connection_made(transport)
        if len(self.counted) >= self.most_connections:
            idle = next((c for c in self.counted if c.is_idle), self)
            self.counted.pop(idle, None)
            idle._socket.abort()
            if idle is self:
                return
        self.counted[self] = None
        if self.tls is not None:
            # asyncio's own way would make this a connection only after the handshake, which a stranger need not begin.
            self._securing = self.loop.create_task(self._secure(self.tls))

    async def _secure(self, tls: ssl.SSLContext) -> None:
        try:
            # The deadline of the first request is that of the handshake too.
            secured = await self.loop.start_tls(self._socket, self, tls, server_side=True)
        except OSError:
            secured = None
        if secured is None:
            self._socket.abort()
            self._forget()
            return
        self._is_made = True
        super().connection_made(secured)
        if self._early:
            super().data_received(self._early)
            self._early = b""

    def data_received(self, data: bytes) -> None:
        if self._is_made:
            super().data_received(data)
        else:  # it came together with the end of the handshake
            self._early += data

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        if self._is_made:
            super().connection_lost(exc)

    def _forget(self) -> None:
        self.counted.pop(self, None)
        self._deadline.cancel()

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered on this connection."""
        return self._cycle is None or bool(self._cycle.response_complete)

    @property
    def _cycle(self) -> Any:
        return self.cycle  # None before the first request, whatever its type says

    def _drop_if_idle(self) -> None:
        if self._cycle is None:
            self._socket.abort()

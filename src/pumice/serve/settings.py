"""Settings of a server, with their defaults: how many, how large, how long, and for whom."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class HostSettings:
    """For each model: the queue before its worker, and how often and how soon a worker that died is started again.

    `unread_bytes` is how much of an answer may wait for a client that reads slowly. `cache` is how many bytes of answers a worker
    keeps; None keeps none.
    """

    queue: int = 256
    queue_bytes: int = 64 << 20
    unread_bytes: int = 8 << 20
    restarts: int = 5
    back_off: float = 0.25
    longest_back_off: float = 30.0
    load_seconds: float = 600.0
    receipts: str | None = None
    cache: int | None = None


@dataclass(frozen=True)
class PoolSettings:
    """For all models together: how many are loaded at once, what their workers may take, and when an unused one goes."""

    loaded: int | None = None
    memory: int | None = None
    idle_seconds: float | None = None
    preload: bool = True


@dataclass(frozen=True)
class ServerSettings:
    """For the API process. Times are in seconds, sizes in bytes."""

    host: str = "127.0.0.1"
    port: int = 8080
    key_file: str | None = None
    open_to_all: bool = False
    origins: tuple[str, ...] = ()
    certificate: str | None = None
    private_key: str | None = None
    body_bytes: int = 8 << 20
    all_bodies_bytes: int = 256 << 20
    header_bytes: int = 32 << 10
    most_tokens: int | None = None
    most_choices: int = 16
    request_seconds: float = 600.0
    head_seconds: float = 15.0
    body_seconds: float = 60.0
    keep_alive_seconds: float = 30.0
    send_seconds: float = 60.0
    drain_seconds: float = 30.0
    connections: int = 1024
    log_text: bool = False
    quiet: bool = False
    models: HostSettings = field(default_factory=HostSettings)
    pool: PoolSettings = field(default_factory=PoolSettings)

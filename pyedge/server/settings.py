"""What whoever starts a server decides about it. Frozen; checked where it comes from, and where it takes effect."""

from __future__ import annotations

from dataclasses import dataclass

PORT = 8080


@dataclass(frozen=True)
class Settings:
    host: str = "127.0.0.1"
    port: int = PORT  # 0: any that is free
    api_key: str | None = None
    cors_origins: tuple[str, ...] = ()  # of pages elsewhere that may use the API; "*": all
    allowed_hosts: tuple[str, ...] = ()  # names, beside localhost and addresses, that this machine is called by
    name: str | None = None  # of the model, to clients; None: as it was asked for
    max_sequences: int = 64  # that run at once
    max_queue: int = 64  # sequences that wait, beside those that run
    max_body: int = 8 << 20  # bytes; a context of 128k tokens is a megabyte of text
    max_header: int = 32 << 10  # bytes
    max_choices: int = 16  # n, of one call
    receive_timeout: float = 30.0  # seconds in which a request must have come
    send_timeout: float = 30.0  # seconds in which a client must have taken something of what waits for it
    idle_timeout: float = 75.0  # seconds that a connection without a request stays open
    request_timeout: float | None = None  # seconds from a request to the end of its answer
    drain_timeout: float = 30.0  # seconds that answers under way have when the server ends

"""Every knob of the service, with its default and why it is there."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from genius.errors import GeniusError


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """How the service listens, what it accepts and when it says no."""

    host: str = "127.0.0.1"  # without API keys only loopback is allowed
    port: int = 8000
    max_connections: int = 512  # open at the same time; then the one that waited longest is closed for the next
    trusted_proxies: tuple[str, ...] = ()  # addresses whose X-Forwarded-For is believed
    tls_cert: str = ""  # PEM file with the certificate and its chain; with tls_key: HTTPS
    tls_key: str = ""  # PEM file with its private key, without a password
    audit: str = ""  # file to which every change is logged: who, what, when, how it ended
    read_only: bool = False  # refuse POST, PUT and DELETE on items, whatever the key
    # what a request may carry
    max_body_bytes: int = 16_000_000  # the whole body; more is 413
    max_image_bytes: int = 10_000_000  # one picture, after base64
    max_pixels: int = 32_000_000  # width x height of one picture, checked before decoding
    max_inflight_bytes: int = 256_000_000  # received of all bodies being read or waiting; more is 503
    small_body_bytes: int = 64_000  # of every body that are not counted there: a question in words always gets in
    max_k: int = 1000  # results of one search; the API allows no more
    max_items: int = 100  # items of one POST
    query_side: int = 1024  # query pictures are shrunk to this, or to the encoder's input, before they wait
    decoders: int = 2  # pictures decoded at the same time
    # the queue
    max_batch: int = 32  # queries that share one pass through the model
    pass_s: float = 0.5  # a pass should not take longer, as far as the last ones tell: others wait for it
    queue_size: int = 256  # queries that may wait; the next one is answered 503
    linger_ms: float = 0.0  # wait this long for company before a batch starts; 0: group only what queued meanwhile
    max_writes: int = 16  # writes that may wait; the next one is answered 503
    # time
    timeout_s: float = 30.0  # a search, from arrival to answer; then 504
    write_timeout_s: float = 120.0  # a write; then 504 (it may still complete)
    header_timeout_s: float = 10.0  # from the first byte of a request to the end of its headers; then 408
    keep_alive_s: float = 15.0  # an idle connection is kept this long
    body_timeout_s: float = 30.0  # a slow upload; then 408
    body_stall_s: float = 10.0  # an upload of which nothing arrives; then 408
    drain_s: float = 30.0  # after SIGTERM: finish what is in flight for at most this long
    # what is shown
    thumbnail_side: int = 384  # longest side of a thumbnail
    log_level: str = "info"  # debug, info, warning, error
    allowed_hosts: tuple[str, ...] = ()  # extra Host names accepted without keys (a guard against DNS rebinding)

    def __post_init__(self) -> None:
        for name in ("max_body_bytes", "max_image_bytes", "max_inflight_bytes", "max_pixels", "max_k", "max_items"):
            if getattr(self, name) < 1:
                raise GeniusError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in (
            "max_connections",
            "query_side",
            "decoders",
            "max_batch",
            "queue_size",
            "max_writes",
            "timeout_s",
            "pass_s",
            "write_timeout_s",
            "header_timeout_s",
            "keep_alive_s",
            "body_timeout_s",
            "body_stall_s",
            "thumbnail_side",
        ):
            if not getattr(self, name) > 0:
                raise GeniusError(f"{name} must be more than 0, got {getattr(self, name)}")
        if self.linger_ms < 0 or self.drain_s < 0 or self.small_body_bytes < 0:
            raise GeniusError("linger_ms, drain_s and small_body_bytes must not be negative")
        if self.log_level.lower() not in ("debug", "info", "warning", "error"):
            raise GeniusError(f"log_level must be debug, info, warning or error, got {self.log_level!r}")
        if not 0 <= self.port <= 65535:
            raise GeniusError(f"port must be 0 to 65535, got {self.port}")

    @property
    def loopback(self) -> bool:
        """True if only this machine can connect."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return False

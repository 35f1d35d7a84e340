"""Settings of the service, with defaults and units."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, fields

from genius.errors import GeniusError

MAY_BE_ZERO = frozenset({"port", "drain_s", "small_body_bytes"})


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """Where the service listens, what a request may carry and cost, and how long it may take."""

    host: str = "127.0.0.1"  # without API keys only loopback addresses are allowed
    port: int = 8000  # 0: any free port
    max_connections: int = 512  # above it, the connection that has waited longest without a complete request is closed
    trusted_proxies: tuple[str, ...] = ()  # addresses whose X-Forwarded-For is believed
    tls_cert: str = ""  # PEM file with the certificate and its chain; with tls_key: HTTPS
    tls_key: str = ""  # PEM file with its private key, without a password
    query_log: str = ""  # file that gets the vectors of queries, for `genius learn`; empty: none
    read_only: bool = False  # refuse POST, PUT and DELETE on items, whatever the key
    # limits of one request
    max_body_bytes: int = 16_000_000  # larger bodies get 413
    max_image_bytes: int = 10_000_000  # one image, after base64
    max_pixels: int = 32_000_000  # width x height of one image, checked before decoding
    max_inflight_bytes: int = 256_000_000  # request bodies in memory, all requests together; above it: 503
    small_body_bytes: int = 64_000  # first bytes of every body, not counted there: a text query is always accepted
    max_k: int = 1000  # results of one search; the API allows no more
    max_items: int = 100  # items of one POST, and of one page of a listing
    max_queries: int = 100  # queries of one POST /v1/search/batch
    max_explain_beams: int = 100  # beam width of /v1/explain, which traces every beam
    query_side: int = 1024  # query images are shrunk to this side, or to the encoder's input, before they are queued
    decoders: int = 2  # images decoded at the same time
    # queues
    max_batch: int = 32  # queries that share one pass through the model
    pass_s: float = 0.5  # target duration of one pass, in seconds; batches shrink to keep it
    queue_size: int = 256  # queries that may wait; the next one gets 503
    max_writes: int = 16  # writes that may wait; the next one gets 503
    # time limits, in seconds
    timeout_s: float = 30.0  # a search, waiting included; then 504
    write_timeout_s: float = 120.0  # a write; then 504 (it may still complete)
    header_timeout_s: float = 10.0  # from the first byte of a request to the end of its headers; then 408
    keep_alive_s: float = 15.0  # an idle connection
    body_timeout_s: float = 30.0  # a request body, after its headers; then 408
    drain_s: float = 30.0  # finishing requests in flight after SIGTERM
    # presentation
    thumbnail_side: int = 384  # longest side of a thumbnail, in pixels
    log_level: str = "info"  # debug, info, warning, error
    allowed_hosts: tuple[str, ...] = ()  # Host names accepted without keys, besides local ones (DNS rebinding guard)

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, int | float) or isinstance(value, bool):
                continue
            if value < 0:
                raise GeniusError(f"{field.name} must not be negative, got {value}")
            if field.name not in MAY_BE_ZERO and not value > 0:  # NaN, too
                raise GeniusError(f"{field.name} must be more than 0, got {value}")
        if self.log_level.lower() not in ("debug", "info", "warning", "error"):
            raise GeniusError(f"log_level must be debug, info, warning or error, got {self.log_level!r}")
        if self.port > 65535:
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

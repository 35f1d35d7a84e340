"""Prometheus metrics, in a registry of their own: two apps in one process do not mix.

Labels are bounded: routes by their template, methods by a list, never what a caller sent.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"})
SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    def __init__(self) -> None:
        self.registry = r = CollectorRegistry()
        ProcessCollector(registry=r)
        self.requests = Counter("genius_requests_total", "Requests answered.", ["method", "route", "status"], registry=r)
        self.seconds = Histogram("genius_request_seconds", "Time to answer.", ["route"], buckets=SECONDS, registry=r)
        self.in_flight = Gauge("genius_requests_in_flight", "Requests being answered.", registry=r)
        self.batch = Histogram(
            "genius_batch_size",
            "Queries that shared a pass through the model.",
            buckets=(1, 2, 4, 8, 16, 32, 64, 128),
            registry=r,
        )
        self.batch_seconds = Histogram("genius_batch_seconds", "Time of a pass through the model.", buckets=SECONDS, registry=r)
        self.rejected = Counter("genius_rejected_total", "Requests refused to protect the rest.", ["reason"], registry=r)
        self.queue = Gauge("genius_queue_depth", "Queries waiting.", registry=r)
        self.items = Gauge("genius_items", "Items in the index.", registry=r)
        self.writes = Counter("genius_written_items_total", "Items added, replaced or deleted.", ["operation"], registry=r)

    def observe_request(self, method: str, route: str, status: int, seconds: float) -> None:
        self.requests.labels(method if method in METHODS else "other", route, str(status)).inc()
        self.seconds.labels(route).observe(seconds)

    def observe_batch(self, size: int, seconds: float) -> None:
        self.batch.observe(size)
        self.batch_seconds.observe(seconds)

    def render(self) -> bytes:
        return generate_latest(self.registry)

"""The numbers of `/metrics`, in Prometheus's format.

Owns their names. What stands now (running, waiting, pages) is asked of the engine when somebody looks; what happened is
counted when a request ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pyedge.engine.request import Request

if TYPE_CHECKING:
    from pyedge.server.service import Service

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60, 120, 300, 600)


class Metrics:
    def __init__(self, service: Service) -> None:
        self._registry = registry = CollectorRegistry()
        registry.register(_Now(service))

        def histogram(name: str, what: str) -> Histogram:
            return Histogram(f"pyedge_{name}_seconds", what, buckets=_SECONDS, registry=registry)

        self._ttft = histogram("time_to_first_token", "From a request's arrival to its first token.")
        self._tpot = histogram("time_per_output_token", "Mean of a request's tokens after the first.")
        self._queue = histogram("queue_time", "From a request's arrival to the first step that computes it.")
        self._duration = histogram("request_duration", "From a request's arrival to its last token.")
        self._prompt = Counter("pyedge_prompt_tokens", "Tokens of prompts.", registry=registry)
        self._cached = Counter("pyedge_cached_prompt_tokens", "Of these, found in the prefix cache.", registry=registry)
        self._generated = Counter("pyedge_generation_tokens", "Tokens that were generated.", registry=registry)
        self._preempted = Counter("pyedge_preemptions", "Requests that gave their pages back.", registry=registry)
        self._ended = Counter("pyedge_sequences", "Sequences by what ended them.", ["finish_reason"], registry=registry)
        self._requests = Counter(
            "pyedge_http_requests", "Answers by path and status.", ["path", "status"], registry=registry
        )

    def count_answer(self, path: str, status: int) -> None:
        self._requests.labels(path, str(status)).inc()

    def count_sequence(self, request: Request) -> None:
        """A request of the engine has ended."""
        times = request.metrics
        self._ended.labels(request.finish_reason or "abort").inc()
        if request.index == 0:  # of n answers to a prompt, which is read once
            self._prompt.inc(len(request.prompt_token_ids))
            self._cached.inc(times.cached_tokens)
        self._generated.inc(times.output_tokens)
        self._preempted.inc(times.preemptions)
        if times.queue_time is not None:
            self._queue.observe(times.queue_time)
        if times.ttft is not None:
            self._ttft.observe(times.ttft)
        if times.tpot is not None:
            self._tpot.observe(times.tpot)
        if times.last_token is not None:
            self._duration.observe(times.last_token - times.arrival)

    def text(self) -> bytes:
        return generate_latest(self._registry)


class _Now(Collector):
    """What is true at this moment."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        service = self._service
        yield GaugeMetricFamily("pyedge_places_taken", "Sequences that run, wait or are read.", service.places.taken)
        if not service.started or service.embeds:
            return
        engine = service.llm.engine
        pool = engine.scheduler.pool
        yield GaugeMetricFamily("pyedge_requests_running", "Sequences that run.", engine.n_running)
        yield GaugeMetricFamily("pyedge_requests_waiting", "Sequences that wait.", engine.n_waiting)
        yield GaugeMetricFamily("pyedge_kv_pages_total", "Pages of the KV cache.", pool.n_pages)
        yield GaugeMetricFamily("pyedge_kv_pages_used", "Pages that a sequence holds.", pool.n_used)
        yield GaugeMetricFamily("pyedge_kv_pages_cached", "Pages whose content can be found again.", pool.n_published)

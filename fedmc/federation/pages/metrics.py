"""A server's snapshot as Prometheus' metrics. docs/how-to/monitor.md lists them."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from fedmc.federation.pages.runs import STATES
from fedmc.federation.pages.snapshot import RunView, Snapshot

Family = GaugeMetricFamily | CounterMetricFamily
AWAY = ("lost", "offline", "unknown")


class ServerMetrics(Collector):
    """The metrics of one snapshot: sums over organisations, and of each one only whether it is online."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot

    def collect(self) -> Iterator[Family]:
        node = GaugeMetricFamily("fedmc_node_online", "1 if the organisation's node is online", labels=["organisation"])
        for one in self.snapshot.organisations:
            node.add_metric([one.name], float(one.state not in AWAY))
        yield node
        if self.snapshot.certificate is not None:
            text = "Unix time at which the server's certificate expires"
            yield GaugeMetricFamily("fedmc_certificate_expiry_seconds", text, self.snapshot.certificate)
        if self.snapshot.run is not None:
            yield from run_metrics(self.snapshot.run)


def run_metrics(run: RunView) -> Iterator[Family]:
    yield GaugeMetricFamily("fedmc_round", "Rounds of the last run so far", run.round)
    yield GaugeMetricFamily("fedmc_rounds_planned", "Rounds of the last run in all", run.rounds)
    state = GaugeMetricFamily("fedmc_run_state", "1 for the state of the last run", labels=["state"])
    for name in STATES:
        state.add_metric([name.replace(" ", "_")], float(name == run.state))
    yield state
    carried = CounterMetricFamily("fedmc_bytes", "Bytes of the last run's messages", labels=["direction"])
    carried.add_metric(["up"], run.bytes_up)
    carried.add_metric(["down"], run.bytes_down)
    yield carried
    for curve in run.curves:
        kind = curve.label.rpartition(" ")[2]
        name, text = {"RMSE": ("fedmc_rmse", "RMSE"), "NDCG@20": ("fedmc_ndcg", "NDCG@20")}[kind]
        family = GaugeMetricFamily(name, f"{text} of the last round that was measured", labels=["part"])
        family.add_metric([curve.label.partition(" ")[0]], curve.points[-1][1])
        yield family
    if run.epsilon is not None:
        yield GaugeMetricFamily("fedmc_epsilon_spent", "Epsilon that the last run has spent", run.epsilon)
    if run.last_round is not None:
        yield GaugeMetricFamily("fedmc_last_round_timestamp", "Unix time at which a round ended last", run.last_round)


def text(collector: Collector) -> bytes:
    """The metrics as Prometheus reads them, from a registry that holds nothing else."""
    registry = CollectorRegistry()
    registry.register(collector)
    return generate_latest(registry)

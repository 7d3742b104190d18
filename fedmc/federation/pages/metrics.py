"""A server's or a node's snapshot as Prometheus' metrics. docs/how-to/monitor.md lists them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from fedmc.federation.node.overview import RUN_STATES
from fedmc.federation.node.tally import Sent
from fedmc.federation.pages.node_snapshot import NodeSnapshot
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


class NodeMetrics(Collector):
    """The metrics of one snapshot of a node: its connection, messages, runs, models and budget; nothing of its data."""

    def __init__(self, snapshot: NodeSnapshot) -> None:
        self.snapshot = snapshot

    def collect(self) -> Iterator[Family]:
        found = self.snapshot
        yield GaugeMetricFamily("fedmc_node_connected", "1 if the node is connected to its server", float(found.online))
        text = "1 if the source has changed since it was read for runs"
        yield GaugeMetricFamily("fedmc_node_source_changed", text, float(bool(found.changed)))
        yield from message_metrics(found.sent)
        states = Counter(one.state for one in found.runs)
        runs = GaugeMetricFamily("fedmc_node_runs", "The last runs that the node knows, by state", labels=["state"])
        for name in RUN_STATES:
            runs.add_metric([name.replace(" ", "_")], states[name])
        yield runs
        used = next((one for one in found.models if one.in_use), None)
        if used is not None:
            text = "Unix time at which the model in use was written"
            yield GaugeMetricFamily("fedmc_node_model_timestamp", text, used.written)
        if used is not None and used.rmse is not None:
            text = "RMSE of the model in use on the organisation's held-out ratings"
            yield GaugeMetricFamily("fedmc_node_model_rmse", text, used.rmse)
        if found.budget is not None:
            text = "Epsilon that may be spent, over all runs"
            yield GaugeMetricFamily("fedmc_node_epsilon_allowed", text, found.budget.epsilon)
            yield GaugeMetricFamily("fedmc_node_epsilon_spent", "Epsilon that is spent", found.budget.spent)


def message_metrics(sent: Sent) -> Iterator[Family]:
    """What the node was asked and sent, over all runs."""
    messages = CounterMetricFamily("fedmc_node_messages", "Messages of the server", labels=["task", "outcome"])
    for one in sent.totals:
        messages.add_metric([one.task, "answered"], one.answered)
        messages.add_metric([one.task, "refused"], one.refused)
    yield messages
    carried = CounterMetricFamily("fedmc_node_bytes", "Bytes of messages and replies", labels=["direction"])
    carried.add_metric(["up"], sum(one.bytes_up for one in sent.totals))
    carried.add_metric(["down"], sum(one.bytes_down for one in sent.totals))
    yield carried
    if sent.last:
        text = "Unix time of the last message of the server"
        yield GaugeMetricFamily("fedmc_node_last_message_timestamp", text, sent.last[0].at)


def text(collector: Collector) -> bytes:
    """The metrics as Prometheus reads them, from a registry that holds nothing else."""
    registry = CollectorRegistry()
    registry.register(collector)
    return generate_latest(registry)

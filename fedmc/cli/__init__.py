"""The `fedmc` command. Each subcommand's module is imported on first use, so that help is fast."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Sequence

import click

from fedmc import __version__
from fedmc.cli import completing
from fedmc.cli.lazy import Entry, LazyGroup
from fedmc.cli.logs import notice
from fedmc.errors import FedmcError

BENCHMARK = {
    "list": Entry("fedmc.cli.benchmark:list_tasks", "List the tasks."),
    "show": Entry("fedmc.cli.benchmark:show", "Show a task and the hashes of its splits."),
    "run": Entry("fedmc.cli.benchmark:run", "Enter a method or a submission in a task."),
    "table": Entry("fedmc.cli.benchmark:table", "Print the table of results."),
}
CATALOGUE = {
    "make": Entry("fedmc.cli.catalogue:make", "Write a catalogue of the items of a source."),
    "merge": Entry("fedmc.cli.catalogue:merge", "Merge several catalogues into one."),
    "grow": Entry("fedmc.cli.catalogue_grow:grow", "Add items to a catalogue; items keep their columns."),
    "check": Entry("fedmc.cli.catalogue:check", "Check that a catalogue covers a source."),
}
DATA = {
    "list": Entry("fedmc.cli.data:list_sets", "List the public data sets."),
    "info": Entry("fedmc.cli.data:info", "Show origin, size and licence of a data set."),
    "get": Entry("fedmc.cli.data:get", "Download a data set."),
    "synth": Entry("fedmc.cli.data:synth", "Generate synthetic ratings."),
}
FEDERATION = {
    "init": Entry("fedmc.cli.federation_setup:init", "Create keys, certificates and folders."),
    "add": Entry("fedmc.cli.federation_members:add", "Add an organisation; nobody else restarts."),
    "remove": Entry("fedmc.cli.federation_members:remove", "Mark an organisation as gone."),
    "take-out": Entry("fedmc.cli.federation_members:take_out", "Take the part of one that leaves out of a sum."),
    "members": Entry("fedmc.cli.federation_members:list_members", "Show the members, or take in a newer list."),
    "announce": Entry("fedmc.cli.announcing:announce", "Tell all nodes of new members and items."),
    "renew": Entry("fedmc.cli.federation_setup:renew", "Renew the server's certificate, or a member's keys."),
    "sign-key": Entry("fedmc.cli.request_keys:sign_key", "Show or make the key that signs requests."),
    "train": Entry("fedmc.cli.federation_train:train", "Train a model over all organisations."),
    "resume": Entry("fedmc.cli.federation_train:resume", "Resume a run that stopped."),
    "schedule": Entry("fedmc.cli.federation_schedule:schedule", "Write a systemd timer that trains regularly."),
    "stop": Entry("fedmc.cli.federation_status:stop", "Stop a run; it can be resumed."),
    "status": Entry("fedmc.cli.federation_status:status", "Show server, nodes and the last run."),
    "demo": Entry("fedmc.cli.federation_demo:demo", "Run a whole federation on this machine."),
}
NODE = {
    "check": Entry("fedmc.cli.node:check", "Check ratings, keys and the connection."),
    "start": Entry("fedmc.cli.node_start:start", "Take part in training runs."),
    "refresh": Entry("fedmc.cli.node:refresh", "Read the data again, for new runs."),
    "forget": Entry("fedmc.cli.node_forget:forget", "Remove users, for good."),
    "models": Entry("fedmc.cli.node_models:list_models", "List the models of past runs."),
    "rollback": Entry("fedmc.cli.node_models:rollback", "Use the model of another run."),
    "ledger": Entry("fedmc.cli.node_ledger:ledger", "Show the privacy budget, or accept that its record was lost."),
    "status": Entry("fedmc.cli.node_status:status", "Show policy, runs and refusals of a node."),
    "approve": Entry("fedmc.cli.node_policy:approve", "Let a run begin that waits for approval."),
    "reject": Entry("fedmc.cli.node_policy:reject", "Take no part in a run."),
    "leave": Entry("fedmc.cli.node_members:leave", "State that this organisation leaves."),
    "keys": Entry("fedmc.cli.node_members:keys", "Make this organisation's own keys."),
    "identity": Entry("fedmc.cli.node_members:identity", "Show, renew or pin secure-aggregation keys."),
    "trust": Entry("fedmc.cli.request_keys:trust", "Pin the key of the server to obey."),
    "predict": Entry("fedmc.cli.predict:predict_at_node", "Predict ratings of the organisation's own users."),
    "recommend": Entry("fedmc.cli.recommend:recommend_at_node", "Recommend items to the organisation's own users."),
    "similar": Entry("fedmc.cli.recommend:similar_at_node", "Find items that are similar to items."),
    "find": Entry("fedmc.cli.find:find_at_node", "Find items by words of their titles."),
    "explain": Entry("fedmc.cli.node_explain:explain", "Show what moved a prediction."),
    "serve": Entry("fedmc.cli.serve:serve_at_node", "Serve the model to the organisation's own programs."),
    "export": Entry("fedmc.cli.exporting:export_at_node", "Write the model and own users for other programs."),
}
SERVER = {"start": Entry("fedmc.cli.server:start", "Run the server until it is told to stop.")}
COMMANDS: dict[str, Entry | click.Group] = {
    "train": Entry("fedmc.cli.train:train", "Train a model over simulated clients."),
    "tune": Entry("fedmc.cli.tune:tune", "Choose rank and penalty on held-out ratings."),
    "audit": Entry("fedmc.cli.audit:audit", "Attack the messages that a run would send."),
    "compare": Entry("fedmc.cli.compare:compare", "Compare methods on the same data and budget."),
    "reproduce": Entry("fedmc.cli.compare:reproduce", "Run the experiments of the paper."),
    "study": Entry("fedmc.cli.study:study", "Run a study from a file: grids, data sets, seeds."),
    "benchmark": LazyGroup("benchmark", BENCHMARK, help="Tasks with fixed splits that others can enter."),
    "report": Entry("fedmc.cli.report:report", "Write the report of a run or a comparison."),
    "evaluate": Entry("fedmc.cli.evaluate:evaluate", "Measure a model on held-out ratings or events."),
    "predict": Entry("fedmc.cli.predict:predict", "Predict ratings."),
    "recommend": Entry("fedmc.cli.recommend:recommend", "Recommend items to users."),
    "similar": Entry("fedmc.cli.recommend:similar", "Find items that are similar to items."),
    "find": Entry("fedmc.cli.find:find", "Find items by words of their titles."),
    "explain": Entry("fedmc.cli.explain:explain", "Show what moved a prediction."),
    "export": Entry("fedmc.cli.exporting:export", "Write a model for other programs: Parquet, NumPy, FAISS, ONNX."),
    "serve": Entry("fedmc.cli.serve:serve", "Serve a model over HTTP."),
    "info": Entry("fedmc.cli.model:info", "Show a model's size and settings."),
    "prepare": Entry("fedmc.cli.prepare:prepare", "Write ratings as memory-mapped shards."),
    "catalogue": LazyGroup("catalogue", CATALOGUE, help="The items that organisations agree on."),
    "data": LazyGroup("data", DATA, help="Public and synthetic data sets."),
    "demo": Entry("fedmc.cli.demo:demo", "Train on real film ratings and compare."),
    "federation": LazyGroup(
        "federation",
        FEDERATION,
        help="Train across organisations that keep their ratings.\n\n"
        "`init` makes a folder for the server and one for each organisation. `fedmc server start` and `fedmc node "
        "start` run them, `train` trains. `demo` shows all of it on this machine.",
    ),
    "server": LazyGroup("server", SERVER, help="The machine that the organisations' nodes connect to."),
    "node": LazyGroup("node", NODE, help="One organisation's side of a federation."),
}

app = LazyGroup(
    "fedmc",
    COMMANDS,
    help="Matrix completion across organisations that may not pool their data.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
click.version_option(__version__, prog_name="fedmc", message="%(prog)s %(version)s")(app)
app.params += completing.options()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command. An error that the user can fix gives one line on stderr and exit code 2, never a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        app(arguments, prog_name="fedmc")
    except (FedmcError, OSError, MemoryError) as error:
        notice(f"error: {str(error) or 'out of memory'}", logging.ERROR)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.stderr.write("stopped\n")
        sys.exit(130)

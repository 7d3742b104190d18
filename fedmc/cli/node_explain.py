"""`fedmc node explain`: what moved a prediction, told from the organisation's own ratings."""

from __future__ import annotations

from fedmc.cli.explain import Item, Number, User, show
from fedmc.cli.model import AsJson, TitleTable, check_explained
from fedmc.cli.predict import Folder, model_of_node
from fedmc.cli.titles import item_ids, with_titles
from fedmc.data.prepared import is_prepared, open_prepared
from fedmc.errors import require
from fedmc.federation.node.organisation import source_of
from fedmc.federation.setup.layout import load_node
from fedmc.model import load
from fedmc.model.given import explain_at_home, titled


def explain(
    folder: Folder, user: User, item: Item, number: Number = 10, table: TitleTable = None, as_json: AsJson = False
) -> None:
    """Show what moved a prediction of one of the organisation's own users. Nothing is sent."""
    fitted = load(model_of_node(folder))
    check_explained(fitted)
    config = load_node(folder)
    source = source_of(config)
    shard = source if is_prepared(source) else config.path("shard")
    require(is_prepared(shard), f"there are no prepared ratings in {folder}: `fedmc node check` makes them")
    prepared = open_prepared(shard)
    fitted = with_titles(titled(fitted, prepared.catalogue.features), table, folder)
    (item,) = item_ids(fitted, [item])
    found = explain_at_home(fitted, user, item, prepared)
    show(fitted, (user, item), found, None if as_json else number)

"""What a model computes from its items, once and on first use; models of other users that it makes share it."""

from __future__ import annotations

from functools import cached_property

from fedmc.algorithms.posterior import Posterior
from fedmc.algorithms.settings import Settings
from fedmc.kernels.moments import moment_lines
from fedmc.kernels.ranking import Candidates, arranged
from fedmc.model import recommending
from fedmc.model.titles import Index, needed
from fedmc.types import Array

NAMES = ("_arranged", "_directions", "_item_lines", "_title_index")


class OfItems:
    """The base of a model, which has these attributes."""

    V: Array
    settings: Settings
    posterior: Posterior | None
    titles: Array | None

    @cached_property
    def _arranged(self) -> Candidates:
        return arranged(self.V)

    @cached_property
    def _directions(self) -> recommending.Directions:
        return recommending.directions(self.V[:, : self.settings.rank] if self.settings.biases else self.V)

    @cached_property
    def _item_lines(self) -> Array:
        assert self.posterior is not None
        return moment_lines(self.posterior.item_means, self.posterior.item_covariances)

    @cached_property
    def _title_index(self) -> Index:
        return Index.of(needed(self.titles))

    def _share_with(self, other: OfItems) -> None:
        """Give a model of the same items what is computed already."""
        other.__dict__.update({name: found for name, found in self.__dict__.items() if name in NAMES})

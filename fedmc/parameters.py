"""Parameters of an estimator as scikit-learn expects them: read, changed and shown by name."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Self

from fedmc.errors import require

if TYPE_CHECKING:
    from sklearn.utils import Tags


class Parameters:
    """The parameters are those of the constructor."""

    def get_params(self, deep: bool = True) -> dict[str, object]:
        """The parameters by name."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def set_params(self, **params: object) -> Self:
        """Change parameters by name; returns the estimator."""
        known = self.get_params()
        for name, value in params.items():
            require(name in known, f"unknown parameter {name!r}: choose from {', '.join(known)}")
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        defaults = {name: p.default for name, p in inspect.signature(type(self)).parameters.items()}
        changed = [f"{name}={value!r}" for name, value in self.get_params().items() if value is not defaults[name]]
        return f"{type(self).__name__}({', '.join(changed)})"

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")

    def __sklearn_tags__(self) -> Tags:
        from sklearn.utils import InputTags, Tags, TargetTags

        inputs = InputTags(sparse=True, allow_nan=True)
        return Tags(estimator_type="regressor", target_tags=TargetTags(required=False), input_tags=inputs)

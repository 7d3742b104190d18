"""What scikit-learn expects of every estimator: parameters by name, tags, metadata, and its bookkeeping of X.

scikit-learn is optional. If it is installed, `Parameters` inherits from its base classes; else it does without.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Self

from fedmc.errors import InputError, require

if TYPE_CHECKING:
    from sklearn.utils import Tags

    class BaseEstimator:
        pass

    class RegressorMixin:
        def __sklearn_tags__(self) -> Tags: ...

    class NotFittedError(ValueError, AttributeError):
        pass

    def column_or_1d(y: object, *, warn: bool) -> object: ...

    def validate_data(estimator: object, X: object, *, reset: bool, skip_check_array: bool) -> object: ...

else:
    try:
        from sklearn.base import BaseEstimator, RegressorMixin
        from sklearn.exceptions import NotFittedError
        from sklearn.utils.validation import column_or_1d, validate_data
    except ImportError:
        validate_data = None

        class BaseEstimator:
            pass

        class RegressorMixin:
            pass

        class NotFittedError(ValueError, AttributeError):
            pass


UNUSED = "$UNUSED$"  # scikit-learn's word for an argument of a method that is no metadata


class UnfittedError(InputError, NotFittedError):
    """Something was asked of an estimator before `fit`."""


class Parameters(RegressorMixin, BaseEstimator):
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
        """A regressor of (user, item) rows: ids are categories, numbers or strings."""
        tags = super().__sklearn_tags__()
        tags.input_tags.categorical = tags.input_tags.string = True
        tags.target_tags.required = False  # ratings may also come as a table
        assert tags.regressor_tags is not None
        tags.regressor_tags.poor_score = True  # on rows that are no (user, item) pairs
        return tags

    def _note_columns(self, X: object, y: object = None, *, reset: bool = False) -> None:
        """Remember the columns of X or, unless `reset`, compare their number with that of `fit`; warn if y is a column.

        Those of a DataFrame are found by name, so others beside them do not matter.
        """
        if validate_data is None:
            return
        by_name = hasattr(X, "columns") or hasattr(self, "feature_names_in_")
        if getattr(X, "ndim", 2) > 1 and (reset or not by_name):
            validate_data(self, X, reset=reset, skip_check_array=True)
        if y is not None:
            column_or_1d(y, warn=True)

    def _forget_columns(self) -> None:
        """A table of ratings has no rows."""
        for name in ("n_features_in_", "feature_names_in_"):
            vars(self).pop(name, None)

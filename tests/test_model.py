"""Predict, recommend, fold in, fill in, save and load."""

from __future__ import annotations

import numpy as np
import pytest

from fedmc.data.loading import as_ratings
from fedmc.data.ratings import Ratings
from fedmc.data.splits import at_random as split
from fedmc.errors import FedmcError, InputError, ModelFileError
from fedmc.estimator import FedMC
from fedmc.model import load
from fedmc.problem.penalties import Fixed, GroupL2, box, l1, l2
from tests.conftest import planted


def named(ratings: Ratings) -> Ratings:
    """The same ratings with string ids."""
    users = np.array([f"user {i:03}" for i in ratings.users])
    return Ratings(users, np.array([f"item {i:03}" for i in ratings.items]), ratings.matrix)


@pytest.fixture(scope="module", params=["paper", "fast"])
def fitted(request):
    ratings = named(planted(users=60, items=20))
    return FedMC(3, preset=request.param, clients=5, rounds=30, penalty_users="l2:0.5").fit(ratings).model_, ratings


def test_predict_is_the_factors_product_on_the_rating_scale(fitted):
    model, ratings = fitted
    one = model.predict("user 003", "item 007")
    expected = model.U[3] @ model.V[7] * model.scaling.scale + model.scaling.mean
    assert one == pytest.approx([expected])
    assert model.predict(["user 003", "user 004"], "item 007").shape == (2,)
    assert model.predict("user 003", ratings.items).shape == (20,)


def test_predictions_fit_the_training_ratings(fitted):
    model, ratings = fitted
    entries = ratings.matrix.tocoo()
    errors = model.predict(ratings.users[entries.row], ratings.items[entries.col]) - entries.data
    assert np.sqrt(np.mean(errors**2)) < 0.8 * entries.data.std()


def test_recommend_is_sorted_and_leaves_out_the_seen(fitted):
    model, ratings = fitted
    ids, scores = model.recommend(["user 000", "user 001"], 4)
    assert ids.shape == scores.shape == (2, 4)
    for row, user in enumerate(["user 000", "user 001"]):
        rated = set(ratings.items[ratings.matrix[[row]].indices])
        assert not rated & set(ids[row])
        assert (np.diff(scores[row]) <= 0).all()
        np.testing.assert_allclose(model.predict(user, ids[row]), scores[row])
        unseen = [item for item in ratings.items if item not in rated]
        assert scores[row, 0] == pytest.approx(model.predict(user, unseen).max())
    everything, _ = model.recommend("user 000", 20, exclude_seen=False)
    assert sorted(everything) == list(ratings.items)


def test_recommend_fills_up_when_little_is_left(fitted):
    model, ratings = fitted
    left = 20 - ratings.matrix[[0]].nnz
    ids, scores = model.recommend("user 000", 20)
    assert (ids == "").sum() == np.isnan(scores).sum() == 20 - left


def test_fold_in_solves_the_new_users_problem(fitted):
    """The gradient of the penalised squared error vanishes at the folded-in factors (off the fixed columns)."""
    model, ratings = fitted
    new = Ratings(np.array(["x", "y"]), ratings.items, ratings.matrix[[0, 1]])
    folded = model.fold_in(new)
    assert folded.users.tolist() == ["x", "y"]
    for row in range(2):
        here = new.matrix[[row]]
        F, m = model.V[here.indices], (here.data - model.scaling.mean) / model.scaling.scale
        slope = F.T @ (F @ folded.U[row] - m) + 0.5 * folded.U[row]
        free = [c for c in range(model.settings.width) if not (model.settings.biases and c == model.settings.rank)]
        np.testing.assert_allclose(slope[free], 0, atol=1e-8)
    assert folded.predict("x", "item 003").shape == (1,)
    assert len(set(folded.recommend("x", 3)[0])) == 3


def test_fold_in_of_training_users_gives_their_factors():
    ratings = planted()
    model = FedMC(3, clients=4, rounds=10).fit(ratings).model_
    np.testing.assert_allclose(model.fold_in(ratings).U, model.U, atol=1e-10)


@pytest.mark.parametrize("penalty", ["l1:0.2", "non-negative", "group-l2:0.1", "box:-0.4,0.4"])
def test_fold_in_with_other_penalties_is_a_minimum(penalty):
    ratings = planted()
    model = FedMC(3, preset="paper", clients=4, rounds=10, penalty_users=penalty, beta=0.5).fit(ratings).model_
    folded = model.fold_in(ratings)
    term, _ = model.settings.penalties(4)
    dense, mask = ratings.matrix.toarray(), ratings.matrix.toarray() != 0
    goal = lambda U: 0.5 * np.sum((mask * (U @ model.V.T - dense)) ** 2) + term.value(U)  # noqa: E731
    rng = np.random.default_rng(0)
    for scale in (1e-4, 1e-2, 1):
        rival = term.prox(folded.U + scale * rng.normal(size=folded.U.shape), 0.0)
        assert goal(folded.U) <= goal(rival) * (1 + 1e-9)


def test_transform_keeps_what_is_known_and_fills_the_rest():
    ratings = planted(density=0.6)
    dense = np.where(ratings.matrix.toarray() != 0, ratings.matrix.toarray(), np.nan)
    estimator = FedMC(3, clients=4, rounds=20, penalty_users="l2:0.5").fit(dense)
    filled = estimator.transform(dense)
    assert filled.shape == dense.shape
    assert np.isfinite(filled).all()
    known = ~np.isnan(dense)
    assert np.array_equal(filled[known], dense[known])


def test_save_and_load(fitted, tmp_path):
    model, ratings = fitted
    model.save(tmp_path / "model.npz")
    back = load(tmp_path / "model.npz")
    assert [path.name for path in tmp_path.iterdir()] == ["model.npz"]
    assert back.settings == model.settings
    pairs = ratings.users[:10], ratings.items[:10]
    assert np.array_equal(back.predict(*pairs), model.predict(*pairs))
    for a, b in zip(back.recommend(ratings.users, 5), model.recommend(ratings.users, 5), strict=True):
        assert np.array_equal(a, b, equal_nan=b.dtype.kind == "f")
    assert np.array_equal(back.fold_in(ratings).U, model.fold_in(ratings).U)
    with np.load(tmp_path / "model.npz", allow_pickle=False) as file:
        assert all(file[name].dtype != object for name in file.files)


def test_a_penalty_of_ones_own_is_given_again_at_load(tmp_path):
    class Own:
        value, prox = staticmethod(l2(0.1).value), staticmethod(l2(0.1).prox)

    own = Own()
    ratings = planted()
    model = FedMC(3, preset="paper", clients=4, rounds=3, penalty_users=own).fit(ratings).model_
    model.save(tmp_path / "m.npz")
    with pytest.raises(ModelFileError, match="unknown penalty"):
        load(tmp_path / "m.npz")
    assert np.array_equal(load(tmp_path / "m.npz", penalty_users=own).U, model.U)


def test_our_own_penalties_survive_saving(tmp_path):
    for penalty in (Fixed((0,), (1.0,), l2(0.1)), Fixed((1,), (2.0,), GroupL2(0.3)), box(-1, 1) + l1(0.1)):
        model = FedMC(np.int64(3), preset="paper", clients=4, rounds=2, penalty_users=penalty).fit(planted()).model_
        model.save(tmp_path / "m.npz")
        assert load(tmp_path / "m.npz").settings.penalties(4) == model.settings.penalties(4)


def test_unknown_ids(fitted):
    model, _ = fitted
    with pytest.raises(InputError, match=r"unknown user nobody \(1 of 1 unknown\)"):
        model.predict("nobody", "item 001")
    with pytest.raises(InputError, match=r"unknown item item 999 \(1 of 2 unknown\)"):
        model.predict("user 001", ["item 001", "item 999"])
    with pytest.raises(InputError, match="unknown user"):
        model.recommend(["user 001", "zzz"])
    with pytest.raises(InputError, match="at least 1, got 0"):
        model.recommend("user 001", 0)
    with pytest.raises(InputError, match="equally long"):
        model.predict(["user 001", "user 002"], ["item 001", "item 002", "item 003"])
    for pairs in ((["user 001", "user 002"], ["item 001"]), (["user 001"], ["item 001", "item 002"])):
        with pytest.raises(InputError, match=r"got [12] and [12]: .* or a single id \(not in a list\)"):
            model.predict(*pairs)
    with pytest.raises(InputError, match="unknown item"):
        model.fold_in(as_ratings((["x"], ["no such item"], [1.0])))


def test_number_ids_take_text_that_looks_like_them():
    model = FedMC(2, clients=2, rounds=1).fit(planted()).model_
    assert model.predict("3", "4") == model.predict(3, 4)
    for text in ("three", "03"):
        with pytest.raises(InputError, match=f"unknown user {text}: .* whole numbers"):
            model.predict(["3", text], [4, 4])


def test_damaged_and_foreign_files(fitted, tmp_path):
    model, _ = fitted
    path = tmp_path / "m.npz"
    model.save(path)
    whole = path.read_bytes()
    for cut in (0, 10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(ModelFileError, match="not a whole fedmc model file"):
            load(path)
    path.write_bytes(b"user,item,rating\n1,2,3\n")
    with pytest.raises(ModelFileError):
        load(path)
    np.savez(path, V=np.zeros(3))
    with pytest.raises(ModelFileError, match="not a fedmc model"):
        load(path)
    np.savez(path, format=np.array("fedmc-model"), version=np.array(99))
    with pytest.raises(ModelFileError, match="format 99"):
        load(path)
    np.savez(path, format=np.array("fedmc-model"), version=np.array(1))
    with pytest.raises(ModelFileError, match="cannot be read"):
        load(path)
    with pytest.raises(ModelFileError, match="no model file"):
        load(tmp_path / "none.npz")


def test_every_damaged_byte_is_noticed_or_harmless(fitted, tmp_path):
    """Flip bytes all over the file: it loads to finite factors of the right shape or is refused."""
    model, _ = fitted
    path = tmp_path / "m.npz"
    model.save(path)
    whole = bytearray(path.read_bytes())
    rng = np.random.default_rng(0)
    refused = 0
    for place in rng.integers(len(whole), size=150):
        damaged = whole.copy()
        damaged[place] ^= 0xFF
        path.write_bytes(damaged)
        try:
            back = load(path)
        except FedmcError:
            refused += 1
        else:
            assert back.V.shape == model.V.shape
            assert np.isfinite(back.V).all()
            assert np.isfinite(back.U).all()
    assert refused > 50


def test_split_then_score():
    train, test = split(planted(users=200, items=30, noise=0.05, density=0.5), 0.2, 0)
    estimator = FedMC(3, clients=5, rounds=30, penalty_users="l2:0.5").fit(train)
    assert estimator.score(test) > -0.6 * test.matrix.data.std()

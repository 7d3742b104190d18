"""The Python of the READMEs. It runs as it stands, in the folder of an export; the tests run it."""

NPZ = """
import numpy as np

with np.load("model.npz") as file:
    globals().update(file)  # item_ids, item_factors, mean, scale, ...
"""

NPZ_USERS = """seen = np.split(seen_items, seen_indptr[1:-1])  # of each user: rows of the items rated or had
"""

PARQUET = """
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

about = json.loads(Path("metadata.json").read_text())
mean, scale = about["mean"], about["scale"]
low, high = about["clip"] or (-np.inf, np.inf)
items = pq.read_table("items.parquet")
item_ids = items["item"].to_numpy()
"""

TITLES = """item_titles = items["title"].to_numpy()
"""

PARQUET_FACTORS = """{side}_factors, {side}_bias = np.stack({side}s["factors"].to_numpy()), {side}s["bias"].to_numpy()
"""

PARQUET_WEIGHTS = """item_weights = np.stack(items["weights"].to_numpy())
"""

PARQUET_USERS = """users = pq.read_table("users.parquet")
user_ids = users["user"].to_numpy()
seen = users["seen"].to_numpy()  # of each user: rows of the items rated or had
"""

PARQUET_SPREAD = """noise = about["noise"]
item_covariances = np.stack(items["covariance"].to_numpy())
"""

PARQUET_USER_SPREAD = """user_covariances, calibration = np.stack(users["covariance"].to_numpy()), about["calibration"]
"""

SCORE = '''

def score(user, item):
    """The score of a user and an item, or of arrays of them, given as rows of user_ids and item_ids."""
    products = np.sum(user_factors[user] * item_factors[item], axis=-1)
    return products + user_bias[user] + item_bias[item]
'''

SCORE_VECTOR = '''

def score(factors, bias, item):
    """The score of a user with these factors and bias for an item, or an array of them: rows of item_ids."""
    return item_factors[item] @ factors + bias + item_bias[item]
'''

SCORE_WEIGHTS = '''

def score(user, item):
    """The score of a user and an item, or of arrays of them, given as rows of user_ids and item_ids."""
    return np.array([item_weights[j, seen[i]].sum() for i, j in np.broadcast(user, item)])
'''

SCORE_HAD = '''

def score(had, item):
    """The score of a user who had these items for an item, or an array of them: rows of item_ids."""
    return item_weights[item][..., had].sum(axis=-1)
'''

PREDICT = """

def predict({of}):
    return np.clip(link(score({of})) * scale + mean, low, high)


def link(score):
    return {link}
"""

RECOMMEND = '''

def recommend(user, n=10):
    """The rows of the n best items that a user has not rated or had, or of all that are left."""
    scores = score(user, np.arange(len(item_ids)))
    scores[seen[user]] = -np.inf
    best = np.argsort(-scores, kind="stable")[:n]
    return best[np.isfinite(scores[best])]
'''

SPREAD = '''

def matrices(lines):
    """Covariances of (factors, bias) from their lower triangles, row by row."""
    size = item_factors.shape[1] + 1
    found = np.zeros((*lines.shape[:-1], size, size))
    rows, columns = np.tril_indices(size)
    found[..., rows, columns] = found[..., columns, rows] = lines
    return found


def variances(user, item):
    """Variances of scores that are due to the user, to the item, and to both."""
    of_user, of_item = matrices(user_covariances[user]), matrices(item_covariances[item])
    u, v = (np.append(one, np.ones((*one.shape[:-1], 1)), axis=-1) for one in (user_factors[user], item_factors[item]))
    both = np.sum(of_user[..., :-1, :-1] * of_item[..., :-1, :-1], axis=(-2, -1))
    due = (np.einsum("...a,...ab,...b", one, cov, one) for one, cov in ((v, of_user), (u, of_item)))
    return *due, both


def std(user, item):
    """The standard deviation of a rating around its prediction."""
    return scale * np.sqrt(1 / noise + sum(variances(user, item)))


def interval(user, item, level=0.9):
    """The ends of an interval that holds a rating with this probability."""
    (many, *at_many), (few, *at_few) = calibration
    levels = np.linspace(0, 1, len(at_many))
    share = np.clip((noise * variances(user, item)[0] - many) / (few - many), 0, 1)
    width = (1 - share) * np.interp(level, levels, at_many) + share * np.interp(level, levels, at_few)
    center, half = score(user, item) * scale + mean, width * std(user, item)
    return np.clip(center - half, low, high), np.clip(center + half, low, high)
'''

INDEX_WORDS = """## The index

The vector of an item is (item_factors, item_bias), in the order of `items.parquet`. The vector to query with is
(user_factors, 1). Their inner product, plus the user's bias, is the score. Vectors are float32.
"""

INDEX = """
import faiss

index = faiss.read_index("index.faiss")
"""

EXACT = '''

def search(factors, n=10, leave_out=()):
    """(rows, inner products) of the best items for a user with these factors, without those to leave out."""
    chosen = faiss.IDSelectorNot(faiss.IDSelectorBatch(np.asarray(leave_out, np.int64)))
    query = np.append(factors, 1).astype(np.float32)[None]
    products, rows = index.search(query, n, params=faiss.SearchParameters(sel=chosen))
    return rows[0][rows[0] >= 0], products[0][rows[0] >= 0]
'''

HNSW = '''

def search(factors, n=10, leave_out=(), candidates=128):
    """(rows, inner products) of the best items for a user with these factors, without those to leave out.

    More candidates: slower, and fewer of the best items are missed.
    """
    chosen = faiss.IDSelectorNot(faiss.IDSelectorBatch(np.asarray(leave_out, np.int64)))
    query = np.append(factors, 1).astype(np.float32)[None]
    wanted = faiss.SearchParametersHNSW(sel=chosen, efSearch=max(candidates, 2 * n))
    products, rows = index.search(query, n, params=wanted)
    return rows[0][rows[0] >= 0], products[0][rows[0] >= 0]
'''

INDEX_RATING = '''

def rating(product, bias):
    """The prediction of an inner product, given the user's bias."""
    score = product + bias
    return np.clip(({link}) * scale + mean, low, high)
'''

INDEX_USER = '''

def recommend(user, n=10):
    """(rows, predictions) of the n best items that a user has not rated or had; user is a row of user_ids."""
    rows, products = search(user_factors[user], n, seen[user])
    return rows, rating(products, user_bias[user])
'''

ONNX = """
import numpy as np
import onnxruntime
import pyarrow.parquet as pq

items = pq.read_table("items.parquet")
item_ids = items["item"].to_numpy()
"""

ONNX_RUN = '''

def run(graph, **inputs):
    """The outputs of a graph."""
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])  # keep it for further calls
    return session.run(None, inputs)


def excluding(lists):
    """The mask of the items to leave out, a line for each list of rows of item_ids."""
    mask = np.zeros((len(lists), len(item_ids)), bool)
    for line, some in zip(mask, lists):
        line[some] = True
    return mask
'''

ONNX_USER = '''

def predict(user, item):
    """Predictions of pairs: two arrays of equal length, of rows of user_ids and item_ids."""
    (found,) = run("predict.onnx", user=user, item=item)
    return found


def recommend(user, n=10):
    """(rows, predictions) of the n best items that each of these users has not rated or had."""
    return run("recommend.onnx", user=user, n=np.array([n]), exclude=excluding(seen[user]))
'''

ONNX_VECTOR = '''

def predict(factors, bias, item):
    """Predictions for users with these factors (a row each) and biases, and one item each: rows of item_ids."""
    (found,) = run("predict_vector.onnx", factors=factors, bias=bias, item=item)
    return found


def recommend(factors, bias, leave_out, n=10):
    """(rows, predictions) of the n best items of each user, without those to leave out: a list for each user."""
    inputs = {"factors": factors, "bias": bias, "n": np.array([n]), "exclude": excluding(leave_out)}
    return run("recommend_vector.onnx", **inputs)
'''

ONNX_WEIGHTS = '''

def predict(had, item):
    """Predictions for users who had these items (a list of rows of item_ids each), and one item each."""
    (found,) = run("predict_vector.onnx", had=excluding(had).astype(DTYPE), item=item)
    return found


def recommend(had, n=10):
    """(rows, predictions) of the n best items of each user, without those that the user had."""
    mask = excluding(had)
    return run("recommend_vector.onnx", had=mask.astype(DTYPE), n=np.array([n]), exclude=mask)
'''

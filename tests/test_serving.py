"""The HTTP API of a model, called directly: answers are those of the model; what is wrong is refused with a cure."""

from __future__ import annotations

import json
import math
import time
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")

from fedmc import FedMC, Ratings
from fedmc.serving import answers, schema
from fedmc.serving.guard import Access, Limits
from tests.conftest import planted
from tests.serving_world import HOST, TOKEN, Direct, Sent, event_model, get, holder_of, post, titled_model


@pytest.fixture(scope="module")
def model():
    return titled_model()


@pytest.fixture(scope="module")
def api(model, tmp_path_factory):
    made = Direct(holder_of(model, tmp_path_factory.mktemp("serving") / "model.npz"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def events(tmp_path_factory):
    """The API of a model of events with the scale `log`."""
    made = Direct(holder_of(event_model(), tmp_path_factory.mktemp("events") / "model.npz", scale="log"))
    yield made
    made.close()


def good(got):
    assert got.status == 200, got.body
    assert got.headers["content-type"] == "application/json"
    return got.json


def refused(got, status, code, *said):
    assert (got.status, got.json["code"]) == (status, code), got.body
    assert set(got.json) == {"code", "message", "places"}
    for words in said:
        assert words in got.json["message"], got.json["message"]
    return got.json


def listed(found):
    return [one["item"] for one in found["items"]], [one["score"] for one in found["items"]]


# Answers are those of the model, to the last bit.


@pytest.mark.parametrize(
    "more", [{}, {"exclude_seen": False}, {"cautious": True}, {"only": [1, 2, 3, 9]}, {"exclude": [0, 5], "n": 3}]
)
def test_recommend(api, model, more):
    found = good(api.post("/v1/recommend", {"user": 7, **more}))
    ids, scores = model.recommend(7, **{"n": 10, **more})
    there = np.isfinite(scores)
    assert listed(found) == (ids[there].tolist(), scores[there].tolist())
    assert [one.get("title", "") for one in found["items"]] == model.title_of(ids[there]).tolist()
    assert (found["user"], found["ignored"]) == (7, [])
    assert found["model"] == good(api.ask(get("/v1/health")))["model"]["hash"]


def test_the_token_shows_what_users_rated(api, model):
    """As docs/how-to/serve.md warns: it is no token for users."""
    everything, new = (
        {one["item"] for one in good(api.post("/v1/recommend", {"user": 7, "n": 15, "exclude_seen": seen}))["items"]}
        for seen in (False, True)
    )
    (row,) = np.flatnonzero(model.users == 7)
    assert everything - new == set(model.items[model.seen[[row]].indices].tolist())


def test_an_id_may_be_a_text(api):
    assert listed(good(api.post("/v1/recommend", {"user": "7"}))) == listed(
        good(api.post("/v1/recommend", {"user": 7}))
    )
    refused(api.post("/v1/recommend", {"user": "07"}), 422, "unknown_user", "'07'")


def test_filters_tell_which_items_are_unknown(api, model):
    found = good(api.post("/v1/recommend", {"user": 7, "only": [1, 99, "x"], "exclude": [2, "y"]}))
    assert found["ignored"] == [99, "x", "y"]
    assert {one["item"] for one in found["items"]} <= {1}
    refused(api.post("/v1/recommend", {"user": 7, "only": [99]}), 422, "invalid", "none of the items in only")
    refused(api.post("/v1/recommend", {"user": 7, "only": []}), 422, "invalid", "none of the items in only")
    all_of_them = model.items.tolist()
    refused(api.post("/v1/recommend", {"user": 7, "exclude": all_of_them}), 422, "invalid", "leave no item")


def test_predict(api, model):
    pairs = [(7, 0), (8, 3), (7, 14)]
    asked = [{"user": user, "item": item} for user, item in pairs]
    found = good(api.post("/v1/predict", {"pairs": asked}))["predictions"]
    users, items = zip(*pairs, strict=True)
    assert [one["prediction"] for one in found] == model.predict(users, items).tolist()
    assert [(one["user"], one["item"], one.get("title", "")) for one in found] == [
        (user, item, model.title_of(item)) for user, item in pairs
    ]
    assert all("low" not in one for one in found)
    found = good(api.post("/v1/predict", {"pairs": asked, "interval": 0.8}))["predictions"]
    expected = model.interval(users, items, 0.8)
    got = [[one[name] for one in found] for name in ("prediction", "low", "high")]
    assert got == [part.tolist() for part in expected]


def test_unknown_ids_are_refused_or_predicted_by_the_prior(api, model):
    asked = {"pairs": [{"user": 7, "item": 0}, {"user": 999, "item": 3}, {"user": 8, "item": "new"}]}
    said = refused(api.post("/v1/predict", asked), 422, "unknown_user", "no user 999", "/v1/fold-in")
    assert said["places"][0]["where"] == "pairs[1].user"
    found = good(api.post("/v1/predict", asked | {"unknown": "prior", "interval": 0.5}))["predictions"]
    expected = model.interval([7, 999, 8], ["0", "3", "new"], 0.5, unknown="prior")
    assert [one["high"] for one in found] == expected.high.tolist()


def test_fold_in(api, model):
    asked = {"ratings": [{"item": 3, "rating": 4.5}, {"item": "0", "rating": 2}, {"item": 77, "rating": 1}], "n": 4}
    found = good(api.post("/v1/fold-in", asked | {"predict": [5, 6], "interval": 0.9, "exclude": [88]}))
    folded = model.fold_in(Ratings.from_arrays([0, 0], [3, 0], [4.5, 2.0]))
    ids, scores = folded.recommend(0, 4)
    assert listed(found) == (ids.tolist(), scores.tolist())
    expected = folded.interval([0, 0], [5, 6])
    assert [one["low"] for one in found["predictions"]] == expected.low.tolist()
    assert found["ignored"] == [77, 88]
    assert "user" not in found["predictions"][0]
    nothing = good(api.post("/v1/fold-in", {**asked, "n": 0}))
    assert (nothing["items"], nothing["predictions"]) == ([], [])
    assert good(api.ask(get("/v1/health")))["model"]["users"] == 40  # nothing is kept


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        ({"ratings": [{"item": 99, "rating": 1}]}, "invalid", "none of these items"),
        ({"ratings": [{"item": 1}]}, "invalid", "a rating is missing"),
        ({"ratings": [{"item": 1, "rating": 1}, {"item": "1", "rating": 2}]}, "invalid", "item 1 is rated 2 times"),
        ({"ratings": [{"item": 1, "rating": 1}], "predict": [99]}, "unknown_item", "no item 99"),
        ({"ratings": [{"item": 1, "rating": 1, "time": 5}, {"item": 2, "rating": 2}]}, "invalid", "some have none"),
        ({"ratings": []}, "invalid", "at least 1 item"),
        ({"ratings": [{"item": 1, "rating": 1e7}]}, "invalid", "less than or equal to 1000000"),
    ],
)
def test_fold_in_that_cannot_be(api, body, code, said):
    refused(api.post("/v1/fold-in", body), 422, code, said)


def test_similar_and_find(api, model):
    found = good(api.post("/v1/similar", {"item": 4, "n": 3}))
    ids, cosines = model.similar(4, 3)
    assert listed(found) == (ids.tolist(), cosines.tolist())
    found = good(api.post("/v1/find", {"text": "FILM 1993"}))["items"]
    assert found == [{"item": 3, "title": "Film D of 1993"}]
    assert good(api.post("/v1/find", {"text": "casablanca"}))["items"] == []
    refused(api.post("/v1/find", {"text": "?"}), 422, "invalid", "by its words")
    refused(api.post("/v1/similar", {"item": 99}), 422, "unknown_item", "no item 99")


def test_a_model_of_events(events):
    health = good(events.ask(get("/v1/health")))["model"]
    assert (health["events"], health["intervals"], health["titles"]) == (True, False, False)
    found = good(events.post("/v1/recommend", {"user": "u3", "n": 4}))
    fitted = event_model()
    ids, scores = fitted.recommend("u3", 4)
    assert listed(found) == (ids.tolist(), scores.tolist())
    assert all("title" not in one for one in found["items"])
    asked = {"ratings": [{"item": "i3"}, {"item": "i4", "rating": 3}, {"item": "i3", "rating": 2}]}
    folded = fitted.fold_in(Ratings.from_arrays([0, 0], ["i3", "i4"], 1 + np.log1p([3.0, 3.0])))
    ids, scores = folded.recommend(0, 10)
    there = np.isfinite(scores)
    assert listed(good(events.post("/v1/fold-in", asked))) == (ids[there].tolist(), scores[there].tolist())
    for amount in (0, -1):
        wrong = {"ratings": [{"item": "i3", "rating": amount}]}
        refused(events.post("/v1/fold-in", wrong), 422, "invalid", "above 0")
    for path, body in [("recommend", {"user": "u3", "cautious": True}), ("predict", {"interval": 0.9})]:
        body.setdefault("pairs", [{"user": "u3", "item": "i4"}]) if path == "predict" else None
        refused(events.post(f"/v1/{path}", body), 422, "invalid", "needs a Bayesian model")
    refused(events.post("/v1/find", {"text": "x"}), 422, "invalid", "no titles")


def test_recent_events_of_a_visitor_count_more_if_they_did_in_training(tmp_path):
    fitted = event_model()
    asked = {"ratings": [{"item": f"i{k}", "time": k * 86_400} for k in range(6)]}
    found = {}
    for recency in (True, False):
        api = Direct(holder_of(fitted, tmp_path / f"{recency}.npz", scale="none", recency=recency))
        found[recency] = listed(good(api.post("/v1/fold-in", asked)))
        api.close()
    names = [f"i{k}" for k in range(6)]
    for recency, times in ((True, np.arange(6) * 86_400), (False, None)):
        ids, scores = fitted.fold_in(Ratings.from_arrays(["x"] * 6, names, np.ones(6), times)).recommend("x", 10)
        there = np.isfinite(scores)
        assert found[recency] == (ids[there].tolist(), scores[there].tolist())
    assert found[True] != found[False]


def test_amounts_need_a_scale(tmp_path):
    api = Direct(holder_of(event_model(), tmp_path / "model.npz"))
    good(api.post("/v1/fold-in", {"ratings": [{"item": "i1", "rating": 1}]}))
    wrong = {"ratings": [{"item": "i1", "rating": 2}]}
    refused(api.post("/v1/fold-in", wrong), 422, "invalid", "does not say how amounts count")
    api.close()


@pytest.mark.parametrize("preset", ["fast", "paper"])
def test_other_models_answer_too(tmp_path, preset):
    fitted = FedMC(rank=2, preset=preset, clients=3, rounds=3).fit(planted()).model_
    api = Direct(holder_of(fitted, tmp_path / "model.npz"))
    assert listed(good(api.post("/v1/recommend", {"user": 1, "n": 3})))[0] == fitted.recommend(1, 3)[0].tolist()
    good(api.post("/v1/fold-in", {"ratings": [{"item": 1, "rating": 3}], "predict": [2]}))
    refused(
        api.post("/v1/predict", {"pairs": [{"user": 1, "item": 1}], "unknown": "prior"}), 422, "invalid", "Bayesian"
    )
    api.close()


def test_halves_of_characters_in_ids_and_titles(model, tmp_path):
    """JSON writes them as escapes; UTF-8 cannot."""
    titles = model.titles.astype("<U30")
    titles[3] = "Film \ud800"
    api = Direct(holder_of(replace(model, titles=titles), tmp_path / "model.npz"))
    found = good(api.post("/v1/predict", {"pairs": [{"user": 7, "item": 3}]}))["predictions"]
    assert found[0]["title"] == "Film \ud800"
    assert found[0]["prediction"] == model.predict(7, 3)[0]
    assert "low" not in found[0]
    api.close()


# Bounds and types.

MANY = [{"user": 7, "item": 1}] * (schema.MAX_PAIRS + 1)


@pytest.mark.parametrize(
    ("path", "body", "where", "said"),
    [
        ("recommend", {"user": 7, "n": 0}, "n", "greater than or equal to 1, got 0"),
        ("recommend", {"user": 7, "n": 10**400}, "n", "less than or equal to 1000, got"),
        ("recommend", {"user": 7, "n": True}, "n", "got True"),
        ("recommend", {"user": 7, "n": 2.0}, "n", "got 2.0"),
        ("recommend", {"user": 7, "n": "2"}, "n", "got '2'"),
        ("recommend", {"user": True}, "user", "got True"),
        ("recommend", {"user": None}, "user", "got None"),
        ("recommend", {"user": 2**63}, "user", "64 bits"),
        ("recommend", {"user": ""}, "user", "1 to 300 characters, got ''"),
        ("recommend", {"user": "7\0"}, "user", "got '7\\x00'"),
        ("recommend", {"user": "x" * 301}, "user", "300 characters"),
        ("recommend", {"user": "\ud800"}, "body", "not JSON in UTF-8"),
        ("recommend", {"user": 7, "exclude_seen": 1}, "exclude_seen", "got 1"),
        ("recommend", {"user": 7, "number": 5}, "number", "unknown"),
        ("recommend", {"user": 7, "only": list(range(10_001))}, "only", "at most 10000 items"),
        ("recommend", {}, "user", "is missing"),
        ("recommend", [], "body", "got []"),
        ("recommend", {"user": math.nan}, "user", "got nan"),
        ("predict", {"pairs": MANY}, "pairs", "at most 1000 items"),
        ("predict", {"pairs": [{"user": 7, "item": 1}, {"user": 7}]}, "pairs[1].item", "missing"),
        (
            "predict",
            {"pairs": [{"user": 7, "item": 1}], "interval": 1},
            "interval",
            "less than or equal to 0.9999, got 1",
        ),
        ("predict", {"pairs": [{"user": 7, "item": 1}], "interval": math.inf}, "interval", "got inf"),
        ("predict", {"pairs": [{"user": 7, "item": 1}], "unknown": "guess"}, "unknown", "got 'guess'"),
        ("fold-in", {"ratings": [{"item": 1, "rating": math.nan}]}, "ratings[0].rating", "finite number, got nan"),
        ("fold-in", {"ratings": [{"item": 1, "rating": "5"}]}, "ratings[0].rating", "got '5'"),
        ("fold-in", {"ratings": [{"item": 1, "rating": 5, "time": -1}]}, "ratings[0].time", "got -1"),
        ("find", {"text": "x" * 201}, "text", "at most 200 characters"),
    ],
)
def test_values_out_of_bounds(api, path, body, where, said):
    found = refused(api.post(f"/v1/{path}", body), 422, "invalid", said)
    assert where in [one["where"] for one in found["places"]]
    assert len(json.dumps(found)) < 2000


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b'{"user": 7', b"\xff\xfe\x00", b'{"user": 1e400}', b'{"user": -Infinity}', b"[" * 100_000,
        b'{"user":' * 30_000, b'{"user": ' + b"9" * 5000 + b"}", b"nul", b'{"user": "\xff"}', b"\x00" * 50,
    ],
    ids=lambda body: repr(body[:20]),
)  # fmt: skip
def test_bodies_that_are_no_json(api, body):
    got = api.post("/v1/recommend", body)
    refused(got, 422, "invalid", "JSON" if b"1e400" not in body and b"Inf" not in body else "user")


def test_wrong_values_are_told_at_ten_places_at_most(api):
    wrong = {f"unheard-of-{k}": k for k in range(500)}
    found = refused(api.post("/v1/recommend", {"user": 7} | wrong), 422, "invalid", "unknown")
    assert len(found["places"]) == 10
    for body in ({"user": 7, "only": [None] * 10_000}, {"user": [[]] * 60_000}):
        before = time.process_time()
        refused(api.post("/v1/recommend", body), 422, "invalid", "300 characters")
        assert time.process_time() - before < 2


# What every request passes.


def test_health_needs_no_token_and_everything_else_does(api):
    assert good(api.ask(get("/v1/health")))["status"] == "ok"
    for path in ("/v1/recommend", "/v1/nothing", "//", "/v1/health/", "/v1/../v1/health", "/V1/health"):
        refused(api.ask(get(path)), 401, "unauthorized", "Authorization: Bearer")
    for shown in ("", "x", TOKEN[:-1], TOKEN + "x", "é" * 30):
        got = api.ask(Sent("POST", "/v1/recommend", (("host", HOST), ("authorization", f"Bearer {shown}"))))
        refused(got, 401, "unauthorized")
        assert got.headers["www-authenticate"] == "Bearer"
    good(api.post("/v1/recommend", {"user": 7}, authorization=f"bearer  {TOKEN} "))


def test_without_a_token_everybody_may_ask(model, tmp_path):
    api = Direct(holder_of(model, tmp_path / "model.npz"), Access(None))
    good(api.ask(Sent("POST", "/v1/recommend", (("host", HOST), ("content-type", "application/json")), b'{"user": 7}')))
    api.close()


@pytest.mark.parametrize("host", ["evil.example", "", "127.0.0.1.evil.example", "localhost:x", "[::1"])
def test_names_that_are_not_the_servers_are_refused(api, host):
    refused(api.ask(get("/v1/health", host=host)), 421, "wrong_host", "--allow-host")


def test_names_of_the_server(model, tmp_path):
    api = Direct(holder_of(model, tmp_path / "model.npz"), Access(TOKEN, frozenset({"localhost", "films.example.org"})))
    for host in ("localhost", "LOCALHOST:80", "127.0.0.1", "[::1]:8000", "192.0.2.7:8000", "Films.example.org"):
        good(api.ask(get("/v1/health", host=host)))
    api.close()


def test_methods_addresses_and_headers(api):
    bearer = ("authorization", f"Bearer {TOKEN}")
    refused(api.ask(Sent("GET", "/v1/recommend", (("host", HOST), bearer))), 405, "method_not_allowed", "Allow")
    refused(api.ask(Sent("POST", "/v1/nothing", post("/", {}).headers, b"{}")), 404, "not_found", "see /")
    refused(api.ask(get("/v1/health?x=1")), 400, "bad_request", "in the body")
    refused(api.ask(Sent("GET", "/v1/health", (("host", HOST), ("host", HOST)))), 400, "bad_request", "2 times")
    for kind in ("text/plain", "application/x-www-form-urlencoded", "application/jsonx", ""):
        refused(api.post("/v1/recommend", {"user": 7}, **{"content-type": kind}), 415, "not_json", "application/json")
    good(api.post("/v1/recommend", {"user": 7}, **{"content-type": "Application/JSON; charset=utf-8"}))
    got = api.post("/v1/recommend", {"user": 7}, **{"content-encoding": "gzip"})
    refused(got, 415, "not_json", "encoding")


def test_every_answer_has_the_safe_headers(api):
    for request in (get("/"), get("/v1/health"), get("/nothing"), post("/v1/recommend", {})):
        headers = api.ask(request).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert headers["content-security-policy"].startswith("default-src 'none'")
        assert not any(name.startswith("access-control") for name in headers)


def test_sizes_and_numbers_are_bounded(model, tmp_path):
    api = Direct(holder_of(model, tmp_path / "model.npz"), limits=Limits(body=1000, requests=0))
    refused(api.post("/v1/recommend", b" " * 1001), 413, "too_large", "1,000 bytes")
    refused(api.post("/v1/recommend", b"{}", **{"content-length": "1001"}), 413, "too_large")
    refused(api.post("/v1/recommend", b"{}", **{"content-length": "9" * 5000}), 413, "too_large")
    got = api.post("/v1/recommend", {"user": 7})
    refused(got, 503, "too_busy", "try again")
    assert got.headers["retry-after"] == "1"
    api.close()


def test_answers_that_take_too_long_are_given_up(model, tmp_path, monkeypatch):
    api = Direct(holder_of(model, tmp_path / "model.npz"), limits=Limits(answer=0.1))
    monkeypatch.setattr(answers, "is_quick", lambda served, ask: False)
    monkeypatch.setattr(answers, "recommend", lambda served, ask: time.sleep(0.5))
    refused(api.post("/v1/recommend", {"user": 7}), 503, "too_busy", "within 0.1 s")
    good(api.ask(get("/v1/health")))
    api.close()


def test_numbers_without_a_solution_are_refused(api, monkeypatch):
    def fail(served, ask):
        raise np.linalg.LinAlgError("singular")

    monkeypatch.setattr(answers, "fold_in", fail)
    body = {"ratings": [{"item": 1, "rating": 1}]}
    refused(api.post("/v1/fold-in", body), 422, "invalid", "of a moderate size")


@pytest.mark.parametrize("quick", [True, False])
def test_an_error_of_ours_is_logged_and_says_nothing(model, tmp_path, caplog, monkeypatch, quick):
    holder = holder_of(model, tmp_path / "model.npz")
    api = Direct(holder)
    monkeypatch.setattr(answers, "is_quick", lambda served, ask: quick)
    holder.current = holder.current._replace(model=replace(model, users=None))
    refused(api.post("/v1/recommend", {"user": 7}), 500, "internal", "see the server's log")
    assert "a request failed" in caplog.text
    api.close()


def test_what_takes_long_is_answered_in_another_thread(api, model, monkeypatch):
    quick = schema.Recommend(user=7)
    served = answers.Served(model, "x", "x", 0.0)
    assert answers.is_quick(served, quick)
    for ask in (quick.model_copy(update={"cautious": True}), schema.FoldIn(ratings=[schema.Rating(item=1, rating=1)])):
        assert not answers.is_quick(served, ask)
    big = replace(model, V=np.zeros((answers.QUICK, 5)))
    assert not answers.is_quick(served._replace(model=big), quick)
    here = good(api.post("/v1/recommend", {"user": 7}))
    monkeypatch.setattr(answers, "is_quick", lambda served, ask: False)
    assert good(api.post("/v1/recommend", {"user": 7})) == here


# The description.


def test_openapi(api):
    found = good(api.ask(get("/v1/openapi.json")))
    assert found["openapi"].startswith("3.")
    assert sorted(found["paths"]) == [
        "/v1/find", "/v1/fold-in", "/v1/health", "/v1/predict", "/v1/recommend", "/v1/similar",
    ]  # fmt: skip
    schemas = found["components"]["schemas"]
    assert "HTTPValidationError" not in schemas
    for path, methods in found["paths"].items():
        for method in methods.values():
            assert ("security" in method) == (path != "/v1/health")
            assert method["responses"]["422"]["content"]["application/json"]["schema"]["$ref"].endswith("/Problem")
            if path != "/v1/health":
                asked = schemas[method["requestBody"]["content"]["application/json"]["schema"]["$ref"].split("/")[-1]]
                assert asked["additionalProperties"] is False
                assert set(asked["example"]) <= set(asked["properties"])


def test_the_page_names_every_field_and_takes_nothing_from_elsewhere(api):
    got = api.ask(get("/"))
    text = got.body.decode()
    for name in ("exclude_seen", "pairs[].user", "ratings[].time", "at most 1,000", "refuse or prior", "default 10"):
        assert name in text
    assert "http://" not in text
    assert "https://" not in text
    assert " src=" not in text
    assert "unsafe" not in got.headers["content-security-policy"]

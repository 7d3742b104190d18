"""From a file in each of six public formats to recommendations with titles, in at most three commands.

The files are made here in the layouts in which they are published; MovieLens 1M itself is read where it is at hand.
"""

from __future__ import annotations

import csv
import io

import numpy as np
import pandas as pd
import pytest

from tests.command import fedmc
from tests.postgres import execute, postgres

USERS, ITEMS = 120, 40
SMALL = ("--rank", "3", "--clients", "4", "--rounds", "8")


@pytest.fixture(scope="module")
def stars():
    """Stars of all pairs, with planted factors; every user has given some, and left the last items out."""
    rng = np.random.default_rng(0)
    full = 3.2 + rng.normal(size=(USERS, 2)) @ rng.normal(size=(2, ITEMS)) * 0.7
    known = rng.random(full.shape) < 0.5
    known[:, 0] = True
    return np.clip(np.round(full), 1, 5), known


@pytest.fixture(scope="module")
def rows(stars):
    """The known pairs as a table; ids are those of the files: users from 1, items from 101."""
    users, items = np.nonzero(stars[1])
    times = 978300000 + np.arange(len(users))
    return pd.DataFrame({"user": users + 1, "item": items + 101, "rating": stars[0][users, items], "time": times})


def title(item: int) -> str:
    return f"Film, the {item}th (1999)"


def trial(*commands, cwd):
    """Runs the commands; the last one's items and titles."""
    assert len(commands) <= 3
    for command in commands:
        done = fedmc(*command, cwd=cwd)
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
    return list(csv.DictReader(io.StringIO(done.stdout)))


def has_titles(found, number=5, of=title):
    assert len(found) == number
    assert [row["title"] for row in found] == [of(int(row["item"])) for row in found]
    values = [float(row.get("prediction") or row["score"]) for row in found]
    assert values == sorted(values, reverse=True)


def unseen(found, rows, user):
    """None of the recommended items is known of the user."""
    assert not {int(row["item"]) for row in found} & set(rows["item"][rows["user"] == user])


def test_ratings_as_csv(rows, tmp_path):
    """MovieLens "latest": ratings.csv and movies.csv."""
    names = {"user": "userId", "item": "movieId", "time": "timestamp"}
    rows.rename(columns=names).to_csv(tmp_path / "ratings.csv", index=False)
    films = [(item, title(item), "Comedy|Drama") for item in range(101, 101 + ITEMS)]
    pd.DataFrame(films, columns=["movieId", "title", "genres"]).to_csv(tmp_path / "movies.csv", index=False)
    train = ("train", "ratings.csv", "--items", "movies.csv", *SMALL, "--out", "run")
    found = trial(train, ("recommend", "run", "7", "-n", "5"), cwd=tmp_path)
    has_titles(found)
    unseen(found, rows, 7)


def test_a_dense_matrix(stars, tmp_path):
    """Jester: a row for each user, the number of its ratings first, 99 where there is none; jokes count from 1."""
    full, known = stars
    cells = np.where(known, full * 4 - 12 + 0.37, 99)
    table = np.column_stack([known.sum(axis=1), cells])
    np.savetxt(tmp_path / "jester-data-1.csv", table, delimiter=",", fmt="%.2f")
    jokes = pd.DataFrame(
        {"joke": range(1, ITEMS + 1), "text": [f"A man, a horse and {k} bars" for k in range(1, ITEMS + 1)]}
    )
    jokes.rename(columns={"text": "title"}).to_csv(tmp_path / "jokes.csv", index=False)
    train = ("train", "jester-data-1.csv", "--wide", "--missing", "99", "--items", "jokes.csv", *SMALL, "--out", "run")
    found = trial(train, ("recommend", "run", "7", "-n", "5"), cwd=tmp_path)
    has_titles(found, of=lambda joke: f"A man, a horse and {joke} bars")
    assert not {int(row["item"]) for row in found} & set(1 + np.flatnonzero(known[6]))


def test_dat_files_with_titles(rows, tmp_path):
    """MovieLens 1M: columns between `::`, titles in Latin-1."""
    lines = ("::".join(map(str, map(int, row))) for row in rows.itertuples(index=False))
    (tmp_path / "ratings.dat").write_text("\n".join(lines) + "\n")

    def french(item):
        return f"Amélie, the {item}th (2001)"

    films = "".join(f"{item}::{french(item)}::Comedy|Romance\n" for item in range(101, 101 + ITEMS))
    (tmp_path / "movies.dat").write_bytes(films.encode("latin-1"))
    train = ("train", "ratings.dat", "--items", "movies.dat", *SMALL, "--out", "run")
    has_titles(trial(train, ("recommend", "run", "7", "-n", "5"), cwd=tmp_path), of=french)


def test_events(rows, tmp_path):
    """Last.fm: user_artists.dat, plays between tabs, and artists.dat, which names them."""
    plays = rows.assign(rating=(rows["rating"] ** 3).astype(int))[["user", "item", "rating"]]
    plays.columns = ["userID", "artistID", "weight"]
    plays.to_csv(tmp_path / "user_artists.dat", sep="\t", index=False)
    artists = pd.DataFrame({"id": range(101, 101 + ITEMS), "name": [f"The {k}s" for k in range(101, 101 + ITEMS)]})
    artists.to_csv(tmp_path / "artists.dat", sep="\t", index=False)
    train = ("train", "user_artists.dat", "--feedback", "implicit", "--items", "artists.dat", *SMALL, "--out", "run")
    found = trial(train, ("recommend", "run", "7", "-n", "5"), cwd=tmp_path)
    has_titles(found, of="The {}s".format)
    unseen(found, rows, 7)


def test_postgresql(rows, tmp_path):
    """A shop's tables; the query joins the titles, which are the items then."""
    values = ", ".join(f"({int(row.user)}, {int(row.item)}, {int(row.rating)})" for row in rows.itertuples())
    films = ", ".join(f"({item}, '{title(item)}')" for item in range(101, 101 + ITEMS))
    query = "select customer, film.title as film, stars from review join film on film.id = review.film"
    with postgres() as address:
        execute(
            address,
            "create table film (id int primary key, title text)",
            "create table review (customer int, film int, stars int)",
            f"insert into film values {films}",
            f"insert into review values {values}",
        )
        train = ("train", address, "--query", query, "--columns", "customer,film,stars", *SMALL, "--out", "run")
        found = trial(train, ("recommend", "run", "7", "-n", "5"), cwd=tmp_path)
    seen = set(map(title, rows["item"][rows["user"] == 7]))
    assert len(found) == 5
    assert {row["item"] for row in found} <= set(map(title, range(101, 101 + ITEMS))) - seen


def test_parquet(rows, tmp_path):
    """A table in Parquet with names of its own, and one of the products."""
    rows.rename(columns={"user": "customer_id", "item": "product_id", "rating": "stars"}).to_parquet(
        tmp_path / "r.parquet"
    )
    items = range(101, 101 + ITEMS)
    pd.DataFrame({"product_id": items, "product_name": list(map(title, items))}).to_parquet(tmp_path / "p.parquet")
    train = ("train", "r.parquet", "--items", "p.parquet", *SMALL, "--out", "run")
    found = trial(train, ("recommend", "run", "7", "-n", "5"), cwd=tmp_path)
    has_titles(found)
    unseen(found, rows, 7)


@pytest.mark.slow
@pytest.mark.realdata
def test_movielens_1m(data_folder, tmp_path):
    folder = data_folder / "ml-1m"
    lines = (folder / "movies.dat").read_text(encoding="latin-1").splitlines()
    films = {int(line.split("::")[0]): line.split("::")[1] for line in lines}
    train = ("train", folder / "ratings.dat", "--items", folder / "movies.dat", *SMALL, "--out", "run")
    has_titles(trial(train, ("recommend", "run", "7", "-n", "5"), cwd=tmp_path), of=films.get)

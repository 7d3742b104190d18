"""Every format that fedmc reads, from small fixtures that are true to it; docs/reference/formats.md lists them."""

from __future__ import annotations

import io
import sqlite3
import tarfile
import zipfile

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from fedmc.data.loading import as_ratings, read_source
from fedmc.data.ratings import Ratings
from fedmc.data.readers.writing import write_table
from fedmc.errors import FedmcError
from tests.conftest import examples

EXPECTED = {(1, 10): 3.0, (1, 20): 5.0, (2, 10): 4.0}
SECONDS = {(1, 10): 978300760, (1, 20): 978302109, (2, 10): 978301968}


def check(ratings, scale=1.0, times=None):
    users, items = ratings.users[ratings.rows()], ratings.items[ratings.matrix.indices]
    found = dict(zip(zip(users.tolist(), items.tolist(), strict=True), ratings.matrix.data.tolist(), strict=True))
    assert found == {key: scale * value for key, value in EXPECTED.items()}
    if times is not None:
        pairs = zip(users.tolist(), items.tolist(), strict=True)
        assert dict(zip(pairs, ratings.times.tolist(), strict=True)) == times


def rows(separator, header="", scale=1.0, times=True):
    lines = [header] if header else []
    for (user, item), rating in EXPECTED.items():
        fields = [user, item, f"{scale * rating:g}", *([SECONDS[user, item]] if times else [])]
        lines.append(separator.join(map(str, fields)))
    return "\n".join(lines) + "\n"


HEADER = "userId,movieId,rating,timestamp"
ML_NEW = {
    "README.txt": "Summary\n=======\n",
    "links.csv": "movieId,imdbId,tmdbId\n1,0114709,862\n" * 50,
    "movies.csv": "movieId,title,genres\n1,Toy Story (1995),Adventure|Animation\n",
    "tags.csv": "userId,movieId,tag,timestamp\n2,60756,funny,1445714994\n" * 50,
    "genome-scores.csv": "movieId,tagId,relevance\n1,1,0.029\n" * 50,
    "ratings.csv": rows(",", HEADER, 0.5),
}
PUBLIC = {
    "ml-100k": (
        {
            "u.data": rows("\t"),
            "u1.base": "1\t10\t3\t978300760\n",
            "u.item": "1|Toy Story (1995)|01-Jan-1995||http://us.imdb.com/|0|0|0\n" * 5,
            "u.user": "1|24|M|technician|85711\n" * 5,
            "u.info": "943 users\n1682 items\n",
            "u.genre": "Action|1\n",
        },
        1.0,
    ),
    "ml-1m": (
        {
            "ratings.dat": rows("::"),
            "movies.dat": "1::Toy Story (1995)::Animation|Children's\n" * 9,
            "users.dat": "1::F::1::10::48067\n" * 9,
        },
        1.0,
    ),
    "ml-10m": (
        {
            "ratings.dat": rows("::", scale=0.5),
            "tags.dat": "15::4973::excellent!::1215184630\n" * 9,
            "movies.dat": "1::Toy Story (1995)::Adventure|Animation\n",
            "split_ratings.sh": "#!/bin/bash\n",
        },
        0.5,
    ),
    "ml-20m": (ML_NEW, 0.5),
    "ml-25m": (ML_NEW, 0.5),
    "ml-32m": (ML_NEW, 0.5),
    "ml-latest-small": (ML_NEW, 0.5),
}


def pack(files, where, way):
    """The files as a folder, a zip or a tar, with a folder inside as publishers have it."""
    if way == "folder":
        for name, text in files.items():
            path = where / "set" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return where / "set"
    if way == "zip":
        with zipfile.ZipFile(where / "set.zip", "w") as archive:
            for name, text in files.items():
                archive.writestr(f"set/{name}", text)
        return where / "set.zip"
    with tarfile.open(where / "set.bin", "w:gz" if way == "tar.gz" else "w") as archive:
        for name, text in files.items():
            info = tarfile.TarInfo(f"set/{name}")
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
    return where / "set.bin"


@pytest.mark.parametrize("way", ["folder", "zip", "tar", "tar.gz"])
@pytest.mark.parametrize("name", PUBLIC)
def test_movielens(tmp_path, name, way):
    files, scale = PUBLIC[name]
    place = pack(files, tmp_path, way)
    check(read_source(place), scale)
    check(read_source(place, times=True), scale, SECONDS)


DAYS = {(1, 10): "2005-09-06", (1, 20): "2004-02-29", (2, 10): "1999-12-31"}
NETFLIX = {10: "10:\n1,3,2005-09-06\n2,4,1999-12-31\n", 20: "20:\n1,5,2004-02-29\n"}
PROBE = {
    "probe.txt": "1:\n30878\n2647871\n",
    "qualifying.txt": "1:\n1046323,2005-12-19\n",
    "movie_titles.txt": "1,2003,Dinosaur\n",
}


def day_seconds():
    return {key: int(np.datetime64(day).astype("datetime64[s]").astype(int)) for key, day in DAYS.items()}


@pytest.mark.parametrize("way", ["folder", "zip", "tar", "tar.gz"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_netflix_training_set(tmp_path, way, newline):
    files = {f"training_set/mv_{item:07}.txt": text.replace("\n", newline) for item, text in NETFLIX.items()}
    check(read_source(pack(files | PROBE, tmp_path, way), times=True), 1.0, day_seconds())


@pytest.mark.parametrize("way", ["folder", "zip", "tar"])
def test_netflix_combined(tmp_path, way):
    files = {"combined_data_1.txt": NETFLIX[10], "combined_data_2.txt": NETFLIX[20].rstrip("\n")}
    check(read_source(pack(files | PROBE, tmp_path, way), times=True), 1.0, day_seconds())


def test_netflix_one_file_and_one_csv(tmp_path):
    path = tmp_path / "combined_data_1.txt"
    path.write_text(NETFLIX[10] + NETFLIX[20])
    check(read_source(path), 1.0)
    lines = [f"{item},{user},{rating:g},{DAYS[user, item]}" for (user, item), rating in EXPECTED.items()]
    (tmp_path / "netflix.csv").write_text("movie,customer_id,rating,date\n" + "\n".join(lines) + "\n")
    check(read_source(tmp_path / "netflix.csv", times=True), 1.0, day_seconds())


def test_netflix_tar_in_a_tar(tmp_path):
    inner = pack({f"mv_{item:07}.txt": text for item, text in NETFLIX.items()}, tmp_path, "tar").read_bytes()
    with tarfile.open(tmp_path / "nf_prize.tar.gz", "w:gz") as archive:
        for name, content in (("download/README", b"hello\n"), ("download/training_set.tar", inner)):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    check(read_source(tmp_path / "nf_prize.tar.gz"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "1:\n2,3,2005-09-06\n2,x,2005-09-06\n",
            "line 3: expected ITEM: or USER,RATING,YYYY-MM-DD, got '2,x,2005-09-06'",
        ),
        ("1:\n2,3,2005-09-06\n2,3\n", "line 3: expected"),
        ("1:\n2,3,2005-09-06\n3,3,2005-13-06\n", "line 3: expected"),
        ("1:\n2,3,2005-09-06\nfoo\n", "line 3: expected"),
        ("1:\n2,3,2005-09-06\n4,4,2005-09-0", "line 3: expected"),
    ],
)
def test_netflix_malformed(tmp_path, text, message):
    (tmp_path / "mv.txt").write_text(text)
    with pytest.raises(FedmcError, match=message):
        read_source(tmp_path / "mv.txt")


def frame(kind=int):
    keys = list(EXPECTED)
    return {
        "user": [kind(user) for user, _ in keys],
        "item": [kind(item) for _, item in keys],
        "rating": list(EXPECTED.values()),
        "timestamp": [SECONDS[key] for key in keys],
        "site": ["north" if user == 1 else "south" for user, _ in keys],
    }


def test_parquet_and_feather(tmp_path):
    table = pa.table(frame())
    pyarrow.parquet.write_table(table, tmp_path / "a")
    pyarrow.feather.write_feather(table, tmp_path / "b")
    for name in "ab":
        check(read_source(tmp_path / name, times=True), 1.0, SECONDS)
    for cut in (10, 200):
        (tmp_path / "a").write_bytes((tmp_path / "a").read_bytes()[:-cut])
        with pytest.raises(FedmcError, match="cannot be read"):
            read_source(tmp_path / "a")
    folder = tmp_path / "folder"
    folder.mkdir()
    pyarrow.parquet.write_table(table, folder / "part-0.parquet")
    check(read_source(folder))


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pa.table], ids=["pandas", "polars", "arrow"])
@pytest.mark.parametrize("kind", [int, str], ids=["int", "str"])
def test_data_frames(make, kind):
    ratings = as_ratings(make(frame(kind)))
    assert ratings.users.tolist() == [kind(1), kind(2)]
    if kind is int:
        check(ratings)


def test_categories_and_other_kinds_of_columns():
    table = pd.DataFrame(frame(str))
    table["user"] = table["user"].map({"1": "x", "2": "y"}).astype("category")
    table["item"] = table["item"].astype(float)
    table["rating"] = table["rating"].astype("int8")
    ratings = as_ratings(table)
    assert ratings.users.tolist() == ["x", "y"]
    assert ratings.items.tolist() == [10, 20]


def test_sqlite(tmp_path):
    path = tmp_path / "shop.db"
    with sqlite3.connect(path) as connection:
        connection.execute("create table sales (who integer, what integer, stars real)")
        connection.executemany("insert into sales values (?, ?, ?)", [(u, i, r) for (u, i), r in EXPECTED.items()])
    connection.close()
    query = "select who as user, what as item, stars as rating from sales"
    for source in (path, f"sqlite:///{path}"):
        check(read_source(source, query=query))
    check(read_source(path, ["who", "what", "stars"], query="select * from sales"))
    with pytest.raises(FedmcError, match="needs a query"):
        read_source(path)
    with pytest.raises(FedmcError, match="no such table"):
        read_source(path, query="select * from nowhere")
    with pytest.raises(FedmcError, match="no rating column found: the table has user, item"):
        read_source(path, query="select who as user, what as item from sales")
    with pytest.raises(FedmcError, match="no SQLite file"):
        read_source("sqlite:///nowhere.db", query=query)


def test_a_column_of_clients(tmp_path):
    pd.DataFrame(frame()).to_csv(tmp_path / "a.csv", index=False)
    names, codes = read_source(tmp_path / "a.csv", group="site").groups
    assert names.tolist() == ["north", "south"]
    assert codes.tolist() == [0, 1]
    torn = pd.DataFrame(frame())
    torn.loc[1, "site"] = "south"
    torn.to_csv(tmp_path / "b.csv", index=False)
    with pytest.raises(FedmcError, match="user 1 to north and south"):
        read_source(tmp_path / "b.csv", group="site")
    with pytest.raises(FedmcError, match="no column 'place'"):
        read_source(tmp_path / "a.csv", group="place")


def test_folders_without_ratings(tmp_path):
    (tmp_path / "notes.txt").write_text("nothing here\n")
    with pytest.raises(FedmcError, match=r"no ratings found in .*: it holds notes.txt"):
        read_source(tmp_path)
    (tmp_path / "cut.zip").write_bytes(pack(ML_NEW, tmp_path, "zip").read_bytes()[:200])
    with pytest.raises(FedmcError):
        read_source(tmp_path / "cut.zip")


characters = st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Z"))
names = st.text(characters, max_size=5).map("u{}".format)
ids = st.one_of(
    st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=8, unique=True),
    st.lists(names, min_size=1, max_size=8, unique=True),
)


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".parquet", ".feather"])
@given(users=ids, items=ids, seed=st.integers(0, 99), exact=st.booleans())
@examples(25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_read_gives_back_what_was_written(tmp_path, ending, users, items, seed, exact):
    rng = np.random.default_rng(seed)
    cells = np.flatnonzero(rng.random(len(users) * len(items)) < 0.7)
    cells = cells if len(cells) else np.array([0])
    values = rng.integers(1, 11, len(cells)) / 2 if exact else rng.normal(size=len(cells))
    columns = np.array(users)[cells // len(items)], np.array(items)[cells % len(items)], values
    written = Ratings.from_arrays(*columns, np.arange(len(cells)))
    write_table(written, tmp_path / f"t{ending}")
    back = read_source(tmp_path / f"t{ending}", times=True)
    assert back.users.tolist() == written.users.tolist()
    assert back.items.tolist() == written.items.tolist()
    assert back.matrix.indices.tolist() == written.matrix.indices.tolist()
    assert back.matrix.data.tolist() == written.matrix.data.tolist()
    assert back.times.tolist() == written.times.tolist()


@given(
    content=st.binary(max_size=300),
    start=st.sampled_from([b"", b"1:\n", b"PAR1", b"ARROW1", b"PK\x03\x04", b"SQLite format 3\0", b"1::2::"]),
)
@examples(300, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_fuzzed_files_give_ratings_or_a_clear_error(tmp_path, content, start):
    path = tmp_path / "garbage"
    path.write_bytes(start + content)
    try:
        found = read_source(path, query="select 1" if start.startswith(b"SQLite") else None)
    except FedmcError:
        return
    assert len(found) > 0
    assert np.isfinite(found.matrix.data).all()


@given(data=st.data())
@examples(100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_lines_never_give_a_wrong_silent_result(tmp_path, data):
    """A table with one byte changed gives an error, or as many ratings as it has lines."""
    whole = rows(",", "user,item,rating,timestamp").encode()
    place = data.draw(st.integers(0, len(whole) - 1))
    damaged = whole[:place] + bytes([data.draw(st.integers(0, 255))]) + whole[place + 1 :]
    path = tmp_path / "damaged.csv"
    path.write_bytes(damaged)
    try:
        found = read_source(path)
    except FedmcError:
        return
    lines = [line for line in damaged.replace(b"\r", b"\n").split(b"\n") if line.strip()]
    assert len(found) in (len(lines) - 1, len(lines))

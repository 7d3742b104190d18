"""Object storage: S3 on a server that checks signatures, Google's on an emulator; folders of parts, also on disk."""

from __future__ import annotations

import time
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

from fedmc.data.addresses import without_password
from fedmc.data.events import read_pairs
from fedmc.data.features import features_of
from fedmc.data.forms import Wide
from fedmc.data.loading import read_source
from fedmc.data.readers import header, storage
from fedmc.errors import DataError
from tests import stores
from tests.command import fedmc

USERS, ITEMS = 30, 12
TABLE = {
    "user": np.repeat(np.arange(1, USERS + 1), ITEMS),
    "item": np.tile(np.arange(1, ITEMS + 1), USERS),
    "rating": np.array([float((u * i) % 5 + 1) for u in range(1, USERS + 1) for i in range(1, ITEMS + 1)]),
}
EXPECTED = list(zip(*(column.tolist() for column in TABLE.values()), strict=True))
ROWS = [f"{u},{i},{r}" for u, i, r in EXPECTED]
HEAD = "user,item,rating\n"
FORMS = ("ratings.csv", "ratings.tsv", "ratings.parquet", "ratings.feather", "parts", "parts/", "text", "ratings.zip")


def table(rows=slice(None)):
    return pa.table({name: column[rows] for name, column in TABLE.items()})


def fill(folder):
    """The same table in all forms, other tables, and what else lies about."""
    for name in ("parts/year=2024", "text", "users", "mixed"):
        (folder / name).mkdir(parents=True)
    text = {
        "ratings.csv": HEAD + "\n".join(ROWS) + "\n",
        "ratings.tsv": "\n".join(row.replace(",", "\t") for row in ROWS),
        "text/part-0.csv": HEAD + "\n".join(ROWS[:200]) + "\n",
        "text/part-1.csv": HEAD + "\n".join(ROWS[200:]) + "\n",
        "parts/_SUCCESS": "done",
        "movies.csv": "item,title\n" + "".join(f"{i},Film No. {i}\n" for i in range(1, ITEMS + 1)),
        "bad.csv": HEAD + "1,2,3\n1,3,x\n",
        "pairs.csv": "user,item\n1,2\n2,3\n",
    }
    for name, content in text.items():
        (folder / name).write_text(content)
    cells = TABLE["rating"].reshape(USERS, ITEMS)
    ids = {"user": range(1, USERS + 1)}
    write = pa.parquet.write_table
    write(table(), folder / "ratings.parquet")
    pa.feather.write_feather(table(), folder / "ratings.feather")
    for name, rows in (("0", slice(0, 100)), ("1", slice(100, 101))):
        write(table(rows), folder / "parts" / f"part-000{name}.parquet")
    write(table(slice(101, None)), folder / "parts" / "year=2024" / "part-0002.parquet")
    write(pa.table(ids | {str(i): cells[:, i - 1] for i in range(1, ITEMS + 1)}), folder / "wide.parquet")
    for name, rows in (("a", slice(0, 10)), ("b", slice(10, USERS))):
        users = pa.table({"user": TABLE["user"][::ITEMS][rows], "age": np.arange(20, 20 + USERS)[rows]})
        write(users, folder / "users" / f"{name}.parquet")
    write(table(), folder / "mixed" / "a.parquet")
    write(table().append_column("more", pa.array(TABLE["user"])), folder / "mixed" / "b.parquet")
    with zipfile.ZipFile(folder / "ratings.zip", "w") as archive:
        archive.write(folder / "ratings.csv", "ml/ratings.csv")


def triples(ratings):
    ids = ratings.users[ratings.rows()].tolist(), ratings.items[ratings.matrix.indices].tolist()
    return list(zip(*ids, ratings.matrix.data.tolist(), strict=True))


@pytest.fixture(scope="module")
def bucket(tmp_path_factory):
    """HOST:PORT of a server with the bucket `shop`."""
    folder = tmp_path_factory.mktemp("buckets")
    fill(folder / "shop" / "data")
    with stores.s3(folder) as place:
        yield place


@pytest.fixture(autouse=True)
def credentials(monkeypatch):
    """Credentials in the environment, and nothing of the machine's own."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    for name, value in (stores.NOWHERE | stores.CREDENTIALS).items():
        monkeypatch.setenv(name, value)


def at(place, name, user=""):
    return f"s3://{user}shop/data/{name}?endpoint_override=http://{place}"


@pytest.mark.parametrize("name", FORMS)
def test_s3(bucket, name):
    assert triples(read_source(at(bucket, name))) == EXPECTED
    assert header(at(bucket, name)).names[:2] == ("user", "item")


@pytest.mark.parametrize("name", FORMS)
def test_the_same_on_disk(tmp_path, name):
    fill(tmp_path)
    assert triples(read_source(tmp_path / name)) == EXPECTED


def test_addresses(bucket, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{bucket}")
    assert triples(read_source("s3://shop/data/ratings.csv")) == EXPECTED
    assert triples(read_source("S3://shop/data/ratings.parquet?region=eu-central-1")) == EXPECTED
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    given = f"s3://{stores.KEY}:{stores.ENCODED}@shop/data/ratings.csv?scheme=http&endpoint_override={bucket}"
    assert triples(read_source(given)) == EXPECTED
    with pytest.raises(DataError, match="s3:// names no bucket"):
        read_source("s3://")
    with pytest.raises(DataError, match=r"has no option 'colour': there are region, endpoint_override"):
        read_source("s3://shop/x?colour=red")


def test_other_tables(bucket):
    found = features_of(at(bucket, "movies.csv"), "item")
    assert found.titles is not None
    assert found.titles[:2] == ("Film No. 1", "Film No. 2")
    assert features_of(at(bucket, "users"), "user").ids.tolist() == list(range(1, USERS + 1))  # two Parquet parts
    assert len(read_pairs(at(bucket, "parts")).rows) == len(EXPECTED)
    assert triples(read_source(at(bucket, "wide.parquet"), wide=Wide())) == EXPECTED
    with pytest.raises(DataError, match=r"s3://shop/data/wide\.parquet looks like a wide matrix"):
        read_source(at(bucket, "wide.parquet"))
    with pytest.raises(DataError, match="a wide matrix is one file"):
        read_source(at(bucket, "parts"), wide=Wide())
    with pytest.raises(DataError, match="text is a folder: name the file"):
        features_of(at(bucket, "text"), "item")


def test_bad_tables_are_told_as_on_disk(bucket):
    with pytest.raises(DataError, match=r"^s3://shop/data/bad\.csv, line 3: the rating should be a number, got 'x'"):
        read_source(at(bucket, "bad.csv"))
    with pytest.raises(
        DataError, match=r"s3://shop/data/mixed holds several tables, whose columns differ: .*a\.parquet"
    ):
        read_source(at(bucket, "mixed"))


def test_nothing_there(bucket):
    for name in ("data/none.csv", "empty/"):
        with pytest.raises(DataError, match=f"there is no object or folder s3://shop/{name}: check bucket"):
            read_source(f"s3://shop/{name}?endpoint_override=http://{bucket}")
    with pytest.raises(DataError, match="there is no object or folder s3://nowhere/x"):
        read_source(f"s3://nowhere/x?endpoint_override=http://{bucket}")


@pytest.mark.parametrize("user", [f"{stores.KEY}:WRONG-SECRET@", f"OTHERKEY:{stores.ENCODED}@"])
def test_wrong_credentials(bucket, user):
    with pytest.raises(DataError, match=r"data/ratings\.csv cannot be read: access is denied: check") as found:
        read_source(at(bucket, "ratings.csv", user))
    assert "WRONG" not in str(found.value)
    assert stores.ENCODED not in str(found.value)


def test_no_credentials(bucket):
    with pytest.raises(DataError, match=r"access is denied: check the credentials and their rights \(AWS_"):
        read_source(at(bucket, "ratings.csv") + "&anonymous=true")


@pytest.mark.slow
def test_no_answer_is_an_error_soon(monkeypatch):
    monkeypatch.setattr(storage, "ANSWER", 1)
    closed = f"127.0.0.1:{stores.free_port()}"
    with stores.silent() as quiet:
        for address in (
            at(closed, "x"),
            at(quiet, "x"),
            f"gs://anonymous@shop/x?scheme=http&endpoint_override={closed}&retry_limit_seconds=2",
        ):
            started = time.monotonic()
            with pytest.raises(DataError, match="/x cannot be read: the storage does not answer: check"):
                read_source(address)
            assert time.monotonic() - started < 20


def test_no_credential_is_shown():
    assert without_password("s3://KEY:a/b@c@shop/x") == "s3://***@shop/x"
    assert without_password("gs://anonymous@shop/x") == "gs://anonymous@shop/x"
    assert without_password("abfs://box@account.dfs.core.windows.net/x?sig=abc%3D&sv=1") == (
        "abfs://box@account.dfs.core.windows.net/x?sig=***&sv=1"
    )
    assert (
        without_password("s3://shop/x?endpoint_override=http://h:9000") == "s3://shop/x?endpoint_override=http://h:9000"
    )


def test_the_command_line(bucket, tmp_path):
    """Train, titles and pairs from the bucket; no credential in the run folder or on the screen."""
    user = f"{stores.KEY}:{stores.ENCODED}@"
    run = tmp_path / "run"
    done = fedmc(
        "train", at(bucket, "parts", user), "--items", at(bucket, "movies.csv", user), "--out", run, "--clients", 3,
        "--rounds", 2, "--rank", 2, "--test", "0.1",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    settings = (run / "settings.toml").read_text()
    assert f'source = "s3://***@shop/data/parts?endpoint_override=http://{bucket}"' in settings
    assert 'items = "s3://***@shop' in settings
    for shown in (settings, done.stdout, done.stderr):
        assert stores.KEY not in shown
        assert stores.ENCODED not in shown
    shown = fedmc("recommend", run, "1", "--include-seen").stdout
    assert "Film No. " in shown
    pairs = fedmc("predict", run, "--pairs", at(bucket, "pairs.csv"))
    assert pairs.stdout.splitlines()[0] == "user,item,prediction,title"
    assert [line.split(",")[:2] for line in pairs.stdout.splitlines()[1:]] == [["1", "2"], ["2", "3"]]
    written = fedmc("predict", run, "--pairs", at(bucket, "pairs.csv"), "--out", tmp_path / "out.csv")
    assert written.returncode == 0, written.stderr
    prepared = fedmc("prepare", at(bucket, "ratings.parquet"), "--out", tmp_path / "shards", "--clients", 2)
    assert prepared.returncode == 0, prepared.stderr
    failed = fedmc("train", at(bucket, "ratings.csv", f"{stores.KEY}:WRONG@"), "--out", tmp_path / "no")
    assert failed.returncode != 0
    assert "access is denied" in failed.stderr
    assert "Traceback" not in failed.stderr
    assert "WRONG" not in failed.stderr
    assert not (tmp_path / "no").exists()


def test_google():
    with stores.google("shop") as store:
        store.put("ratings.csv", (HEAD + "\n".join(ROWS)).encode())
        for number, rows in enumerate((slice(0, 50), slice(50, None))):
            sink = pa.BufferOutputStream()
            pa.parquet.write_table(table(rows), sink)
            store.put(f"parts/{number}.parquet", sink.getvalue().to_pybytes())
        assert triples(read_source(store.address("ratings.csv"))) == EXPECTED
        assert triples(read_source(store.address("parts"))) == EXPECTED
        assert triples(read_source(store.address("ratings.csv").replace("gs:", "gcs:"))) == EXPECTED
        with pytest.raises(DataError, match="there is no object or folder gs://anonymous@shop/none"):
            read_source(store.address("none"))


def test_azure_without_credentials():
    with pytest.raises(DataError, match=r"abfs://box@account\.dfs\.core\.windows\.net/x cannot be read: ") as found:
        read_source("abfs://box@account.dfs.core.windows.net/x?enable_tls=false&blob_storage_authority=127.0.0.1:9")
    assert "Traceback" not in str(found.value)


def test_text_tables_of_one_name_are_parts(tmp_path):
    """Files that differ in numbers only and have the same header; others stay apart, and so do files without one."""
    (tmp_path / "ratings-2023.csv").write_text(HEAD + "1,1,3\n1,2,4\n")
    (tmp_path / "ratings-2024.csv").write_text(HEAD + "2,1,5\n")
    (tmp_path / "ratings-old.csv").write_text(HEAD + "9,9,1\n")
    (tmp_path / "links.csv").write_text("item,imdb,tmdb\n1,2,3\n")
    assert triples(read_source(tmp_path)) == [(1, 1, 3.0), (1, 2, 4.0), (2, 1, 5.0)]
    folder = tmp_path / "headless"
    folder.mkdir()
    for name in ("u1.base", "u2.base"):
        (folder / name).write_text("1,1,3\n" if name == "u1.base" else "2,1,3\n1,1,4\n")
    assert len(read_source(folder)) == 2  # the larger one alone, as of MovieLens 100K


@pytest.mark.parametrize("feedback", [(), ("--feedback", "implicit")])
def test_a_storage_that_fails_is_asked_once(monkeypatch, tmp_path, feedback):
    asked = []

    def fails(address):
        asked.append(address)
        raise OSError("AWS Error NETWORK_CONNECTION during HeadObject operation")

    monkeypatch.setattr(storage, "_opened", fails)
    done = fedmc("train", "s3://shop/x.csv", "--out", tmp_path / "no", *feedback)
    assert (done.returncode, len(asked)) == (2, 1)
    assert "the storage does not answer" in done.stderr

"""Text tables of every cut."""

from __future__ import annotations

import contextlib

import pandas as pd
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from fedmc.data.loading import as_ratings, read_source
from fedmc.data.prepare import Plan
from fedmc.data.understanding import understand
from fedmc.errors import FedmcError
from tests.conftest import examples


@pytest.fixture
def table(tmp_path):
    def write(text, name="ratings.csv"):
        path = tmp_path / name
        path.write_bytes(text.encode())
        return path

    return write


@pytest.mark.parametrize(
    "text",
    [
        "1,5,3\n2,5,4.5\n",
        "1,5,3,978300760\n2,5,4.5,978302109",
        "user,item,rating\n1,5,3\n2,5,4.5\n",
        "\ufeffuserId,movieId,rating,timestamp\r\n1,5,3,9\r\n2,5,4.5,9\r\n",
        "rating;item;user\n3;5;1\n4.5;5;2\n",
        "1\t5\t3\t881250949\n2\t5\t4.5\t881250949\n",
        "1::5::3::978300760\n2::5::4.5::978302109\n",
        "1|5|3\n\n2|5|4.5\n",
        "user, item, rating\n1, 5, 3\n2, 5, 4.5\n",
        'user,title,item,rating\n1,"a, b",5,3\n2,c,5,4.5\n',
    ],
)
def test_layouts(table, text):
    ratings = read_source(table(text))
    assert ratings.users.tolist() == [1, 2]
    assert ratings.items.tolist() == [5]
    assert ratings.matrix.toarray().tolist() == [[3], [4.5]]


def test_ids_as_they_are(table):
    ratings = read_source(table("user,item,rating\n007,x,1\n7,y,2\nNA,y,3\n"))
    assert ratings.users.tolist() == ["007", "7", "NA"]


def test_named_columns(table):
    path = table("who,what,how,rating\na,x,1,9\nb,y,2,9\n")
    assert read_source(path, ["who", "what", "how"]).matrix.data.tolist() == [1, 2]


@pytest.mark.parametrize("header", ["", "Kunde;Artikel;Bewertung\n"])
@pytest.mark.parametrize("users", ["12", "ab"])
def test_decimal_commas_of_a_table_with_semicolons(table, header, users):
    path = table(f"{header}{users[0]};x;3,5\n{users[0]};y;4\n{users[1]};x;-1,25\n")
    ratings = read_source(path)
    assert ratings.matrix.data.tolist() == [3.5, 4, -1.25]
    assert "ratings have decimal commas" in ratings.notes[0]
    assert "comma" not in " ".join(read_source(table("user;item;rating\na;x;3.5\na;y;4\n")).notes)
    assert understand(Plan(str(path))).what.kind == "ratings"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("user;item;rating\na;x;3,5\nb;x;4.5\n", "line 3: .*got '4.5': write a decimal comma"),
        ("user;item;rating\na;x;1,234\nb;x;2,500\n", "line 2: .*got '1,234': write a decimal point"),
        ('user,item,rating\na,x,"3,5"\n', "line 2: .*got '3,5': write a decimal point"),
        ("", "is empty"),
        ("user,item,rating\n", "has no rows of users and items"),
        ("1,2\n", "line 1: expected at least three fields"),
        ("user,item,points\n1,2,3\n", "no rating column found: the table has user, item, points"),
        ("1,2,3\n1,3,x\n", "line 2: the rating should be a number, got 'x'"),
        ("user,item,rating\n1,2,3\n\n1,3,nan\n", "line 4: the rating must be finite, got 'nan'"),
        ("1,2,3\n1,3,inf\n", "line 2: the rating must be finite"),
        ("1,2,3\n1,3,\n", "line 2: the rating should be a number, got ''"),
        ("1,2,3\n1,3\n", "line 2: expected 3 fields, got 2"),
        ("1::2::3\n1::3::4::5\n", "line 2: expected 3 fields, got 4"),
        ("1,2,3\n1,2,4\n", "repeat"),
        ("1,2,3\n,2,4\n", "line 2: the user is empty"),
        ("user,item,rating,rating\n1,2,3,4\n", "more than one column"),
        ("\nuser,item,rating\n1,2,3\n", "blank line"),
    ],
)
def test_malformed(table, text, message):
    with pytest.raises(FedmcError, match=message.replace("(", r"\(")):
        read_source(table(text))


def test_missing_file_and_column(table, tmp_path):
    with pytest.raises(FedmcError, match="there is no file"):
        read_source(tmp_path / "nothing.csv")
    with pytest.raises(FedmcError, match="no column 'score': the table has user, item, rating"):
        read_source(table("user,item,rating\n1,2,3\n"), ["user", "item", "score"])
    with pytest.raises(FedmcError, match="has no header"):
        read_source(table("1,2,3\n"), ["user", "item", "score"])


@given(content=st.binary(max_size=200) | st.text(alphabet="0123456789.,;:|\t\n\"'-+eNaninf", max_size=200))
@examples(400, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_garbage_gives_ratings_or_a_clear_error(tmp_path, content):
    path = tmp_path / "garbage"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with contextlib.suppress(FedmcError):
        assert len(read_source(path)) > 0


def test_text_in_a_column_of_ratings_names_the_cure():
    frame = pd.DataFrame({"user": ["a", "b"], "item": ["x", "y"], "rating": ["3", "3,5"]})
    with pytest.raises(FedmcError, match="got '3,5': write a decimal point"):
        as_ratings(frame)
    with pytest.raises(FedmcError, match=r"load_source\(PATH\) reads a file"):
        as_ratings("ratings.csv")

"""Columns are found by their usual names in several languages; what was guessed is told, and a doubt is an error."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from fedmc.data.feedback import EventOptions
from fedmc.data.loading import as_ratings, read_source
from fedmc.data.readers.usual import COLUMN_NAMES, EVENT_NAMES, TIME_NAMES, plain
from fedmc.errors import DataError
from tests.command import fedmc

HEADERS = {  # user, item, rating, time
    "English": "Customer ID,Product-No.,Stars,created_at",
    "English, joined": "memberId,trackId,Score,DATE",
    "German": "Kundennummer,Artikel,Bewertung,Datum",
    "German, with umlauts": "HÖRER_NR,Bücher,Sterne,Zeitstempel",
    "French": "Numéro d'utilisateur,Œuvre,Note,Horodatage",
    "French, ids": "id_adhérent,code article,Évaluation,date_heure",
    "Spanish": "id_cliente,Película,Calificación,Fecha",
    "Italian": "codice_utente,Prodotto,Voto,Data",
    "Portuguese": "Usuário,Música,Avaliação,data_hora",
    "Dutch": "klantnummer,Boek,Beoordeling,Tijdstip",
    "Polish": "id_użytkownika,Książka,Ocena,Czas",
    "Japanese": "ユーザーID,商品コード,評価,日時",
    "Japanese, full width": "ユーザーＩＤ,映画ＩＤ,スコア,日付",
    "Chinese": "用户ID,电影,评分,时间",
    "Chinese, traditional": "使用者編號,產品,評分,時間戳",
}
ROWS = "a,x,1,2001-01-01\na,y,2,2002-01-01\nb,x,3,2003-01-01\n"


@pytest.mark.parametrize("language", HEADERS)
def test_usual_names(language, tmp_path):
    names = HEADERS[language].split(",")
    path = tmp_path / "t.csv"
    path.write_text(f"{HEADERS[language]}\n{ROWS}", encoding="utf-8")
    found = read_source(path, times=True)
    assert (found.users.tolist(), found.items.tolist()) == (["a", "b"], ["x", "y"])
    assert found.matrix.data.tolist() == [1, 2, 3]
    assert found.notes == (
        f"columns: user = {names[0]}, item = {names[1]}, rating = {names[2]}, time = {names[3]} "
        "(guessed; --columns USER,ITEM,RATING,TIME to change)",
    )


def test_no_name_means_two_things():
    roles = {**COLUMN_NAMES, "event": EVENT_NAMES, "time": TIME_NAMES}
    named = [name for usual in roles.values() for name in {*usual.own, *usual.other}]
    assert len(named) == len(set(named))
    assert all(plain(name) == name != "" for name in named)


@pytest.mark.parametrize(
    ("header", "role", "candidates"),
    [
        ("Kunde,Mitglied,Artikel,Bewertung", "user", "Kunde, Mitglied"),
        ("user,artist,track,rating", "item", "artist, track"),
        ("user,item,score,stars", "rating", "score, stars"),
        ("user,user_id,item,rating", "user", "user, user_id"),
    ],
)
def test_a_doubt_is_an_error_with_the_candidates(header, role, candidates, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(f"{header}\na,x,1,2\n")
    with pytest.raises(DataError, match=f"more than one column could be the {role}: {candidates}; name the three"):
        read_source(path)


def test_the_own_name_of_a_role_comes_first(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("client,film,item_id,score,rating,user_id\nA,Z,x,9,1,u\n")
    found = read_source(path)
    assert (found.users.tolist(), found.items.tolist(), found.matrix.data.tolist()) == (["u"], ["x"], [1])


def test_the_column_of_clients_is_no_candidate(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("client,patient,film,rating\nnorth,p,x,1\n")
    assert read_source(path, group="client").users.tolist() == ["p"]
    with pytest.raises(DataError, match="more than one column could be the user: client, patient"):
        read_source(path)


def test_times_in_doubt_are_left_out_of_events_and_refused_for_splits(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("user,item,date,time\na,x,2001-01-01,10:30\nb,y,2001-01-02,11:30\n")
    found = read_source(path, events=EventOptions())
    assert found.times is None
    assert any("more than one column could be the time: date, time" in note for note in found.notes)
    with pytest.raises(DataError, match="could be the time: date, time"):
        read_source(path, times=True, events=EventOptions())


def test_what_is_told(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("Kunde,Artikel,Note,wann\na,x,1,5\nb,y,2,6\n")
    assert read_source(path, ["Kunde", "Artikel", "Note"]).notes == ()
    frame = pd.read_csv(path)
    assert as_ratings(frame).notes[0].startswith("columns: user = Kunde, item = Artikel, rating = Note (guessed")
    path.write_text("1,2,3,1000000000\n4,5,1,1000000001\n")
    assert read_source(path).notes == (
        "columns: user = first, item = second, rating = third (guessed, as there is no header; "
        "a first line with names would tell)",
    )
    weighed = EventOptions(weights={"view": 1})
    path.write_text("Kunde,Artikel,event,datetime\na,x,view,2001-01-01\n")
    assert read_source(path, events=weighed).notes == (
        "columns: user = Kunde, item = Artikel, time = datetime, event = event "
        "(guessed; --columns USER,ITEM,,TIME and --event COLUMN to change)",
    )


def test_commands_tell_on_stderr(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(
        "Kunde;Artikel;Bewertung\n" + "".join(f"{u};{i};{(u + i) % 5}\n" for u in range(6) for i in range(5))
    )
    line = "columns: user = Kunde, item = Artikel, rating = Bewertung (guessed; --columns USER,ITEM,RATING to change)\n"
    run = tmp_path / "run"
    options = "--preset", "fast", "--rank", "1", "--rounds", "1", "--clients", "2"
    done = [
        fedmc("train", path, *options, "--json", "--out", run),
        fedmc("prepare", path, "--out", tmp_path / "shards"),
        fedmc("catalogue", "make", path, "--out", tmp_path / "c.json"),
        fedmc("catalogue", "check", tmp_path / "c.json", path),
        fedmc("evaluate", run, path, "--include-seen", "--json"),
    ]
    for one in done:
        assert one.returncode == 0, one.stderr
        assert line in one.stderr
        assert "columns:" not in one.stdout
    assert json.loads(done[-1].stdout)

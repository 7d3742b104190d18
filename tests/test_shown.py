"""Notebook manners: ratings, models and estimators as HTML, progress for `verbose`, `on_round` and `plot_history`."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.model_selection import GridSearchCV

from fedmc import FedMC, Ratings, load
from fedmc.data.loading import read_source
from fedmc.progress import Progress
from tests.conftest import planted

SMALL = {"rank": 2, "clients": 3, "rounds": 4}
EVIL = '<script>alert("x")</script>&\x1b[31m'


class Cells(HTMLParser):
    """The texts of the cells of each table; every tag must be one of a few and closed."""

    def __init__(self, text):
        super().__init__()
        self.tables, self.open, self.text = [], [], ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        assert tag in ("div", "table", "caption", "thead", "tbody", "tr", "th", "td"), tag
        assert all(name in ("style", "scope") for name, _ in attrs)
        self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        self.text = ""

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        if tag in ("th", "td"):
            self.tables[-1][-1].append(self.text)

    def handle_data(self, data):
        self.text += data


def facts(shown):
    return dict(Cells(shown).tables[0])


def test_ratings():
    times = [0, 86_400, 5, 1_000_000_000]
    ratings = Ratings.from_arrays([1, 1, 2, 3], [10, 20, 10, 30], [3.0, 4.5, 5.0, 1.0], times)
    first, example = Cells(ratings._repr_html_()).tables
    assert dict(first) == {
        "users": "3", "items": "3", "ratings": "4", "known": "44 % of all pairs", "values": "1 to 5, mean 3.375",
        "times": "1970-01-01 to 2001-09-09",
    }  # fmt: skip
    assert example[0] == ["user", "item", "rating", "time"]
    assert example[1] == ["1", "10", "3", "1970-01-01 00:00:00"]
    assert example[-1] == ["3", "30", "1", "2001-09-09 01:46:40"]
    assert repr(ratings) == "Ratings(3 users x 3 items, 4 ratings)"


def test_large_and_empty_ratings():
    table = planted(users=60, items=30)
    first, example = Cells(table._repr_html_()).tables
    assert dict(first)["ratings"] == f"{len(table):,}"
    assert len(example) == 1 + 5
    nothing = table.with_entries(np.zeros(len(table), bool))
    assert facts(nothing._repr_html_()) == {"users": "60", "items": "30", "ratings": "0"}


def test_clients_of_a_column(tmp_path):
    (tmp_path / "r.csv").write_text("user,item,rating,site\n1,1,2,north\n2,1,3,south\n")
    assert facts(read_source(tmp_path / "r.csv", group="site")._repr_html_())["clients"] == "2"


@pytest.mark.parametrize("make", ["ids", "titles"])
def test_markup_is_escaped(make):
    table = planted()
    users, items = (np.array([f"{EVIL}{k}" for k in range(len(ids))]) for ids in (table.users, table.items))
    evil = replace(table, users=users, items=items)
    model = FedMC(**SMALL).fit(evil if make == "ids" else table).model_
    if make == "titles":
        model = replace(model, titles=items)
    for shown in (evil._repr_html_(), model._repr_html_()):
        assert "<script" not in shown
        assert "\x1b" not in shown
        assert "&lt;script&gt;alert(&quot;x&quot;)&lt;/script&gt;&amp;\\x1b[31m" in shown
        Cells(shown)


def test_a_long_title_is_cut():
    model = replace(FedMC(**SMALL).fit(planted()).model_, titles=np.array(["y" * 300] * len(planted().items)))
    longest = max(len(cell) for row in Cells(model._repr_html_()).tables[1] for cell in row)
    assert longest == 80


def test_a_model(tmp_path):
    table = planted()
    fitted = FedMC(**SMALL, privacy="secagg", min_cohort=3).fit(table)
    titles = np.array([f"Film {item}" for item in table.items])
    model = replace(fitted.model_, titles=titles)
    first, example = Cells(model._repr_html_()).tables
    known = dict(first)
    assert [known[name] for name in ("preset", "rank", "clients")] == ["bayes", "2", "3"]
    assert [known[name] for name in ("users", "items", "ratings")] == [
        f"{n:,}" for n in (len(table.users), len(table.items), len(table))
    ]
    assert known["privacy"].startswith("privacy secagg: the server sees sums")
    counts = np.bincount(table.matrix.indices)
    assert example[0] == ["item", "ratings", "title"]
    assert example[1] == [str(table.items[counts.argmax()]), str(counts.max()), titles[counts.argmax()]]
    model.save(tmp_path / "model.npz")
    assert load(tmp_path / "model.npz")._repr_html_() == model._repr_html_()
    pairs = table.users[table.rows()], table.items[table.matrix.indices]
    events = FedMC(**SMALL, feedback="implicit").fit(pairs).model_
    assert facts(events._repr_html_())["events"] == f"{len(table):,}"


def test_an_estimator():
    """Before fit what scikit-learn shows; then the model, the rounds and the last errors."""
    estimator = FedMC(**SMALL, validation=0.2)
    before = estimator._repr_mimebundle_()
    assert "sk-container" in before["text/html"]
    assert estimator._repr_html_() == "<pre>FedMC(rank=2, clients=3, rounds=4, validation=0.2)</pre>"
    estimator.fit(planted())
    bundle = estimator._repr_mimebundle_()
    assert bundle["text/plain"] == "FedMC(rank=2, clients=3, rounds=4, validation=0.2)"
    known = facts(bundle["text/html"])
    last = estimator.rounds_[-1].diagnostics
    assert known["rounds"] == "4"
    assert known["RMSE of validation ratings"] == f"{last.validation_rmse:.4f}"
    assert known["RMSE of training ratings"] == f"{last.train_rmse:.4f}"
    assert len(bundle["text/html"]) < 5_000
    search = GridSearchCV(FedMC(**SMALL), {"rank": [1, 2]}, cv=2)
    assert "sk-container" in search._repr_html_()


def rounds_of(count):
    """A run's rounds, of which only every second is measured."""
    found = []
    FedMC(**SMALL | {"rounds": count}, measure_every=2, on_round=found.append).fit(planted())
    return found


def lines(text):
    return [line for line in text.split("\n") if line]


def test_progress_in_a_script(capsys):
    """Without a terminal, about ten lines of a run; each round with verbose=2; nothing with 0."""
    FedMC(2, clients=2, rounds=40, verbose=1).fit(planted())
    out, err = capsys.readouterr()
    assert out == ""
    told = lines(err)
    assert [int(re.match(r"round (\d+)/40", line)[1]) for line in told] == list(range(0, 41, 4))
    assert re.fullmatch(r"round 40/40  RMSE 0\.\d{4}  \d+\.\d s", told[-1])
    FedMC(**SMALL, verbose=2).fit(planted())
    assert [line.split()[1] for line in lines(capsys.readouterr().err)][-4:] == ["1/4", "2/4", "3/4", "4/4"]
    FedMC(**SMALL).fit(planted())
    assert capsys.readouterr().err == ""


def test_progress_in_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    FedMC(**SMALL, verbose=1).fit(planted())
    err = capsys.readouterr().err
    assert err.endswith("\n")
    assert err.count("\n") == 1
    assert [part.split()[1] for part in err.split("\r")[1:]][-1] == "4/4"


def test_progress_in_a_notebook(capsys, monkeypatch):
    """One output that is replaced, with a bar; nothing on stderr."""
    shown = []

    def display(line, display_id):
        shown.append(line)
        return SimpleNamespace(update=shown.append)

    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    FedMC(**SMALL, verbose=1).fit(planted())
    assert capsys.readouterr().err == ""
    assert [line.number for line in shown][-1] == 4
    assert 'value="4" max="4"' in shown[-1]._repr_html_()
    assert re.fullmatch(r"round 4/4  RMSE 0\.\d{4}  \d+\.\d s", repr(shown[-1]))


def test_a_line_keeps_the_last_measurement(capsys):
    progress = Progress(5, 2)
    for round in rounds_of(5):
        progress(round)
    told = lines(capsys.readouterr().err)
    measured = [re.search(r"RMSE (\S+)", line)[1] for line in told[1:]]
    assert len(set(measured)) < len(measured)


def test_on_round_and_the_history():
    """Callbacks see each round, True ends training, and the history is a table and a figure."""
    seen = []
    stop = lambda round: round.number == 3  # noqa: E731
    fitted = FedMC(2, clients=2, rounds=10, on_round=[seen.append, stop]).fit(planted())
    assert fitted.n_rounds_ == 3
    assert [round.number for round in seen] == [round.number for round in fitted.rounds_] == [0, 1, 2, 3]
    table = fitted.history_
    assert table.index.name == "round"
    assert table.train_rmse.iloc[-1] == fitted.rounds_[-1].diagnostics.train_rmse
    (axes,) = fitted.plot_history().axes
    (line,) = axes.lines
    assert line.get_ydata()[-1] == pytest.approx(table.train_rmse.iloc[-1])
    assert fitted.plot_history("objective").axes[0].lines[0].get_ydata()[-1] == pytest.approx(table.objective.iloc[-1])

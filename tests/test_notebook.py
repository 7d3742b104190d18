"""The notebooks of the tutorial are stored without outputs, run from first cell to last, and say what is so."""

from __future__ import annotations

from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="needs the extra `docs`")

site = pytest.importorskip("docs.site_parts.notebook")
FOLDER = Path(__file__).parents[1] / "docs" / "tutorial"
PATH, EQUATIONS = FOLDER / "notebook.ipynb", FOLDER / "equations.ipynb"
CLAIMS = "assert 0.5 < together < 0.9\nassert all(alone > joint for _, _, alone, joint in errors)"


def read(path=PATH):
    return nbformat.read(path, as_version=4)


@pytest.mark.parametrize(("path", "sections"), [(PATH, 3), (EQUATIONS, 4)])
def test_is_stored_without_outputs(path, sections):
    found = read(path)
    nbformat.validate(found)
    code = [cell for cell in found.cells if cell.cell_type == "code"]
    assert [cell for cell in code if cell.outputs or cell.execution_count is not None] == []
    assert path.stat().st_size < 20_000
    steps = [cell.source.partition("\n")[0] for cell in found.cells if cell.source.startswith("## ")]
    assert [step[:5] for step in steps] == [f"## {number}." for number in range(1, sections + 1)]


def test_as_a_page():
    cells = [
        nbformat.v4.new_markdown_cell("# Title"),
        nbformat.v4.new_code_cell(
            "print(1)\n2",
            outputs=[
                nbformat.v4.new_output("stream", name="stdout", text="1\n"),
                nbformat.v4.new_output("stream", name="stderr", text="a warning"),
                nbformat.v4.new_output("execute_result", data={"text/plain": "2"}),
            ],
        ),
    ]
    page = site.markdown(nbformat.v4.new_notebook(cells=cells))
    assert page == "# Title\n\n```python\nprint(1)\n2\n```\n\n```text\n1\n2\n```\n"


@pytest.mark.slow
def test_runs_and_holds_what_it_says():
    found = read()
    found.cells.append(nbformat.v4.new_code_cell(CLAIMS))
    site.execute(found)
    page = site.markdown(found)
    assert "organisations together: 0." in page
    assert "Interval(prediction=" in page
    assert "Effect(kind='mean'" in page


@pytest.mark.slow
def test_the_equations_give_the_same_iterates():
    found = read(EQUATIONS)
    found.cells.append(nbformat.v4.new_code_cell("assert 0 < largest < 1e-12 and round.number == K\nassert rmse < 1.1"))
    site.execute(found)
    page = site.markdown(found)
    assert page.count("V differs by") == 7  # the cell, and what six rounds print

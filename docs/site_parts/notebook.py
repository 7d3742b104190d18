"""The notebook as a page: its cells as Markdown and, unless `-D notebook_outputs=0`, what they print."""

from __future__ import annotations

import nbformat
from docutils import nodes
from myst_parser.sphinx_ import Parser
from nbclient import NotebookClient


class NotebookParser(Parser):
    """Reads `.ipynb` files. The notebook is stored without outputs; they are made here."""

    supported = ("notebook",)

    def parse(self, inputstring: str, document: nodes.document) -> None:
        notebook = nbformat.reads(inputstring, as_version=4)
        if document.settings.env.config.notebook_outputs:
            execute(notebook)
        super().parse(markdown(notebook), document)


def execute(notebook: nbformat.NotebookNode) -> None:
    """Run the cells in this Python; the notebook then has their outputs. Sockets of files, so that no port is open."""
    client = NotebookClient(notebook, timeout=300, kernel_name="python3")
    client.create_kernel_manager().transport = "ipc"
    client.execute()


def markdown(notebook: nbformat.NotebookNode) -> str:
    """The cells one after the other; text that a cell prints follows it."""
    parts = []
    for cell in notebook.cells:
        parts.append(cell.source if cell.cell_type == "markdown" else _fenced(cell.source, "python"))
        printed = "".join(_text(one) for one in cell.get("outputs", []))
        parts += [_fenced(printed.rstrip(), "text")] if printed.strip() else []
    return "\n\n".join(parts) + "\n"


def _text(output: nbformat.NotebookNode) -> str:
    if output.output_type == "stream":
        return str(output.text) if output.name == "stdout" else ""
    return str(output.get("data", {}).get("text/plain", ""))


def _fenced(text: str, language: str) -> str:
    return f"```{language}\n{text}\n```"

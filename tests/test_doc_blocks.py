"""No block of code in the documentation goes unchecked: it is run by a test, or its commands parse.

Fenced `python` and `sh` blocks are run as they stand; `RUN` says by which test. In indented listings and in the text,
every `fedmc` command must have the options that the documentation gives it. Listings of other programs are listed in
`OTHERS`, each with the reason why no test runs it.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from tests.parsing import find, parse

ROOT = Path(__file__).parents[1]
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])
RUN = {
    "README.md": "test_readme.py",
    "docs/how-to/add-what-you-know.md": "test_docs.py",
    "docs/how-to/benchmark.md": "test_benchmark.py",
    "docs/how-to/export.md": "test_export.py",
    "docs/how-to/extend.md": "test_docs.py",
    "docs/how-to/scikit-learn.md": "test_docs.py",
    "docs/how-to/serve.md": "test_serving_live.py",
    "docs/how-to/study.md": "test_study.py",
    "docs/tutorial/events.md": "test_docs.py",
    "docs/tutorial/first-model.md": "test_docs.py",
}
OTHERS = {  # first words of commands of other programs in listings
    "make": "the targets that CI runs",
    ".venv/bin/python": "pytest itself",
    ".venv/bin/pip": "needs the package index",
    "pip": "needs the package index",
    "git": "needs a remote",
    ".ci/run": "runs all tests",
    "ssh": "needs another machine",
    "podman": "needs a container engine; tests/test_deployment.py checks the files that it reads",
    "sudo": "needs root",
    "cd": "only changes the folder",
    "export": "only sets variables",
    "for": "a loop; the commands inside are checked",
    "done": "a loop",
    "head": "prints the beginning of a file",
    "docker": "needs a container engine",
    "kubectl": "needs a Kubernetes cluster",
    "curl": "asks a server; the block that starts one is run",
}
PROGRAMS = {
    *OTHERS,
    "cp",
    "kubectl",
    "openssl",
    "python",
    "rsync",
    "scp",
    "systemctl",
    "mv",
    "rm",
    "tar",
    "sqlite3",
    "journalctl",
    "wget",
    "apt-get",
    "uv",
    "npm",
    "node",
    "java",
}
FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
PROMPT = re.compile(r"^(?:FEDMC_DATA=\S+ |FEDMC_EXAMPLES=\S+ )?(?:\.venv/bin/)?fedmc ")


def name(page):
    return str(page.relative_to(ROOT))


def listings(page):
    """The lines of indented listings and of `sh` blocks; a line that ends with a backslash goes on in the next."""
    text = page.read_text(encoding="utf-8")
    fenced = [body for language, body in FENCE.findall(text) if language == "sh"]
    indented = [line[4:] for line in FENCE.sub("", text).splitlines() if line.startswith("    ")]
    joined = re.sub(r"\\\n\s*", "", "\n".join([*fenced, *indented]))
    return [line.strip() for line in joined.splitlines() if line.strip()]


def words_of(line):
    """Without what a shell takes off: a comment, a redirection, a further command; or an explanation after blanks."""
    line = re.sub(r"\$\(\([^)]*\)\)", "1", line)
    line = re.split(r"\s#|\s{3,}|[;|>&]", line.replace("...", ""))[0]
    return line.strip()


def commands(page):
    return [words_of(line)[PROMPT.match(line).end() :] for line in listings(page) if PROMPT.match(line)]


LINES = [(name(page), line) for page in PAGES for line in commands(page)]


@pytest.mark.parametrize(("page", "line"), LINES, ids=[f"{page}: {line}"[:100] for page, line in LINES])
def test_a_command_of_a_listing_parses(page, line):
    parse(line)


def spans(page):
    """The commands in the running text and in tables, as far as they are written out."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for span in re.findall(r"(?<!`)`fedmc ([^`]+)`", text):
        yield span.replace("\n", " ").replace("...", "")


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_command_in_the_text_has_these_options(page):
    for span in spans(page):
        words = shlex.split(words_of(span))
        if not words or words[0].isupper():
            continue
        command, context, rest = find(words)
        known = {flag for one in command.get_params(context) for flag in (*one.opts, *one.secondary_opts)}
        end = rest.index("--") if "--" in rest else len(rest)
        strange = [word for word in rest[:end] if re.match(r"--?[a-z]", word) and word.partition("=")[0] not in known]
        assert strange == [], f"fedmc {span}"


def test_every_fenced_block_is_run_by_a_test():
    blocks = {name(page) for page in PAGES if {"python", "sh"} & {kind for kind, _ in FENCE.findall(page.read_text())}}
    assert blocks == set(RUN)
    for page, test in RUN.items():
        source = (ROOT / "tests" / test).read_text(encoding="utf-8")
        assert page.removeprefix("docs/") in source or Path(page).stem in source, f"{test} does not read {page}"


def test_every_other_program_has_a_reason_why_it_is_not_run():
    used = {line.split()[0] for page in PAGES for line in listings(page)} & PROGRAMS
    assert used - set(OTHERS) == set()
    assert set(OTHERS) - used == set()


def test_a_wrong_command_would_be_found():
    with pytest.raises(click.ClickException):
        parse(words_of("train ratings.csv --clients 20 --no-such-option   # a comment"))
    assert words_of("node start FOLDER   # at west") == "node start FOLDER"

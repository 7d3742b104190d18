"""The documentation as a site: it builds without warnings, reaches every page, and fetches nothing from elsewhere."""

from __future__ import annotations

import functools
import http.server
import json
import re
import subprocess
import sys
import threading
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

DOCS = Path(__file__).parents[1] / "docs"
FETCHED = {("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("link", "href")}


class Page(HTMLParser):
    """The links of a page, what it loads, and its anchors."""

    def __init__(self, path):
        super().__init__()
        self.links, self.loads, self.anchors = [], [], set()
        self.text = path.read_text(encoding="utf-8")
        self.feed(self.text)

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name == "id":
                self.anchors.add(value)
            elif (tag, name) == ("a", "href"):
                self.links.append(value)
            elif (tag, name) in FETCHED:
                self.loads.append(value)


def build(folder, *more):
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", *more, str(DOCS), str(folder)]
    return subprocess.run(command, cwd=folder.parent, capture_output=True, text=True, timeout=240)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site") / "html"
    done = build(folder, "-D", "notebook_outputs=0")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return folder


@pytest.fixture(scope="module")
def pages(site):
    return {path: Page(path) for path in site.rglob("*.html") if "_static" not in path.parts}


def targets(path, page):
    """The files of the site that a page links to, each with its anchor."""
    for link in page.links:
        parts = urlsplit(link)
        if not parts.scheme and not parts.netloc:
            yield (path.parent / unquote(parts.path)).resolve() if parts.path else path, unquote(parts.fragment)


def test_every_page_is_reached_from_the_index(site, pages):
    found, waiting = set(), [site / "index.html"]
    while waiting:
        path = waiting.pop()
        if path in found or path not in pages:
            continue
        found.add(path)
        waiting += [target for target, _ in targets(path, pages[path])]
    sources = {
        path.relative_to(DOCS).with_suffix(".html") for form in ("md", "ipynb") for path in DOCS.rglob(f"*.{form}")
    }
    sources = {path for path in sources if "_build" not in path.parts}
    assert len(sources) > 30
    assert sources <= {path.relative_to(site) for path in found}


def test_every_link_inside_leads_to_a_page_and_its_anchor(pages):
    wrong = [
        f"{path.name}: {target.name}#{anchor}"
        for path, page in pages.items()
        for target, anchor in targets(path, page)
        if not target.exists() or (anchor and target in pages and anchor not in pages[target].anchors)
    ]
    assert wrong == []


def test_the_navigation_is_that_of_the_index(pages, site):
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    listed = list(dict.fromkeys(re.findall(r"\(([\w/-]+)\.(?:md|ipynb)\)", index)))
    shown = re.findall(
        r'class="toctree-l1"><a class="reference internal" href="([\w/-]+)\.html"', pages[site / "index.html"].text
    )
    assert shown == listed


def test_search_knows_the_pages(site):
    index = re.search(r"\{.*\}", (site / "searchindex.js").read_text(encoding="utf-8"), re.S)
    known = json.loads(index.group())
    assert {"explanation/privacy", "reference/api", "tutorial/notebook"} <= set(known["docnames"])
    assert "FedMC" in json.dumps(known["objects"])


def test_nothing_is_loaded_from_elsewhere(site, pages):
    for path, page in pages.items():
        assert [load for load in page.loads if urlsplit(load).netloc] == [], path
    for style in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*['\"]?(https?:)?//", style.read_text(encoding="utf-8")), style


def test_the_reference_has_what_users_import(pages, site):
    import fedmc

    anchors = pages[site / "reference" / "api.html"].anchors
    assert {f"fedmc.{name}" for name in fedmc.__all__ if name != "__version__"} <= anchors
    assert {"fedmc.FedMC.fit", "fedmc.FedMC.predict", "fedmc.errors.DataError", "fedmc.problem.losses.Huber"} <= anchors


@pytest.fixture(scope="module")
def address(site):
    """The site on loopback."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *arguments):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.slow
def test_in_a_browser(address, browser):
    asked, backgrounds = [], set()
    for scheme in ("light", "dark"):
        context = browser.new_context(color_scheme=scheme, viewport={"width": 390, "height": 800})
        page = context.new_page()
        page.on("request", lambda request: asked.append(request.url))
        for name in ("index.html", "reference/api.html", "explanation/bayes.html", "tutorial/notebook.html"):
            page.goto(f"{address}/{name}")
            assert page.evaluate("document.scrollingElement.scrollWidth") <= 390, name
        page.goto(f"{address}/index.html")
        title = "node => node.clientHeight / parseFloat(getComputedStyle(node).lineHeight)"
        assert page.locator("h1").evaluate(title) < 2, "no word is broken"
        page.goto(f"{address}/how-to/serve.html")
        for what in (".highlight pre", ".table-wrapper"):
            wide = page.locator(what).evaluate_all(
                "all => all.filter(one => one.scrollWidth > one.clientWidth)"
                ".map(one => getComputedStyle(one).backgroundImage.includes('gradient'))"
            )
            assert wide, what
            assert all(wide), "what scrolls has a shade at its edge"
        backgrounds.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        page.goto(f"{address}/search.html?q=epsilon")
        page.wait_for_selector("ul.search li a")
        context.close()
    assert len(backgrounds) == 2
    assert {urlsplit(url).netloc for url in asked if not url.startswith("data:")} == {urlsplit(address).netloc}

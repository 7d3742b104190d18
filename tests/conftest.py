"""Shared pieces: small problems with planted factors, the real data where they are, and skips that fail in CI."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import hypothesis
import numpy as np
import pytest

from fedmc.data.partition import assign_users, make_shards
from fedmc.data.ratings import Ratings
from fedmc.training.local import LocalEngine

REAL = (
    "deployment", "flower", "flower_app", "flower_events", "flower_life", "flower_warm", "bundles", "gateway",
    "injection", "monitoring", "moves", "node_commands",
    "plugin_package", "policy_commands", "study",
)  # fmt: skip
REAL_PROCESSES = "real processes"
# FEDMC_EXAMPLES multiplies the examples of every property test; above 1 they are random, else the same every time.
MORE_EXAMPLES = float(os.environ.get("FEDMC_EXAMPLES", "1"))


def examples(number: int, **more) -> hypothesis.settings:
    """Settings of a property test with this many examples in `make test`; `make nightly` tries many times as many."""
    fixed = MORE_EXAMPLES <= 1
    count = max(1, round(number * MORE_EXAMPLES))
    return hypothesis.settings(max_examples=count, deadline=None, derandomize=fixed, print_blob=not fixed, **more)


def planted(users=40, items=15, rank=3, density=0.4, noise=0.1, seed=0) -> Ratings:
    """Ratings around 3 with planted factors; every user and every item has at least one."""
    rng = np.random.default_rng(seed)
    full = 3 + rng.normal(size=(users, rank)) @ rng.normal(size=(rank, items)) / np.sqrt(rank)
    full += noise * rng.normal(size=full.shape)
    mask = rng.random((users, items)) < density
    mask[np.arange(users), rng.integers(items, size=users)] = True
    mask[rng.integers(users, size=items), np.arange(items)] = True
    rows, columns = np.nonzero(mask)
    return Ratings.from_arrays(rows, columns, full[mask])


def local_engine(ratings: Ratings, clients: int, dtype="float64", seed=0, **parts) -> LocalEngine:
    return LocalEngine(make_shards(ratings, assign_users(len(ratings.users), clients, seed), dtype, **parts))


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder with ml-1m and ml-100k."""
    folder = Path(os.environ.get("FEDMC_DATA", "/nonexistent"))
    if not (folder / "ml-1m" / "ratings.dat").is_file():
        pytest.skip("set FEDMC_DATA to a folder that holds ml-1m/ratings.dat and ml-100k/u.data")
    return folder


@pytest.fixture(scope="module")
def browser():
    """A real Chromium, for all tests of a module."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("needs a Chromium: apt-get install chromium")
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture(scope="module")
def loopback(tmp_path_factory):
    """A federation of real processes, for all tests of a module."""
    pytest.importorskip("flwr", reason="needs the extra `flower`")
    from tests.loopback import Loopback

    made = Loopback(tmp_path_factory.mktemp("flower"))
    try:
        made.start_all()
        yield made
    finally:
        made.end()


@pytest.fixture
def all_up(loopback):
    """The same federation with every process there, whatever a test before did to them."""
    loopback.start_missing()
    return loopback


def pytest_collection_modifyitems(items):
    """Modules of real processes take longest, and begin first."""
    items.sort(key=lambda item: group_of(item.nodeid) != REAL_PROCESSES)


def group_of(nodeid: str) -> str:
    """Tests of one group run on one worker: those of a module, and all that start real processes."""
    module = nodeid.partition("::")[0]
    return REAL_PROCESSES if Path(module).stem.removeprefix("test_") in REAL else module


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """So that modules of real processes never run side by side; xdist's own groups do nothing under pytest 9.2."""
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return group_of(nodeid)

    return ByGroup(config, log)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """Where everything must run (FEDMC_NO_SKIP=1), a skip is a failure."""
    outcome = yield
    report = outcome.get_result()
    if os.environ.get("FEDMC_NO_SKIP") == "1" and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped where nothing may be skipped: {report.longrepr}"

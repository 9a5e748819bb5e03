"""Hypothesis profiles, and the one cluster that tests with fixed inputs use.

`ci` (the default) draws the same examples every time and tries a part of the combinations, always the same one;
`--hypothesis-profile=thorough` draws many new examples, in proportion where a test says how many it draws in `ci`, and
tries all combinations (tests.helpers.examples).
"""

import gc
import signal
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.helpers.composing import composed_once
from tests.helpers.examples import CI, USUAL, outside_sample
from tests.helpers.strategies import SHARP
from zbench.cost.cost import Cost
from zbench.describe.cluster import Cluster
from zbench.describe.model import Model

# Of all tests a twentieth of a processor's time went into looking for garbage: modules and tests stay to the end.
gc.set_threshold(30_000)

TESTS = Path(__file__).parent
# Tests of several processes, which share fork servers where one worker has them, and those with the longest set-up.
FIRST = ("project", "correctness", "desk", "runtime", "anchors", "figures")

settings.register_profile(CI, max_examples=USUAL, deadline=None, derandomize=True, database=None)
settings.register_profile("thorough", max_examples=500, deadline=None)
settings.load_profile(CI)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """No garbage is looked for while tests are collected: what is made then stays."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Cases outside the sample are left out. The longest come first, so that workers, which take tests from one
    another, end together with short ones."""
    if left_out := outside_sample(items):
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]
    order = {TESTS / room: at for at, room in enumerate(FIRST)}
    items.sort(key=lambda item: min((order[path] for path in item.path.parents if path in order), default=len(FIRST)))


def pytest_collection_finish() -> None:
    """What all tests and their modules are, a million objects, is not looked through for garbage again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests keep choices (zbench.run.chosen) in a folder of their own, commands that they start too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp().parent / "cache"))
        yield


@pytest.fixture(scope="session", autouse=True)
def temporary_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Folders that torchrun and wandb make and leave are beside tests' own, of which pytest keeps the last three."""
    folder = tmp_path_factory.getbasetemp() / "left"
    folder.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        patch.setattr(tempfile, "tempdir", str(folder))
        yield


@pytest.fixture(scope="session", autouse=True)
def composing() -> Iterator[None]:
    """Commands in the tests' process compose their configuration from what was composed before."""
    with composed_once():
        yield


@pytest.fixture(scope="session")
def uneven() -> Cost:
    """3 nodes of 5 GPUs and 2 NICs, 6 query and 3 kv heads: nothing divides anything."""
    cluster = Cluster("uneven", 3, 5, 2, 25e9, 0.8, 1.5e-5, 2e11, 0.6, 1e-5, SHARP)
    model = Model("uneven", num_layers=2, hidden=16, num_heads=6, num_kv_heads=3, head_dim=4, ffn_hidden=32, vocab=64)
    return Cost(cluster, model)


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that the test starts have one thread each: tests run beside each other, and threads that share a busy core
    wait for each other, a hundred times longer than they compute here."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="module")
def one_torch_thread() -> Iterator[None]:
    """Torch has one thread in this process, as ranks have with `one_thread`."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT reaches what the test starts, although pytest itself may ignore it (started in the background)."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)

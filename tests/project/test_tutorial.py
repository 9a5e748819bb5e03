"""docs/tutorial, done by a new user: every page in an empty folder, its files written and its commands run, in order.

A fenced block marked bash is run, line by line; one marked python or yaml is a file, named by its first line.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.commands import called
from tests.project.test_recipe import ROOT, run

PAGES = sorted((ROOT / "docs" / "tutorial").glob("*.md"))
COMMAND = re.compile(r"(PYTHONPATH=mine )?python -m (zbench[.\w]*) ")
SITE = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--config-file", str(ROOT / "mkdocs.yml")]


def blocks(page: Path) -> list[tuple[str, str]]:
    """(kind, text) of every fenced block."""
    return re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def line_of(command: str) -> str | None:
    """Returns how a command begins that this process, which has imported everything, can do as well; None where the
    shell has something to do with it."""
    found = COMMAND.match(command)
    return found[0] if found and not re.search(r"[|&;<>$]|--help", command) else None


def as_typed() -> dict[str, tuple[str, str]]:
    """Returns the first (page, command) of all pages that begins in each way."""
    first: dict[str, tuple[str, str]] = {}
    for page in PAGES:
        for kind, text in blocks(page):
            for command in text.strip().split("\n") if kind == "bash" else ():
                if begins := line_of(command):
                    first.setdefault(begins, (page.stem, command))
    return first


def typed(command: str, page: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs a command in a shell, as typed, if it is the first that begins so, or nothing but a shell can do it; else in
    this process, which starts nothing and finds what is compiled and chosen already."""
    begins = line_of(command)
    if begins is None or as_typed()[begins] == (page, command):
        return run(command, folder)
    found = COMMAND.match(command)
    assert found is not None
    with pytest.MonkeyPatch.context() as patch:
        if found[1]:
            patch.syspath_prepend(folder / "mine")
        done = called(*shlex.split(command[found.end() :], comments=True), folder=folder, module=found[2])
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(folder)):  # the next page may have another one
            del sys.modules[name]
    return done


def test_every_page_but_the_first_has_commands() -> None:
    """What the tests do not run is on the first page (installing) and of a cluster that is not here."""
    for page in PAGES:
        kinds = [kind for kind, _ in blocks(page)]
        assert set(kinds) <= {"bash", "python", "yaml", ""}, page
        assert ("bash" in kinds) == (page.stem != "index"), page
        assert all(text.startswith("# ") for kind, text in blocks(page) if kind in ("python", "yaml")), page
        assert kinds.count("") == (page.stem in ("index", "training")), page


@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", [page for page in PAGES if page.stem != "index"], ids=lambda page: page.stem)
def test_every_command_of_a_page_works(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))  # no login of whoever runs the tests
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for kind, text in blocks(page):
        if kind in ("python", "yaml"):
            path = tmp_path / text.split("\n", 1)[0].removeprefix("# ")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        for command in text.strip().split("\n") if kind == "bash" else ():
            done = typed(command, page.stem, tmp_path)
            assert done.returncode == 0, f"{command}\n{done.stderr}"
            assert "Traceback" not in done.stderr, command
            if "--fail-over" in command:
                assert "worse: node_rings on longtail_128k" in done.stdout
                assert done.stdout.endswith("slower\n")


def test_the_site_builds_without_a_warning_and_loads_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [*SITE, "--site-dir", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    pages = sorted(tmp_path.rglob("*.html"))
    assert len(pages) > len(list((ROOT / "docs").rglob("*.md")))
    for page in pages:
        assert not re.findall(r'<(?:script|img|iframe|source)[^>]*\ssrc="(?:https?:)?//', page.read_text()), page
        assert not re.findall(
            r'<link[^>]*rel="(?:stylesheet|preconnect|icon)"[^>]*href="(?:https?:)?//', page.read_text()
        ), page

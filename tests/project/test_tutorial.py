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
COMMAND = "python -m zbench "
SITE = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--config-file", str(ROOT / "mkdocs.yml")]


def blocks(page: Path) -> list[tuple[str, str]]:
    """(kind, text) of every fenced block."""
    return re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def typed(command: str, folder: Path, is_first: bool) -> subprocess.CompletedProcess[str]:
    """Runs a command as typed. A run of zbench that is not the page's first is done in this process, which has imported
    everything, unless the shell has something to do with it."""
    if is_first or not command.startswith(COMMAND) or re.search(r"[|&;<>$]|--help", command):
        return run(command, folder)
    return called(*shlex.split(command.removeprefix(COMMAND), comments=True), folder=folder)


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
    is_first = True
    for kind, text in blocks(page):
        if kind in ("python", "yaml"):
            path = tmp_path / text.split("\n", 1)[0].removeprefix("# ")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        for command in text.strip().split("\n") if kind == "bash" else ():
            done, is_first = typed(command, tmp_path, is_first), False
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

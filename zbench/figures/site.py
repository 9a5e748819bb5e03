"""A hook of mkdocs (mkdocs.yml): pictures of results/paper, which are not under docs, as part of the site. An edge."""

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

_FROM, _TO = "](../results/paper/", "](pictures/"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pictures of results/paper to the site's files."""
    for path in sorted((Path(config.config_file_path).parent / "results" / "paper").glob("*.svg")):
        files.append(File.generated(config, f"pictures/{path.name}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replaces links to results/paper by links to the site's pictures."""
    return markdown.replace(_FROM, _TO)

"""A hook of mkdocs (mkdocs.yml): pictures and tables under results, outside of docs, are part of the site. An edge.

The pictures of results/paper become pictures/, the tables of results/docs become tables/. Pages link to these files
where they lie in the repository, so that the links work there, too; on the site they lead to the copies.
"""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

_RULES = (  # what a link in the repository is on the site; dots are the way up, the same in both but for one folder
    (re.compile(r"\]\(((?:\.\./)*)\.\./results/paper/"), r"](\1pictures/"),
    (re.compile(r"\]\(((?:\.\./)*)\.\./results/docs/"), r"](\1tables/"),
    (re.compile(r"\]\(\.\./\.\./docs/"), r"](../"),
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pictures of results/paper and the tables of results/docs to the site's files."""
    results = Path(config.config_file_path).parent / "results"
    for path in sorted((results / "paper").glob("*.svg")):
        files.append(File.generated(config, f"pictures/{path.name}", abs_src_path=str(path)))
    for path in sorted((results / "docs").glob("*.md")):
        files.append(
            File.generated(config, f"tables/{path.name}", abs_src_path=str(path), inclusion=InclusionLevel.NOT_IN_NAV)
        )
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replaces links to results/paper and results/docs by links to the site's copies."""
    for rule, on_site in _RULES:
        markdown = rule.sub(on_site, markdown)
    return markdown

"""Hooks of mkdocs: they build the site from the pages of the repository."""

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from site_pages import ADDED, ROOT, loaded_from_elsewhere, navigation, site_text


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.nav = navigation((ROOT / "docs" / "README.md").read_text("utf-8"))
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path, page in ADDED.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    if page.file.src_uri == "index.md":
        page.meta["hide"] = ["navigation"]
    known = {file.src_uri for file in files if file.inclusion.is_included()}
    return site_text(markdown, page.file.src_uri, known)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    if found := loaded_from_elsewhere(output):
        raise PluginError(f"{page.file.src_uri} loads from another host: {', '.join(found)}")
    return output

"""SQLite files as database URLs: absolute, because drivers work in folders of their own."""

from __future__ import annotations

from pathlib import Path


def absolute(url: str) -> str:
    """A URL whose relative SQLite path is seen from this folder; any other URL as it is."""
    scheme, separator, path = url.partition(":///")
    if not scheme.startswith("sqlite") or not separator or not path or path.startswith((":", "/")):
        return url
    return f"{scheme}:///{in_url(Path.cwd())}/{path}"


def sqlite_url(path: Path) -> str:
    """An SQLite file, as an absolute URL; its folder is made, readable by its owner only."""
    path = path.absolute()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    return f"sqlite:///{in_url(path)}"


def in_url(path: Path) -> str:
    """A path as part of a URL, where % and ? have a meaning."""
    return str(path).replace("%", "%25").replace("?", "%3F")

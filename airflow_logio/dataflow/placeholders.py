"""Run parameters in paths, ``{name}``: found when a pipeline is defined, filled when a run is (docs/parameters.md)."""

from __future__ import annotations

import os
import re
import string
from collections.abc import Collection, Mapping
from copy import copy
from pathlib import PurePosixPath
from typing import Any, Protocol, TypeVar

from airflow_logio.dataflow.names import check_name
from airflow_logio.errors import ConfigurationError, PipelineDefinitionError

_TEMPLATE = re.compile(
    r"\{\{\s*(params|var|conn|macros|dag_run|dag|task_instance|task|ti|run_id|logical_date|data_interval_\w+|prev_\w+|"
    r"ds|ds_nodash|ts|ts_nodash|ts_nodash_with_tz)\b[^}]*\}\}"
)
"""A template of Airflow: only arguments of its operators are filled."""
_SECRET = re.compile("secret|password|token|key", re.IGNORECASE)
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f]")


def placeholders_of(path: object, what: str = "path") -> frozenset[str]:
    """The parameters that a path refers to. Raises PipelineDefinitionError."""
    if not isinstance(path, str) or not path:
        raise PipelineDefinitionError(f"{what} is {path!r}; give a string")
    check_no_template(path, what, "{name}")
    try:
        fields = [(name, spec, conversion) for _, name, spec, conversion in string.Formatter().parse(path)]
    except ValueError as error:
        raise PipelineDefinitionError(f"{what} {path!r}: {error}") from error
    names = set()
    for name, spec, conversion in fields:
        if name is not None:
            if spec or conversion:
                raise PipelineDefinitionError(f"{what} {path!r}: write {{{name}}} without format or conversion")
            names.add(check_name("parameter", name))
    return frozenset(names)


def check_no_template(text: str, what: str, written: str) -> None:
    """Raises PipelineDefinitionError for a template of Airflow in a text in which parameters are `written` so."""
    if found := _TEMPLATE.search(text):
        raise PipelineDefinitionError(
            f"{what} {text[:60]!r} has the template {found[0]}, which Airflow fills in arguments of its operators only: "
            f"declare a run parameter (Pipeline(..., params={{'name': str}})), write it here as {written}, and give its "
            "value where the run is started: LogioPipelineGroup(params={'name': '{{ ds }}'})"
        )


def filled(path: str, placeholders: Collection[str], params: Mapping[str, Any], what: str = "path") -> str:
    """The path with its parameters. Raises ConfigurationError if one has no value."""
    if missing := sorted(set(placeholders) - set(params)):
        raise ConfigurationError(f"{what} {path!r} needs run parameter {missing[0]!r}, which has no value")
    return path.format_map({name: str(params[name]) for name in placeholders})


def resolved(path: str, placeholders: Collection[str], params: Mapping[str, Any]) -> str:
    """The path with its parameters, absolute: the driver that replays a read may have another working directory.

    Raises ConfigurationError if a parameter has no value, and for a URI with a secret in it.
    """
    path = filled(path, placeholders, params)
    if "://" not in path:
        return os.path.abspath(os.path.expanduser(path))
    _check_no_secret(path)
    return path


def _check_no_secret(uri: str) -> None:
    """What a source reads from stands in the log, in messages and on the page."""
    scheme, _, rest = uri.partition("://")
    before, _, query = rest.partition("?")
    authority = before.partition("/")[0]
    has_password = ":" in authority.rpartition("@")[0]
    if scheme in ("s3", "s3a", "gs", "gcs"):  # these have no ports, and a password may have a slash in it
        has_password = ":" in authority and "@" in before
    named = [one.partition("=")[0] for one in query.split("&") if "=" in one]
    if has_password or any(map(_SECRET.search, named)):
        raise ConfigurationError(
            f"a path of a source, {scheme}://..., has a password or a key in it, which all would see who see the log or "
            "messages about the file. Leave it out: drivers take credentials from their environment (AWS_ACCESS_KEY_ID, "
            "...), from ~/.aws, or from the role of the machine"
        )


def relative_folder(folder: object) -> str:
    """A folder below that of a connection, perhaps with parameters, as it is kept; empty for the connection's own.

    Raises PipelineDefinitionError.
    """
    if not isinstance(folder, str):
        raise PipelineDefinitionError(f"folder is {folder!r}; give a string, a relative path")
    path = PurePosixPath(folder)
    if path.is_absolute() or ".." in path.parts or "://" in folder:
        raise PipelineDefinitionError(
            f"folder {folder!r} is not allowed: give a relative path; the connection says what it is relative to"
        )
    return "" if folder in ("", ".") else str(path)


def folder_of_run(folder: str, params: Mapping[str, Any]) -> str:
    """A folder of `relative_folder` as a run with these parameters has it.

    A value is part of one name, and may be several only where it stands alone: ``{folder}/x``, not ``dt={day}``. Raises
    ConfigurationError for a value that would make it another folder than it looks.
    """
    if not set("{}") & set(folder):
        return folder
    filled(folder, placeholders_of(folder), params, "folder")
    names = [_name_for_run(folder, part, params) for part in PurePosixPath(folder).parts]
    try:
        return relative_folder("/".join(names))
    except PipelineDefinitionError as error:
        raise ConfigurationError(f"folder {folder!r} with the parameters of the run: {error}") from None


class _InFolder(Protocol):
    folder: str


_Writer = TypeVar("_Writer", bound=_InFolder)


def in_folder_of_run(writer: _Writer, params: Mapping[str, Any]) -> _Writer:
    """A writer, or a copy of it whose folder is that of a run with these parameters. Raises ConfigurationError."""
    if not set("{}") & set(writer.folder):
        return writer
    own = copy(writer)
    own.folder = folder_of_run(writer.folder, params)
    return own


def _name_for_run(folder: str, part: str, params: Mapping[str, Any]) -> str:
    here = placeholders_of(part)
    for parameter in sorted(here):
        value = str(params[parameter])
        if flaw := _flaw(value, is_alone=part == f"{{{parameter}}}"):
            raise ConfigurationError(
                f"folder {folder!r}: the value {value!r} of run parameter {parameter!r} {flaw}; give one that names a folder"
            )
    return filled(part, here, params)


def _flaw(value: str, *, is_alone: bool) -> str | None:
    """What a value makes of the name that it is part of, if that is not what it looks like."""
    if not value.strip():
        return "is empty"
    if _UNPRINTABLE.search(value):
        return "has characters that cannot be printed"
    if is_alone:
        return None if all(one.strip(".") for one in value.split("/")) else "has a part that names no folder"
    return "has a '/', which would make several folders of one" if "/" in value else None

"""The description of a run as the log stores it."""

from __future__ import annotations

import msgspec

from airflow_logio.errors import ConfigurationError
from airflow_logio.protocol.values import unstorable
from airflow_logio.store.records.run_records import RunSpec


def encode_spec(spec: RunSpec) -> str:
    """The stored form of a description. Raises `ConfigurationError` for what would not come back as it was given."""
    names = {"pipeline": spec.key.pipeline, "dag_id": spec.key.dag_id, "dag_run_id": spec.key.dag_run_id}
    for what, name in [*names.items(), *(("group", group) for group in spec.groups)]:
        if (reason := unstorable(name)) is not None:
            raise ConfigurationError(f"the {what} of a run cannot be {ascii(name)[:60]}: {reason}")
    try:
        text = msgspec.json.encode(spec).decode()
        same = msgspec.json.decode(text, type=RunSpec).params == dict(spec.params)
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ConfigurationError(f"the description of run {str(spec.key)!a} cannot be stored: {error}") from error
    if not same:
        raise ConfigurationError(
            f"the parameters of run {spec.key} cannot be stored as they are (a number such as nan or inf?): "
            f"{dict(spec.params)}"
        )
    return text

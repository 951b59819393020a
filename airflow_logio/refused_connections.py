"""Why a PostgreSQL server has refused a connection, by its SQLSTATE, which has no language.

libpq knows the code, and gives a client the sentence only, in the language of the server (`lc_messages`): a German one says
``Passwort-Authentifizierung ... fehlgeschlagen``. So a connection that was refused is asked for once more, so that libpq
writes the code instead of the sentence (PQERRORS_SQLSTATE). psycopg2 gives the address of its connection for such uses
(`pgconn_ptr`), and libpq is found where psycopg2 has it.
"""

from __future__ import annotations

import ctypes
import re
import select
import time
from collections.abc import Mapping
from functools import cache
from typing import Any

ASK_SECONDS = 5.0
"""How long the server may take to refuse once more: it hashes a password."""
REACH_SECONDS = 0.5
"""How long its host may take to answer. One that does not answer is not asked for its reasons."""
_SQLSTATE_ONLY = 3  # PQERRORS_SQLSTATE of libpq-fe.h, since version 12
_CODE = re.compile(r":\s+([0-9A-Z]{5})$", re.MULTILINE)
_FOR_URL = ("28", "3D", "42")
"""Classes of codes that a person mends in the URL or in the server's rights: who one is, which database, which settings."""


def is_for_person(codes: tuple[str, ...]) -> bool:
    """Whether all hosts of a URL have refused the connection for good. Others have no room, start, or are closed for now."""
    return bool(codes) and all(code.startswith(_FOR_URL) for code in codes)


def refusals(arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """The SQLSTATEs with which the server refuses a connection with these arguments of `psycopg2.connect`, one for each host.

    Empty if it does not refuse it, is out of reach, or libpq cannot be asked. Never raises.
    """
    verbosity = _verbosity()
    if verbosity is None:
        return ()
    import psycopg2

    try:
        connection = psycopg2.connect(**{**arguments, "async_": True})
    except psycopg2.Error:  # libpq has refused it by itself
        return ()
    try:
        verbosity(connection.pgconn_ptr, _SQLSTATE_ONLY)
        _await(connection)
    except psycopg2.Error as error:
        return tuple(_CODE.findall(str(error)))
    except (OSError, ValueError):  # its socket is gone
        return ()
    finally:
        connection.close()
    return ()


def _await(connection: Any) -> None:
    """Until the connection is there, refused, or the time is up."""
    from psycopg2.extensions import POLL_OK, POLL_READ

    begun = time.monotonic()
    reached = False
    while (wants := connection.poll()) != POLL_OK:
        reached = reached or wants == POLL_READ  # after the connection of its socket, the server has the word
        left = begun + (ASK_SECONDS if reached else REACH_SECONDS) - time.monotonic()
        socket = [connection.fileno()]
        reads, writes = (socket, []) if wants == POLL_READ else ([], socket)
        if left <= 0 or not any(select.select(reads, writes, [], left)):
            return


@cache
def _verbosity() -> Any:
    """`PQsetErrorVerbosity` of the libpq that psycopg2 uses; None if it is out of sight there."""
    import psycopg2.extensions

    try:
        found = ctypes.PyDLL(psycopg2._psycopg.__file__).PQsetErrorVerbosity
    except (OSError, AttributeError):
        return None
    found.argtypes, found.restype = [ctypes.c_void_p, ctypes.c_int], ctypes.c_int
    return found

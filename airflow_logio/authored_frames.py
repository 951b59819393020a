"""The part of a traceback that an author wants to see: their own code, not ours around it."""

from __future__ import annotations

import traceback
from pathlib import Path

_OURS = str(Path(__file__).parent) + "/"
_IMPORTS = "<frozen importlib"
MOST_FRAMES = 4


def authored_frames(error: BaseException) -> str:
    """The innermost frames outside this package, as lines of a traceback behind a newline; empty if there are none.

    Libraries that the author's code has called are shown with it: they are where it failed.
    """
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith((_OURS, _IMPORTS))
    ]
    if not frames:
        return ""
    shown = frames if len(frames) <= MOST_FRAMES else [frames[0], *frames[1 - MOST_FRAMES :]]
    return "\n" + "".join(traceback.format_list(shown)).rstrip()

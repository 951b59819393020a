"""Numbers with their nouns."""


def counted(many: int, name: str) -> str:
    """``1 event``, ``1,204 events``."""
    return f"{many:,} {name}{'' if many == 1 else 's'}"

"""The threads of sources: what is read, cleared up, and asked of external systems."""

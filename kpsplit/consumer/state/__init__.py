"""State of handlers: a local store per process, restored from changelog topics when slots move."""

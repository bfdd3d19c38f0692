"""Pages that load nothing: the demo's and the report of ``verify`` are made of these parts. Pure."""

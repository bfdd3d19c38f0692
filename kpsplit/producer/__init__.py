"""Drop-in producers that follow splits and merges."""

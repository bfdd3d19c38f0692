"""Wire forms of kpsplit's records (docs/wire-format.md): versioned, size-limited, strictly parsed."""

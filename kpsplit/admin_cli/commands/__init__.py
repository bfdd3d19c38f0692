"""The verbs of the command line, one per file; each is imported only when it is used."""

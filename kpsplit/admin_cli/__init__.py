"""The command line: one verb per file in ``commands``, tables in ``render``, everything else in ``kafka``."""

"""Reading: what is read of each log, which records of it are handed out, and how far they are processed."""

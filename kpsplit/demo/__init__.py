"""``kpsplit demo``: split, split again and merge a live partition under load, then check every record."""

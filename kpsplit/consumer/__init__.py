"""Reading logical partitions: along their lineage, each record once, in each key's order."""

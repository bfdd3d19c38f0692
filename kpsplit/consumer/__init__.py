"""Reading logical partitions: the drop-in Consumer with its engine, workers and state."""

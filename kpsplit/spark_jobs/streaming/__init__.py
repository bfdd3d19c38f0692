"""The logical view as a streaming DataFrame (``docs/adr/0002-streaming.md``).

Each micro-batch is planned on the driver along the lineage, as exact offsets of physical partitions:

    source (Spark's questions) ──▶ planner (what the cluster says now)
      │                              └──▶ plan (pure): what was asked, what the checkpoint remembers,
      │                                         from where to where, who reads what
      └▶ fetch, on the executors: exactly those offsets, as Arrow

The executors then decide what becomes of each record, by the native expressions of the batch view.
"""

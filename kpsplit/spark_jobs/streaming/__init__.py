"""The logical view as a streaming DataFrame (``docs/adr/0002-streaming.md``).

Each micro-batch is planned on the driver along the lineage, as exact offsets of physical partitions:

    source ──▶ reader (Spark's questions) ──▶ planner ──▶ lookout (what the cluster says now)
                  │                             ├──▶ plan (pure): from where to where, who reads what
                  │                             └──▶ offset (pure): what the checkpoint remembers
                  └▶ fetch (on the executors): exactly those offsets, as Arrow

What becomes of each record is decided behind it by the native expressions of the batch view.
"""

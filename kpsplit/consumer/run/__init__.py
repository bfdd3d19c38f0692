"""``Consumer.run``: records worked on by several workers at once, by key range.

======================  =================================================================================
``lanes``               which record is worked on next; pure
``policies``            what happens when a handler fails; pure
``outbox``              which outputs belong to a commit; pure
``work_queue``          the lanes under a lock: a sink for the engine, work for the workers
``workers``             threads, threads with a process each (``remote``), tasks of an event loop
``handlers``            what handlers are, what they get and return
``outputs``             dead letters, and outputs in the transaction of their commit
``runner``              one call of ``run()``
======================  =================================================================================
"""

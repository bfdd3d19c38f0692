"""``Consumer.run``: records worked on by several workers at once, by key range.

======================  =================================================================================
``lanes``               which record is worked on next, and which outputs belong to a commit; pure
``policies``            what happens when a handler fails; pure
``work_queue``          the lanes under a lock: a sink for the engine, work for the workers
``workers``             threads, threads with a process each, tasks of an event loop
``handlers``            what handlers are, what they get and return, and processes that call them
``outputs``             dead letters, and outputs in the transaction of their commit
``runner``              one call of ``run()``
======================  =================================================================================
"""

"""A real Kafka on this machine, for tests, demonstrations and trying things out.

KRaft nodes, each broker and controller at once, run as child processes on loopback. They end when the
process that started them ends, however it ends.
"""

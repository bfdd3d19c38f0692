"""The demo's consumer group: members that share the topic's key ranges while it is split and merged."""

"""The operator's use cases: what is done, and in which order. ``kpsplit.kafka`` talks to the brokers."""

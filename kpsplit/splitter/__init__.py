"""The pure core: standard library only; no clock, threads, I/O, randomness or Kafka."""

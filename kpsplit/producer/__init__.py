"""Drop-in producers that follow splits and merges."""

from kpsplit.producer.client import Producer, SerializingProducer
from kpsplit.producer.metrics import LayoutStats, PartitionStats

__all__ = ["Producer", "SerializingProducer", "LayoutStats", "PartitionStats"]

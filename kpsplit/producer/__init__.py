"""Drop-in producers that follow splits and merges."""

from kpsplit.producer.producer import Producer
from kpsplit.producer.serializing import SerializingProducer
from kpsplit.producer.statistics import LayoutStats, PartitionStats

__all__ = ["Producer", "SerializingProducer", "LayoutStats", "PartitionStats"]

"""Settings of one group at the brokers, by Kafka's own tool: librdkafka's admin client cannot."""

from __future__ import annotations

import subprocess

from kpsplit.devcluster.process import KafkaRuntime

SECONDS = 120.0


def set_group_config(bootstrap: str, group: str, **settings: object) -> None:
    """Change settings of a group; underscores stand for dots."""
    added = ",".join(f"{name.replace('_', '.')}={value}" for name, value in settings.items())
    who = ["--bootstrap-server", bootstrap, "--entity-type", "groups", "--entity-name", group]
    kafka = KafkaRuntime.find(heap_mb=128, log_level="ERROR")
    command = kafka.command("kafka.admin.ConfigCommand", *who, "--alter", "--add-config", added)
    ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert ended.returncode == 0, ended.stderr or ended.stdout

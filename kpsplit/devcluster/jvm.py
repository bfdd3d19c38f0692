"""Command lines for Kafka's classes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from kpsplit.devcluster.jars import ensure_jars, expected_jars
from kpsplit.devcluster.java import Java, find_java

_LOGGING = Path(__file__).with_name("log4j2.properties")

# Start quickly and stay small: one compiler, one collector thread, no performance data in /tmp.
_OPTIONS = (
    "-XX:MetaspaceSize=96m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "-XX:-UsePerfData",
    "-Djava.awt.headless=true",
    f"-Dlog4j2.configurationFile={_LOGGING}",
)


@dataclass(frozen=True, slots=True)
class KafkaRuntime:
    """What is needed to run Kafka's classes.

    Attributes:
        java: the runtime.
        jars: the folder with Kafka's jars.
        heap_mb: greatest heap of a process, in MiB.
        log_level: of log4j: ERROR, WARN, INFO, DEBUG.
        plugins: jars, or folders of classes, that are looked through besides Kafka's own.
    """

    java: Java
    jars: Path
    heap_mb: int = 384
    log_level: str = "INFO"
    plugins: tuple[Path, ...] = ()

    @classmethod
    def find(cls, *, heap_mb: int, log_level: str, plugins: tuple[Path, ...] = ()) -> Self:
        """With the Java of this machine, and jars that are downloaded if need be.

        Raises:
            KpsplitError: no Java, or no jars.
        """
        java = find_java()
        return cls(java, ensure_jars(java), heap_mb, log_level, plugins)

    def command(self, main_class: str, *arguments: str) -> list[str]:
        """The command that runs `main_class`, given with its package."""
        return [
            str(self.java.path),
            *_OPTIONS,
            # Room for new objects from the start: growing it bit by bit cost a broker 1 s of pauses a minute.
            *(f"-Xmn{self.heap_mb // 6}m", f"-Xms{self.heap_mb // 3}m", f"-Xmx{self.heap_mb}m"),
            f"-Dkpsplit.log.level={self.log_level}",
            *("-cp", os.pathsep.join(map(str, (*self._jars(), *self.plugins)))),
            main_class,
            *arguments,
        ]

    def _jars(self) -> list[Path]:
        """The jars by name, not ``*``: nothing that was put into the folder later is ever run."""
        return [self.jars / name for name in expected_jars()]

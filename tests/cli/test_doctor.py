"""`kpsplit doctor --forget`: what the doctor names is shown and removed, and nothing else."""

from __future__ import annotations

import secrets

from confluent_kafka import Producer

from kpsplit.compiled import in_use
from kpsplit.splitter.records.keys import PRODUCERS_TOPIC


def test_what_the_doctor_names_is_shown_and_removed(inline, bootstrap) -> None:
    keys = [f"two-{secrets.token_hex(4)}", secrets.token_hex(8)]
    writer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    writer.produce(PRODUCERS_TOPIC, b"SECRET", keys[0])
    writer.produce(PRODUCERS_TOPIC, b'{"v":99,"topics":["SECRET"]}', keys[1])
    assert writer.flush(30) == 0
    names = [f"producers/0:{key}" for key in keys]

    found = inline("doctor", "-o", "json")
    assert found.code == 3
    (here,) = [check["message"] for check in found.json["checks"] if check["name"] == "installation"]
    assert here == f"producing and reading are {in_use()} here"
    said = {record["name"]: record["check"] for record in found.json["set_aside"]}
    assert [said[name] for name in names] == ["garbage", "versions"]

    unknown = inline("doctor", "--forget", names[0], "--forget", "producers/0:another", "--yes")
    assert unknown.code == 2
    assert "names no record producers/0:another; nothing was removed" in unknown.error
    ran = inline.ok("doctor", "--forget", names[0], "--forget", names[1], "--yes", "-o", "json")
    assert ran.json == {"removed": sorted(names)}
    assert all(f"{name}: " in ran.err for name in names) and "SECRET" not in ran.err
    left = inline("doctor", "-o", "json").json["set_aside"]
    assert not {record["name"] for record in left} & set(names)

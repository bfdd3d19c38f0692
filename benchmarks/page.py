"""The table of the benchmarks, and docs/benchmarks.md made of what a run recorded. Pure: measures nothing.

A row compares kpsplit with a peer, or states an absolute time. ``SECTIONS`` owns what is measured, against
what, and the aim. The scripts of this folder fill in the values by the row's name.

The page ends with the record that it was made of, so a test can make it again and see whether a hand changed
it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import ceil
from statistics import median

RECORD_BEGIN, RECORD_END = "<!-- recorded by make bench: ", " -->"
SUMMARY_BEGIN, SUMMARY_END = "<!-- written by make bench -->", "<!-- end of what make bench writes -->"
SUMMARY = {
    "hot.4": "records/s of a partition that is the limit, split in 4, to not split",
    "hot.8": "the same, split in 8",
    "stamped.500.shared": "records/s, producing to an enrolled topic, one callback for all",
    "stamped.1.lambda": "the same, a `poll(0)` and a lambda for each record",
    "untouched.500.shared": "records/s, producing to a topic that is not enrolled",
    "pause.10.ratio": "writers' pause at a split or merge, 10 producers, to its bare round trips",
    "read.poll.unsplit": "records/s, `poll()`, not split",
    "read.consume.unsplit": "records/s, `consume(1000)`, not split",
    "read.poll.split": "records/s, `poll()`, each partition split in four",
    "handover": "time of a hand-over to a member that joins",
    "commit": "time of a range commit, to a transaction with offsets",
    "verify.count": "records/s, `kpsplit verify`, to a plain count in Spark",
    "start.consumer": "time to a consumer's first record",
}
"""The rows that README shows, each with what it says there."""


@dataclass(frozen=True)
class Row:
    """One line of the table.

    ``name``: for ``--only`` and in the record. ``aim``: at least so much, or at most if ``at_most``.
    ``unit``: empty for a ratio. ``quantile``: which of the values the aim is about, 0.5 for the median.
    """

    name: str
    what: str
    aim: float
    at_most: bool = False
    unit: str = ""
    quantile: float = 0.5

    def goal(self) -> str:
        """Return the aim as the page shows it."""
        return f"{'at most' if self.at_most else 'at least'} {shown(self.aim, self.unit)}"

    def missed_by(self, values: Sequence[float]) -> float:
        """Return by how much the values miss the aim; 0 or less: they meet it."""
        figure = quantile(values, self.quantile)
        return figure - self.aim if self.at_most else self.aim - figure


@dataclass(frozen=True)
class Section:
    """Rows that one script measures in the same way.

    ``script``: the module of this folder. ``method``: how it is measured. ``peer``: what it is compared with,
    and the settings of that. ``cost``: where the time goes, and what was tried.
    """

    title: str
    script: str
    method: str
    peer: str
    rows: tuple[Row, ...]
    cost: str = ""


@dataclass(frozen=True)
class Values:
    """What a run found for a row: a value for each pair, by the wall and by CPU, in the order of the run.

    ``cpu`` is empty where the client's processor time says nothing. ``note``: what helps to read the values.
    """

    wall: tuple[float, ...]
    cpu: tuple[float, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class Record:
    """One run of all scripts. ``failed``: by the script's name, why it has no values, or not all."""

    date: str
    minutes: float
    versions: Mapping[str, str]
    machine: str
    rows: Mapping[str, Values]
    failed: Mapping[str, str] = field(default_factory=dict)

    def encode(self) -> str:
        """Return the record as one line of JSON that an HTML comment can hold."""
        return json.dumps(asdict(self)).replace("-->", "--\\u003e")

    @classmethod
    def decode(cls, line: str) -> Record:
        """Return the record of such a line."""
        found = json.loads(line)
        rows = {
            name: Values(tuple(values["wall"]), tuple(values["cpu"]), values["note"])
            for name, values in found.pop("rows").items()
        }
        return cls(**found, rows=rows)


def joined(known: Record, later: Record) -> Record:
    """Return a record with the rows of a later run in the place of its own; their notes have the later date.

    Raises:
        ValueError: the two were made with different versions or on different machines.
    """
    if (known.versions, known.machine) != (later.versions, later.machine):
        raise ValueError("other versions or another machine than those of the page: run make bench")
    rows_now = {
        name: replace(values, note="; ".join(filter(None, (values.note, f"measured {later.date}"))))
        for name, values in later.rows.items()
    }
    again = {section.script for section, row in rows() if row.name in rows_now}
    failed = {script: why for script, why in known.failed.items() if script not in again}
    return replace(known, rows={**known.rows, **rows_now}, failed={**failed, **later.failed})


NOTHING = Record("", 0.0, {}, "", {})
"""The record before the first run."""

PAUSING = (1, 10, 100)
"""How many producers write while a partition is split and merged."""
LOOPS = {
    "500.shared": "`poll(0)` after every 500 records, one callback for all",
    "500.lambda": "`poll(0)` after every 500 records, a lambda for each record",
    "1.shared": "`poll(0)` after every record, one callback for all",
    "1.lambda": "`poll(0)` after every record, a lambda for each record",
}
"""What applications do around ``produce()``. The names: how many records for a poll, and the callback."""

HANDLER_MS, WORKERS = (1, 5, 20), (1, 16, 64, 256)
"""How long handlers wait, and how many workers call them."""
IDEAL_WORKERS = {64: 0.95, 256: 0.9}
"""With how many workers run() is compared with the ideal, and the aim."""

_PRODUCER_PEER = (
    "`confluent_kafka.Producer` with `enable.idempotence=true` and `acks=all`, which kpsplit enforces, and "
    "all else as librdkafka sets it, for both."
)

SECTIONS = (
    Section(
        "What a split gains on a hot partition",
        "hot_partition",
        "A topic of one partition has `flush.messages=1`: at each append the leader, and each follower, "
        "syncs the log and its indexes, and takes no other append of this partition meanwhile. A library "
        "that is preloaded into the three brokers replaces each sync by a wait of 10 ms, as if each "
        "broker had a slow disk of its own. So the limit is one of the partition, some 30 appends a "
        "second, and takes no processor time. 48 producers in four processes send the next record "
        "whenever one is reported; each has three in flight, a request each. Records have 100 bytes, and "
        "keys are uniform. The partition is split in 4, merged, split in 8, merged, and so on. Each time "
        "it settles for 2 s; the 5 s after that count. The ratio is that of records per second. A split "
        "spreads the leaders of its sub-topic over the parent's three replicas: 2, 1 and 1 of four, and "
        "3, 3 and 2 of eight. Brokers have `num.io.threads=64` and `num.replica.fetchers=8`, because a "
        "thread waits for each sync.",
        "The same producers on the same partition while it is not split, right before and after: the mean "
        "of the two.",
        (
            Row("hot.4", "records/s, split in 4", 3.5),
            Row("hot.8", "records/s, split in 8", 6.5),
        ),
        cost=(
            "the producers do not always have a record for each of the partitions. A broker works on one "
            "request of a connection at a time, and answers it when both followers have synced too and it "
            "has had the partition's lock once more, which the next appends hold. A simulation of just that "
            "reaches 3.8 to 3.9 and 7.3. A pause waits for what is in flight: 144 records here, at 30 a "
            "second. The share of busy processors counts all work on the machine. Tried: 24 producers (3.75 "
            "in 4, 6.42 in 8); 5 ms besides the sync itself, on the one disk that the brokers share (3.42 "
            "and 3.38 in 4, 4.95 and 5.72 in 8)."
        ),
    ),
    Section(
        "Producing to an enrolled topic",
        "producer",
        "Records of 100 bytes with a key to a topic of 6 partitions, from the first `produce()` to the last "
        "report. The ratio is that of records per second.",
        _PRODUCER_PEER
        + " It sends one header as large as kpsplit's stamp, in the same loop with the same callback.",
        tuple(Row(f"stamped.{name}", what, 1.0) for name, what in LOOPS.items()),
        cost=(
            "in kpsplit's calls, beside librdkafka's own, which are the same for both. Compiled, `produce()` "
            "costs 0.25 µs more than them (the key's hash, the segment, the number, the stamp, the lock, "
            "the report's binding), its report 0.09 µs, half of it for the clock, and a `poll(0)` "
            "0.12 µs; arguments by position save 0.2 µs. So 1.0 cannot be reached while the client's own "
            "methods are called: 1.44 µs of the thread's processor time stand against 1.27 µs, with "
            "librdkafka's mock cluster. Tried: a function "
            "with closure cells instead of methods, a lock made for it, one dictionary for all "
            "stamps, and one report function that is bound to the record; then compiled calls, and in them "
            "the stamp. [ADR 10](adr/0010-compiled-calls.md) compares them with the calls in Python, for "
            "which 0.85 is aimed at."
        ),
    ),
    Section(
        "Producing with a header of the application's",
        "producer",
        "As above; every record has one header of the application's. kpsplit adds its stamp to it.",
        _PRODUCER_PEER,
        tuple(Row(f"header.{name}", what, 0.95) for name, what in LOOPS.items()),
        cost=(
            "as above. A record has two headers where the peer's has one: another costs 0.2 µs in the client "
            "and in librdkafka. The application's are kept until the report, which does not have them. "
            "Tried: to keep them as a tuple, which the garbage collector looks at once (before: 0.68 of the "
            "peer by the thread's processor time, with librdkafka's mock cluster; now 0.75). With the calls "
            "in Python 0.8 is aimed at."
        ),
    ),
    Section(
        "Producing to a topic that is not enrolled",
        "producer",
        "As above, without headers.",
        _PRODUCER_PEER,
        tuple(Row(f"untouched.{name}", what, 0.97) for name, what in LOOPS.items()),
        cost=(
            "each call asks, with the lock and under the lease, whether the topic is enrolled "
            "meanwhile; a report is bound to the application's callback; and `poll(0)` takes a lock. "
            "Compiled, the lease's clock is read without a call of Python, records with the same callback "
            "share a report, and the garbage collector does not look at reports. Not done: to "
            "hand the callback to librdkafka as it is until some topic is enrolled. The library's thread may "
            "take the reports of records that are in flight then, and would run it "
            "([protocol.md, section 6.10](protocol.md#610-enrolment-seen-by-a-producer))."
        ),
    ),
    Section(
        "Latency of a producer at half load",
        "producer",
        "Time from `produce()` to the callback, at half of the rate that the peer reaches in this run when "
        "it sends as fast as it can. A portion is sent every two milliseconds; between portions the loop is "
        "in `poll()`. The ratio is that of the quantiles of each run.",
        _PRODUCER_PEER + " It sends one header as large as the stamp.",
        (
            Row("latency.p50", "p50", 1.05, at_most=True),
            Row("latency.p99", "p99", 1.05, at_most=True),
        ),
        cost=(
            "half of the peer's rate is most of what kpsplit's producer can do in one thread, so "
            "records queue in it. How long depends on the rate that the peer reached: at 64,000 records/s "
            "p50 was 1.02 of the peer's, at 149,000 it was 1.34. What makes `produce()` cheaper (above) "
            "makes the queue shorter; nothing else was tried."
        ),
    ),
    Section(
        "Writers' pause at a split and a merge",
        "pauses",
        "A partition is split in four and merged back, again and again, while producers (in at most ten "
        "processes) write 1,000 records/s together to the topic's 6 partitions, in portions of 25 with "
        "`linger.ms=10`. The pause is by each producer's own word: from the sight of the fence until nothing "
        "is held. The p99 is of all of them. The ratio is the median of those that were reported within a "
        "second after one operation, to the bare round trips right before or after it. The other "
        "partitions' p99 is the time from `produce()` to the report, of records that were sent from the "
        "operator's first step to its last, to a stretch of the same length without an operation, before or "
        "after it.",
        "The bare round trips are those that the protocol puts one after the other into a pause "
        "([protocol.md, section 7.3](protocol.md#73-how-long-the-pause-is)), made by plain clients with open"
        " connections and `linger.ms=0`, beside the same writers: one record acknowledged (what is in "
        "flight); one record acknowledged by the brokers and seen by a reader (the answer); one record "
        "acknowledged (the marker); one transaction with a record in each of two topics, until a "
        "read-committed reader sees it (the commit). The median of five such chains counts.",
        tuple(
            row
            for count in PAUSING
            for row in (
                Row(
                    f"pause.{count}.ratio",
                    f"pause to bare round trips, {count} producer(s)",
                    2.0,
                    at_most=True,
                ),
                Row(
                    f"pause.{count}.p99",
                    f"p99 of the pauses, {count} producer(s)",
                    100.0,
                    at_most=True,
                    unit="ms",
                    quantile=0.99,
                ),
                Row(
                    f"others.{count}", f"p99 of the other partitions, {count} producer(s)", 1.05, at_most=True
                ),
            )
        ),
        cost=(
            "in about eight writes with acks=all, one after the other ([protocol.md, section "
            "7.3](protocol.md#73-how-long-the-pause-is)). Brokers, writers and the operator share two "
            "processors here: the longest pauses fall together with the longest reports of partitions that "
            "no operation touches. With 100 producers the processors are the limit: they are hardly ever "
            "idle from the fence on. In these 0.6 s, which are 1.2 s of two processors, the producers' own "
            "threads take 0.4 s (4 ms each), the brokers' request threads and replication 0.4 s, all other "
            "threads 0.3 s (by thread, from /proc, mean of 18 operations). So even with producers that cost "
            "nothing more than half of the pause would be left. In a producer's thread nothing stands out "
            "(cProfile by processor time, before the last of the changes named here): 28 % reads the "
            "partition's state, 14 % asks for the end of the control topic, 10 % acknowledges. Three things "
            "helped, together 430 to 330 ms at the median: what is known of a lineage is not read again; "
            "looks for reports become rarer the longer a fence waits; an acknowledged fence asks for no "
            "end. Before, looks every 2 ms could take the processors from the brokers altogether: in 2 of "
            "48 operations producers paused for 12 s. Two things gained nothing: fetches that wait for 1 s "
            "instead of 0.1 s, and no question for the end after the answer to PREPARE. With 10 producers "
            "a trace of 24 operations showed that in half of the merges all waited 100 ms for one: a merge "
            "moves leaders right before its fence, and librdkafka sends what the former leader refuses "
            "again only after `retry.backoff.ms`. With 10 ms, which kpsplit sets now, the next 24 operations "
            "had p50 59 ms and not 72, p90 79 and not 172, p99 123 and not 267. "
            "Of such a pause some 15 ms pass until the slowest producer has "
            "acknowledged, 2 to 10 for the markers, 15 to 50 for the transaction of COMMIT."
        ),
    ),
    Section(
        "Reading",
        "consumer",
        "A consumer of a group reads records that kpsplit's producer wrote; the first tenth does not count. "
        "Owner of half: a second member has the other half and stands still. The ratio is that of records "
        "per second.",
        "`confluent_kafka.Consumer` on a topic with the same records that is not split; owner of half: of "
        "three of the six partitions. Both have `fetch.queue.backoff.ms=5`: with librdkafka's default a "
        "consumer that has fetched enough ahead rests for a second.",
        (
            Row("read.poll.unsplit", "`poll()`, not split", 1.0),
            Row("read.consume.unsplit", "`consume(1000)`, not split", 0.95),
            Row("read.poll.split", "`poll()`, each partition split in four", 0.85),
            Row("read.consume.split", "`consume(1000)`, each partition split in four", 0.85),
            Row("read.poll.half", "`poll()`, owner of half", 1.0),
            Row("read.consume.half", "`consume(1000)`, owner of half", 0.95),
        ),
        cost=(
            "for each record: whether it has a key, where it lies, how large it is, and the application's "
            "numbers instead of the log's; where the first table says only that the Producer's calls are "
            "compiled, in Python and with a message made around each. Compiled, and with the client's own "
            "message ([ADR 10](adr/0010-compiled-calls.md)), `poll()` takes 0.62 µs of the thread's "
            "processor time and not 1.01 µs (plain: 0.80 µs), `consume(1000)` 0.60 µs and not 0.90 µs "
            "(plain: 0.45 µs), with librdkafka's mock cluster. What is left of `consume(1000)` is a list "
            "that is gone through five times, and what is noted of it until it counts as processed. Tried: "
            "to read 320 records at once, which ended most runs of the garbage collector, and a batch's "
            "size without a call for each record."
        ),
    ),
    Section(
        "Handlers that wait",
        "workers",
        "`run(workers=N)` in key order, with a handler that waits 1, 5 or 20 ms: a function in threads, and "
        "an `async def` in coroutines. Topic, keys and records are the same for all; each run is a new "
        "group of one member. It settles for 3 s after its first record; the 3 s after that count. The "
        "ratio is that of records per second. A row shows the least of its ratios: of 1, 16, 64 and 256 "
        "workers with one handler, or of the three handlers with one number of workers. The ideal is as many "
        "bare threads, or tasks of an event loop, that call the same handler and do nothing else.",
        "Confluent's Parallel Consumer 0.5.3.3 with the kafka-clients that it names, in one Java process for "
        "all its runs, after one that does not count. `ordering` is KEY, `maxConcurrency` the number of "
        "workers, `initialLoadFactor` 50, with which it settles at once; all else is its default: "
        "`PERIODIC_CONSUMER_ASYNCHRONOUS` commits every 5 s. kpsplit commits every 5 s too, in transactions. "
        "The Parallel Consumer runs handlers in threads; it is the peer of both kinds.",
        tuple(
            Row(
                f"run.{kind}.{ms}",
                f"{kind}, {ms} ms, to the peer: least of 1 to 256 workers",
                1.0,
                quantile=0.0,
            )
            for kind in ("threads", "coroutines")
            for ms in HANDLER_MS
        )
        + tuple(
            Row(
                f"run.{kind}.ideal.{workers}",
                f"{kind}, {workers} workers, to the ideal: least of the handlers",
                aim,
                quantile=0.0,
            )
            for kind in ("threads", "coroutines")
            for workers, aim in IDEAL_WORKERS.items()
        ),
        cost=(
            "in Python's interpreter lock, which the handlers' threads or tasks share with the thread that "
            "reads. In a bare loop it needs 1.7 µs for each record to divide them among lanes, beside what "
            "reading takes, and a worker 1.9 µs to note one and take the next; the Parallel Consumer has two "
            "processors. In 256 threads 42 % of perf's samples are in the kernel, which switches between "
            "them: the interpreter lock goes from one to the next, and each has to wake up for it. The work "
            "queue's lock is not the limit: of its acquisitions in 256 threads 0.2 to 13 % waited. Without "
            "brokers the same lanes reached 0.97 of the ideal in 64 threads, 0.74 in 256, and 1.0 in 256 "
            "coroutines (5 ms); a bare queue with 4 µs of Python for each record reached 0.73 in 256 "
            "threads. Tried: to ask for a record's headers once on its way to a handler (kept: 12,000 to "
            "13,100 and 14,800 to 18,400 records/s in 256 threads, 17,800 to 21,500 in 256 coroutines, in "
            "turn on a busy machine); not to read while half of the lanes wait for a worker (kept: reading "
            "took most of the interpreter until the buffer was full; 26,300 to 32,000 in 256 threads, "
            "28,200 to 36,600 in 256 coroutines, 31,900 to 35,500 in 64 coroutines with 1 ms, in turn); to "
            "read 200 records at once and not 1,000, to read on only when a 64th of the buffer is free, and "
            "to yield instead of waiting for the lock (no gain)."
        ),
    ),
    Section(
        "Groups",
        "groups",
        "Hand-over: a second member joins while records are written; for each key that moves, the time from "
        "its last record at the old owner to its first at the new one, and of these the median. Commit: "
        "`commit(asynchronous=False)` after 500 records of all partitions; the median of ten.",
        "Hand-over: Kafka's own cooperative rebalance of plain consumers, with "
        "`partition.assignment.strategy=cooperative-sticky` and kpsplit's `heartbeat.interval.ms` and "
        "`fetch.queue.backoff.ms`. Commit: a plain transaction with one record and the offsets of the six "
        "partitions, `linger.ms=0`, `retry.backoff.ms=10` and open connections, as kpsplit's.",
        (
            Row("handover", "hand-over of a slot to a member that joins", 1.2, at_most=True),
            Row("commit", "range commit", 1.1, at_most=True),
        ),
        cost=(
            "a slot begins when the earlier owner's commit is decided and the offset log is read to its "
            "end. A range commit has to know that its records are acknowledged before it sends the "
            "offsets; the plain transaction does both at once. Of 44 ms, where the plain one took 40 (median "
            "of 50, in turn), the acknowledgement takes 27, the offsets 6 and the end of the transaction 2; "
            "the cursors of 96 slots 3, their records 2, and the ways between three threads 2. Two things "
            "helped, together 58 to 44 ms: the engine begins a commit and takes its answer at once, not at "
            "its next look at everything, up to 10 ms later; and the cursor of a partition that was never "
            "split walks along no segments."
        ),
    ),
    Section(
        "Verification",
        "verification",
        "`kpsplit verify` of a partition that was split, split again and merged, a quarter of the records "
        "each, in one Spark session; the small topics are read before. The processor time is that of Spark's"
        " JVM. The ratio is that of records per second.",
        "Spark jobs that read the same stretches with the same settings of the connector: one that only "
        "counts, and one that takes the stamp out of the headers, computes the hash of the key, and adds "
        "them up.",
        (
            Row("verify.count", "to a plain count", 0.5),
            Row("verify.hash", "to a job that reads stamps and hashes keys", 0.7),
            Row("verify.growth", "time per record, 5 million records to 1 million", 1.0, at_most=True),
        ),
        cost=(
            "most of a run over a million records is the same for any number of records: some small "
            "jobs, the plans of the queries, the tables of segments. Beyond that each record is "
            "hashed, and looked up in the segments of its partition. Of 10.0 s for 5 million records (one "
            "run after another that warmed the session) the only pass over the records takes 8.2 s; the "
            "plain job that reads stamps and hashes keys takes 4.7 s in all, the count 3.2 s. Eight small "
            "jobs take 0.9 s, and 0.9 s lie between the jobs. 30 million records took 41.7 s in another run: "
            "per record 0.36 of what a million takes. Tried, and kept: to read by Spark's second data source "
            "interface and a long log by several tasks (the plain jobs read in the same way), and to take "
            "totals, spans and first numbers from one query."
        ),
    ),
    Section(
        "Starting",
        "start",
        "Import: `from kpsplit import Producer, Consumer` in a new interpreter, confluent-kafka included. "
        "Producer: from the constructor to the report of its first record, to an enrolled topic. Consumer: "
        "from the constructor to its first record, alone in a new group.",
        "The plain clients, on the same topic. The consumer has kpsplit's `heartbeat.interval.ms` and "
        "`fetch.queue.backoff.ms`.",
        (
            Row("start.import", "import", 100.0, at_most=True, unit="ms"),
            Row(
                "start.loaded",
                "of PySpark, click and rich, loaded by the import",
                0.0,
                at_most=True,
                unit="packages",
            ),
            Row("start.producer", "Producer, to its first report", 1.2, at_most=True),
            Row("start.consumer", "Consumer, to its first record", 1.2, at_most=True),
        ),
        cost=(
            "confluent-kafka and what it imports, and 106 dataclasses (35 ms). A consumer sees the end of "
            "the control topic some 100 ms after the last transaction's marker, and begins its slots then; "
            "it joins, and opens its transactional client, meanwhile, and asks each client at once what it "
            "is needed for (one that is asked nothing connects up to 0.26 s later). Tried: to connect while "
            "the control topic is read, and not to load kafka-python for a member alone in its group (busy "
            "machine, in turn: a consumer 4.5 to 2.5 times the plain one, a producer 1.37 to 0.88 times)."
        ),
    ),
)

MET = "met"

NOT_MEASURED = (
    "Splits beside thousands of dead producers: `make bench BENCH=dead_producers` measures them. 10,000 "
    "registrations take longer than the whole table.",
    "10,000 logical partitions, 1,000 of them split, and 5,000 registered producers: "
    "`make bench BENCH=large`. To make such a cluster takes minutes. In one run on two busy processors the "
    "control topic was read in 0.5 s; a view took 4 MB, and 22 MB where every partition has a record; a "
    "split made its operator write 11 records, and each of 1, 10 and 100 producers 3. In a later run on a "
    "machine at rest an idle producer took 0.5 % of a core with 100 partitions, and 0.9 % with all of them "
    "(a plain one 0.3 %; 1.2 % while each partition had a copy of the lease). What breaks first is "
    "the certificate of a producer that wrote to all of them: one record holds those of some 8,000 "
    "partitions.",
    "How long a key waits whose slot moves with its state: to fill 1 GB takes minutes. "
    "`make bench BENCH=state_handover` measures it, with and without "
    "[warm copies](state.md#warm-before-the-hand-over).",
    "How long a partition stays fenced whose operator died, on slow brokers: `make bench BENCH=takeover`.",
    "The pause of other partitions beside an application's open transaction: "
    "`make bench BENCH=open_transaction`.",
    "Writers' pauses in many rounds: `make bench BENCH=pause_rounds`, half an hour for each number of "
    "producers. In 100 splits and 100 merges of one partition (2026-11-29) 1 / 10 / 100 producers paused for "
    "55 / 96 / 451 ms at the median, which is 1.9 / 4.2 / 17 times the bare round trips, and for 251 / 284 / "
    "1,781 ms at the 99th percentile. Of the 20,000 pauses of 100 producers 18 were reported after the "
    "operator's second. The other partitions' p99 was 1.3 / 1.6 / 6.2 times that without an operation. The "
    "lineage grows by five segments with each split and merge: 600 cost each producer 2 ms of processor time "
    "for each state that it reads, 30 of them 0.1 ms.",
    "A start on logs as a week of many groups and producers leaves them: `make bench BENCH=week`.",
    "The memory of a consumer whose application has stopped: `make bench BENCH=stalled`.",
)

HEAD = """\
# Benchmarks

`make bench` measures everything on this page in one command and writes the page; nobody edits it. Two
things run in turn on the same machine and brokers, and which one begins alternates. Each pair gives a ratio.
A row shows the median of the ratios, with the smallest and the greatest in brackets: by the wall, and by the
processor time of the client's process where it says something. Absolute times of a shared machine mean
little; the few rows that are times name their unit. An aim is judged by the wall and by the
processor time.
"""


def rows() -> Iterator[tuple[Section, Row]]:
    """Return all rows with their sections, in the order of the page."""
    for section in SECTIONS:
        for row in section.rows:
            yield section, row


def scripts() -> tuple[str, ...]:
    """Return the scripts that measure the rows, in the order of the page."""
    return tuple(dict.fromkeys(section.script for section in SECTIONS))


def quantile(values: Sequence[float], part: float) -> float:
    """Return the median for 0.5, else the least value that so many of the values do not exceed."""
    if part == 0.5:
        return median(values)
    return sorted(values)[max(0, ceil(part * len(values)) - 1)]


def shown(value: float, unit: str = "") -> str:
    """Return a figure as text."""
    return f"{value:.0f} {unit}" if unit else f"{value:.2f}"


def spread(row: Row, values: Sequence[float]) -> str:
    """Return the figure that counts, with the smallest and the greatest."""
    if not values:
        return "–"
    digits = 0 if row.unit else 2
    figure = shown(quantile(values, row.quantile), row.unit)
    return f"{figure} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def verdict(row: Row, found: Values) -> str:
    """Return whether the aim is met, or by how much it is missed: by the wall, and by CPU."""
    both = {"wall": found.wall, "CPU": found.cpu}
    judged = {kind: _judged(row, values) for kind, values in both.items() if values}
    if len(set(judged.values())) == 1:
        return judged["wall"]
    return ", ".join(f"{kind} {text}" for kind, text in judged.items())


def _judged(row: Row, values: Sequence[float]) -> str:
    by = row.missed_by(values)
    return MET if by <= 0 else f"**missed by {_margin(row, by)}**"


def _margin(row: Row, by: float) -> str:
    """Return a margin as text, rounded up: what is missed is never shown as 0."""
    return f"{_up(by, 10):.1f} {row.unit}" if row.unit else f"{_up(by, 1000):.3f}"


def _up(value: float, parts: int) -> float:
    return ceil(round(value * parts, 6)) / parts


def render(record: Record) -> str:
    """Return the page."""
    parts = [HEAD, _circumstances(record), *(_section(section, record) for section in SECTIONS), _left_out()]
    return "\n".join(parts) + f"\n{RECORD_BEGIN}{record.encode()}{RECORD_END}\n"


def with_summary(readme: str, record: Record) -> str:
    """Return a text with the headline rows of a record between its two marks."""
    before, begin, rest = readme.partition(SUMMARY_BEGIN)
    _, end, after = rest.partition(SUMMARY_END)
    lines = [
        "\n",
        "| kpsplit to the plain client or job | measured | aim |",
        "|---|---|---|",
        *(
            f"| {SUMMARY[row.name]} | {spread(row, found.wall if found else ())} | {row.goal()} |"
            for _, row in rows()
            if row.name in SUMMARY
            for found in [record.rows.get(row.name)]
        ),
        "\n",
    ]
    return before + begin + "\n".join(lines) + end + after


def recorded_in(page: str) -> Record:
    """Return the record that a page was made of.

    Raises:
        ValueError: it has none.
    """
    _, begin, rest = page.partition(RECORD_BEGIN)
    line, end, _ = rest.partition(RECORD_END)
    if not begin or not end:
        raise ValueError("the page holds no record: run make bench")
    return Record.decode(line)


def _circumstances(record: Record) -> str:
    if not record.date:
        return "No run is recorded yet: the rows below are those that `make bench` fills in.\n"
    lines = [
        f"Of the rows {_met(record, 'wall')} meet their aim by the wall, "
        f"and of those with a processor time {_met(record, 'cpu')}.",
        "",
        "| | |",
        "|---|---|",
        f"| date | {record.date}, {record.minutes:.0f} minutes |",
        *(f"| {name} | {version} |" for name, version in record.versions.items()),
        f"| machine | {record.machine} |",
        "",
    ]
    return "\n".join(lines)


def _met(record: Record, kind: str) -> str:
    """Return how many of the rows that were measured so meet their aim."""
    measured = [(row, getattr(record.rows[row.name], kind)) for _, row in rows() if row.name in record.rows]
    judged = [_judged(row, values) for row, values in measured if values]
    return f"{judged.count(MET)} of {len(judged)}"


def _section(section: Section, record: Record) -> str:
    lines = [
        f"## {section.title}",
        "",
        section.method,
        "",
        f"Peer: {section.peer}",
        "",
        "| what | by the wall | by client CPU | values | aim | |",
        "|---|---|---|---|---|---|",
        *(_line(row, record.rows.get(row.name)) for row in section.rows),
        "",
    ]
    notes = [
        f"* {row.what}: {record.rows[row.name].note}"
        for row in section.rows
        if row.name in record.rows and record.rows[row.name].note
    ]
    if section.script in record.failed:
        notes.append(f"* The script failed: {record.failed[section.script]}")
    if notes:
        lines += [*notes, ""]
    if section.cost:
        lines += [f"Where the time goes: {section.cost}", ""]
    return "\n".join(lines)


def _line(row: Row, found: Values | None) -> str:
    if found is None or not found.wall:
        return f"| {row.what} | – | – | – | {row.goal()} | not measured |"
    cells = row.what, spread(row, found.wall), spread(row, found.cpu), str(len(found.wall)), row.goal()
    return f"| {' | '.join(cells)} | {verdict(row, found)} |"


def _left_out() -> str:
    return "\n".join(["## Not measured here", "", *(f"* {line}" for line in NOT_MEASURED), ""])

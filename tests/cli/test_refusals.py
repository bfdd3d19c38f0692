"""What is typed wrong, without any broker: one line that says what and what to do next; nothing is begun."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import shlex
import struct
import sys
import termios
from collections.abc import Callable, Iterator

import pytest
from click.testing import CliRunner

from kpsplit import Plan
from kpsplit.admin import Admin
from kpsplit.admin_cli.main import BY_NAME, cli, run
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import OperationKind, Target

COLUMNS = 60
FAILED, USAGE = 1, 2
NEXT_STEP = re.compile(r"; (see|write|give|pass|name|choose|look|leave|save|add|run)\b[^;]*")
NEVER_SHOWN = "hunter2"

PLAN = Plan(
    parent=PhysicalPartition("orders", 3), kind=OperationKind.SPLIT, epoch=0, topic_id="t", sources=(0,),
    ranges=WHOLE.split_evenly(2), target=Target.PHANTOMS, subtopic="orders.split-3-1", shares=None,
    heaviest=(), sampled=0, useful=True, note="", checks=(), made_ms=0,
)  # fmt: skip
JAAS = "sasl.jaas.config=com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true;\n"
FILES = {
    "garbage": b"hunter2\n",
    "binary": b"\xff\xfe\x00",
    "jks": b"# x\nssl.truststore.type=JKS\nssl.truststore.location=/t.jks\n",
    "untyped": b"ssl.truststore.location=/t.jks\n",
    "keys": b"ssl.keystore.type=JKS\nssl.keystore.location=/k.jks\nssl.keystore.password=hunter2\n",
    "kerberos": f"\n{JAAS}".encode(),
    "unquoted": b"sasl.jaas.config=ScramLoginModule required username=me;\n",
    "java": b"security.protocol=PLAINTEXT\nssl.enabled.protocols=TLSv1.3\n",
    "value": b"\n\nsecurity.protocol=TLS\n",
    "misspelt": b"bootstrap.server=b:9092\n",
    "newer": b'{"v": 99}',
    "plan": PLAN.encode(),
}

ROWS = """
spilt | Did you mean 'split'?
frobnicate | No such command 'frobnicate'
help frobnicate | No such command 'frobnicate'
--nope status | No such option '--nope'
-o xml status | 'xml' is not one of 'table', 'json'
-o '' status | '' is not one of 'table', 'json'
-X hunter2 status | not a key=value pair
-X =hunter2 status | not a key=value pair
-X '' status | not a key=value pair
--timeout soon status | 'soon' is not a duration
--timeout 0 status | '0' is not a duration
--timeout -5s status | '-5s' is not a duration
--timeout 25h status | '25h' is longer than a day; write at most 24h
--timeout '' status | '' is not a duration
--timeout 5d status | '5d' is not a duration
-v=3 status | No such option
--command-config {dir}/none status | No such file or directory; give a file of key=value lines
--command-config {dir} status | Is a directory; give a file of key=value lines
--command-config {garbage} status | line 1: not a key=value line; give a file
--command-config {binary} status | not UTF-8 text; give a file
--command-config {jks} -b b:1 status | line 3: ssl.truststore.location: a store of the type JKS
--command-config {untyped} -b b:1 status | give the store in PEM, with ssl.truststore.type=PEM
--command-config {keys} -b b:1 status | line 2: ssl.keystore.location: a store of the type JKS
--command-config {kerberos} -b b:1 status | this is no login with user name
--command-config {unquoted} -b b:1 status | line 1: sasl.jaas.config
--command-config {java} -b b:1 status | 'ssl.enabled.protocols' ({java}, line 2) is not a property
--command-config {value} -b b:1 status | refused a setting ({value}, line 3): Invalid value "TLS"
--command-config {misspelt} status | 'bootstrap.server' ({misspelt}, line 1) is not a property of librdkafka
-b localhost:99999 status | 'localhost:99999' is not a broker address; write HOST:PORT
-b localhost:0 status | 'localhost:0' is not a broker address
-b kafka://localhost:9092 status | 'kafka://localhost:9092' is not a broker address
-b http://localhost status | is not a broker address
-b localhost:port status | is not a broker address
-b :9092 status | is not a broker address
-b 'a b:9092' status | is not a broker address
-b ok:9092,bad:99999 status | 'bad:99999' is not a broker address
-b '[::1:9092' status | is not a broker address
-b , status | '' is not a broker address
-b '' status | no brokers named; give -b HOST:PORT or set KPSPLIT_BOOTSTRAP_SERVER
-X bootstrap.servers= status | no brokers named
-X bootstrap.server=b:9092 status | 'bootstrap.server' is not a property of librdkafka
-X no.such.property=1 -b b:1 status | 'no.such.property' is not a property of librdkafka; look it up
-X security.protocol=TLS -b b:1 status | Invalid value "TLS" for configuration property "security.protocol"
-X socket.timeout.ms=fast -b b:1 status | "socket.timeout.ms"
-X sasl.mechanism=FOO -X security.protocol=sasl_plaintext -b b:1 status | Unsupported SASL mechanism: FOO
-X ssl.ca.location=/none -X security.protocol=ssl -b b:1 status | ssl.ca.location failed
status | no brokers named
status a b | Got unexpected extra argument (b); see: kpsplit status --help
status orders/x | write TOPIC/P, e.g. orders/3
status 'or ders' | 'or ders' is not the name of a topic
status --watch=1 | '--watch' does not take a value; see: kpsplit status --help
status --interval 0 | '0' is not a duration
status --interval often | 'often' is not a duration
init | no brokers named; nothing was changed
init now | unexpected extra argument
init --lease-ms 5 | not in the range 100<=x<=600000
init --lease-ms 5s | '5s' is not a valid integer
init --lease-ms 600001 | not in the range
enroll | Missing argument 'TOPIC'
enroll 'a b' | 'a b' is not the name of a topic; write TOPIC
enroll orders/3 | 'orders/3' is not the name of a topic
enroll .. | '..' is not the name of a topic
enroll orders --slots 0 | not in the range 1<=x<=64
enroll orders --slots 65 | not in the range 1<=x<=64
enroll orders --slots many | 'many' is not a valid integer
enroll orders --partitioner round | 'round' is not one of 'consistent_random', 'murmur2_random', 'explicit'
enroll orders other | unexpected extra argument (other)
unenroll | Missing argument 'TOPIC'
unenroll orders/3 | 'orders/3' is not the name of a topic
unenroll orders --wait soon | 'soon' is not a duration
unenroll orders --merge=yes | '--merge' does not take a value
unenroll orders | no brokers named; nothing was changed
doctor orders | unexpected extra argument (orders)
doctor --fix | No such option '--fix'
completion | Choose from: bash, zsh, fish
completion tcsh | 'tcsh' is not one of
completion bash zsh | unexpected extra argument
plan | Missing argument 'TOPIC/P'
plan orders --ranges 2 | write TOPIC/P, e.g. orders/3
plan orders/3 | pass either --ranges N or --merge
plan orders/3 --ranges 1 | 1 is not in the range 2<=x<=64
plan orders/3 --ranges 65 | 65 is not in the range
plan orders/3 --ranges two | 'two' is not a valid integer
plan orders/3 --ranges 2 --merge | pass either --ranges N or --merge
plan orders/3 --merge --even | pass either --ranges N or --merge
plan orders/3 --ranges 2 --of 5:5 | not a range of the key space
plan orders/3 --ranges 2 --of 9:1 | not a range of the key space
plan orders/3 --ranges 2 --of all | write lo:hi in hexadecimal
plan orders/3 --ranges 2 --of 0:100000001 | not a range of the key space
plan orders/3 --ranges 2 --engine flink | 'flink' is not one of 'sample', 'spark'
plan orders/3 --ranges 2 --since 1h | need --engine spark
plan orders/3 --ranges 2 --weight bytes | need --engine spark
plan orders/3 --ranges 2 --master local | need --engine spark
plan orders/3 --ranges 2 --cores 2 | need --engine spark
plan orders/3 --ranges 2 --memory 1g | need --engine spark
plan orders/3 --ranges 2 --engine spark --even | needs --ranges N
plan orders/3 --merge --engine spark | needs --ranges N
plan orders/3 --ranges 2 --engine spark --since soon | 'soon' is not a time; write
plan orders/3 --ranges 2 --engine spark --since 2026-03-01T12:00:00 | has no time zone; write
plan orders/3 --ranges 2 --engine spark --since 48h | '48h' is longer than a day; write the time instead
plan orders/3 --ranges 2 --engine spark --weight kilos | 'kilos' is not one of
plan orders/3 --ranges 2 --engine spark --memory lots | 'lots' is not a memory size; write
plan orders/3 --ranges 2 --engine spark --memory 0g | '0g' is not a memory size
plan orders/3 --ranges 2 --engine spark --cores 0 | not in the range 1<=x<=1024
plan orders/3 --ranges 2 --engine spark --cores 2 --master local | leave one of them out
plan orders/3 --ranges 2 --engine spark --master flink://x | not a master URL; write local[4]
plan orders/3 --ranges 2 --save {dir} | it is a folder; choose another --save
plan orders/3 --ranges 2 --save | '--save' requires an argument; see: kpsplit plan --help
split | Missing argument 'TOPIC/P'
split orders --ranges 2 | write TOPIC/P, e.g. orders/3
split orders/ --ranges 2 | write TOPIC/P, e.g. orders/3
split /3 --ranges 2 | write TOPIC/P, e.g. orders/3
split orders/-1 --ranges 2 | write TOPIC/P, e.g. orders/3
split orders/2147483648 --ranges 2 | out of Kafka's range
split orders/3 | pass either --ranges N or --plan FILE
split orders/3 --ranges 1 | 1 is not in the range
split orders/3 --ranges 65 | 65 is not in the range
split orders/3 --ranges 4.5 | '4.5' is not a valid integer
split orders/3 --ranges 4 --of 5:5 | not a range of the key space
split orders/3 --ranges 2 --of 0 | '0' is not a key range; write
split orders/3 --ranges 2 --of zz:10 | 'zz:10' is not a key range
split orders/3 --ranges 2 --max-pause soon | 'soon' is not a duration
split orders/3 --ranges 2 --max-pause 0 | '0' is not a duration
split orders/3 --ranges 2 --max-pause -1s | '-1s' is not a duration
split orders/3 --ranges 2 --max-pause 15m | a pause of '15m' is out of bounds; write 1ms to 10m
split orders/3 --ranges 2 --max-pause 0.1ms | a pause of '0.1ms' is out of bounds; write 1ms to 10m
merge orders/3 --max-pause 25h | a pause of '25h' is out of bounds; write 1ms to 10m
split orders/3 --ranges 2 --plan {plan} | pass either --ranges N or --plan FILE
split orders/3 --plan {dir}/none | No such file or directory; nothing was changed; save one with: kpsplit plan
split orders/3 --plan {dir} | Is a directory; nothing was changed; save one with
split orders/3 --plan {garbage} | is not a plan file
split orders/3 --plan {binary} | is not a plan file
split orders/3 --plan {newer} | is not a plan file
split orders/3 --plan {plan} --even | --of and --even cannot be used with --plan
split orders/3 --plan {plan} --of 0:10 | --of and --even cannot be used with --plan
split orders/4 --plan {plan} | is a plan to split orders/3, not to split orders/4; nothing was changed
merge orders/3 --plan {plan} | is a plan to split orders/3, not to merge orders/3; nothing was changed
merge | Missing argument 'TOPIC/P'
merge orders | write TOPIC/P
merge orders/3 --of 0:10,20:30 | the ranges are not adjacent; nothing was changed
merge orders/3 --of 0:10 --of 20:30 | are not adjacent
merge orders/3 --of 0:10,5:20 | are not adjacent
merge orders/3 --of 0-10 | '0-10' is not a key range
merge orders/3 --of 2 | '2' is not a key range
merge orders/3 --of 0:10 --plan {plan} | cannot be used together
merge orders/3 --even | No such option '--even'
merge orders/3 --force=1 | '--force' does not take a value; see: kpsplit merge --help
resume orders | write TOPIC/P
resume orders/3 --max-pause soon | 'soon' is not a duration
resume orders/3 --max-pause 601s | a pause of '601s' is out of bounds; write 1ms to 10m
resume orders/3 orders/4 | unexpected extra argument (orders/4)
abort orders | write TOPIC/P
abort orders/3 --reason | '--reason' requires an argument
retire orders | write TOPIC/P
retire --force | no partition is named; nothing was changed; name one: kpsplit retire TOPIC/P
retire --yes | no partition is named
retire --dry-run=no orders/3 | '--dry-run' does not take a value
seek | Missing argument 'TOPIC/P'
seek orders/3 | Missing option '--group'
seek orders/3 --group g | Missing option '--to'
seek orders/3 --to latest | Missing option '--group'
seek --group g orders/x --to latest | write TOPIC/P, e.g. orders/3
seek orders --group g --to latest | write TOPIC/P, e.g. orders/3
seek orders/3 --group g --to soon | 'soon' is not a target; write earliest
seek orders/3 --group g --to -1 | '-1' is not a target
seek orders/3 --group g --to 9223372036854775808 | over 2^63 - 1
seek orders/3 --group g --to 2026-03-01T12:00:00 | has no time zone; write
seek orders/3 --group g --to 1969-01-01T00:00:00Z | before 1970
seek orders/3 --group g --to 2026-13-01T00:00:00Z | is not a target; write earliest
seek orders/3 --group g --to 0 --keys 9:1 | not a range of the key space
seek orders/3 --group g --to 0 --keys all | 'all' is not a key range
forget | Missing argument 'TOPIC'
forget orders | give either --group NAME or --expired
forget orders/3 --group g | 'orders/3' is not the name of a topic
forget orders --group g --dry-run=yes | '--dry-run' does not take a value
forget orders other --group g | unexpected extra argument (other)
lineage | Missing argument 'TOPIC/P'
lineage orders | write TOPIC/P
offsets | Missing argument 'TOPIC[/P]'
offsets orders/3/4 --group g | write TOPIC/P
offsets 'or ders' --group g | 'or ders' is not the name of a topic
route | Missing argument 'TOPIC'
route orders | pass one of --key, --key-base64 and --key-hex
route orders --key a --key-hex 61 | pass one of --key, --key-base64 and --key-hex
route orders --key-hex xyz | this is not hexadecimal
route orders --key-base64 '***' | this is not base64
route orders --key a --partition -1 | not in the range 0<=x<=2147483647
route orders --key a --partition x | 'x' is not a valid integer
route orders/3 --key a | 'orders/3' is not the name of a topic
acls | Missing argument 'TOPIC'
acls orders | Choose from: operator, producer, consumer, verifier
acls orders --for producer | Missing option '--principal'
acls orders --for boss --principal User:a | 'boss' is not one of
acls orders --for producer --principal a | e.g. User:app
acls orders --for consumer --principal User:a | needs --group
acls orders --for operator --principal User:a --group g | does not apply to operators
acls orders --for verifier --principal User:a --transactional-id t | does not apply to verifiers
acls orders --for consumer --principal User:a --group g --takeover | does not apply to consumers
acls orders --for producer --principal User:a --state | does not apply to producers
acls 'a/b' --for producer --principal User:a | 'a/b' is not the name of a topic
read | Missing argument 'TOPIC/P'
read orders | write TOPIC/P
read orders/3 --from -1 | not in the range
read orders/3 --from x | 'x' is not a valid integer
read orders/3 --from 9223372036854775808 | not in the range
read orders/3 --limit 0 | not in the range
read orders/3 --limit all | 'all' is not a valid integer
verify | Missing argument 'TOPIC[/P]'
verify orders/x | write TOPIC/P
verify orders --memory lots | 'lots' is not a memory size
verify orders --cores 0 | not in the range 1<=x<=1024
verify orders --cores 2 --master local | cannot be used together; leave one of them out
verify orders --master flink://x | not a master URL; write local[4]
verify orders --since soon | 'soon' is not a time; write
verify orders --since 2026-03-01T12:00:00 | has no time zone
verify orders --since 2026-11-14 | has no time zone; write for example 2026-11-14T00:00:00Z
verify orders --parquet {dir} | exists; pass a --parquet folder that does not exist yet
verify orders --parquet {plan}/findings | is not a folder that can be written; pass a --parquet folder
verify orders --html {dir}/none/page.html | No such file or directory; choose another --html
verify orders --html {dir} | is a directory
cluster start | Did you mean 'status'?
cluster up --brokers 0 | not in the range 1<=x<=9
cluster up --brokers ten | 'ten' is not a valid integer
cluster up --timeout soon | 'soon' is not a duration
cluster up --timeout 0 | '0' is not a duration
cluster up --data {garbage} | is a file
cluster up -o xml | 'xml' is not one of
cluster down now | unexpected extra argument
cluster down --data {garbage} | is a file
cluster status --brokers 3 | No such option '--brokers'
demo now | unexpected extra argument
demo --rate 1 | not in the range 10<=x<=200000
demo --rate fast | 'fast' is not a valid float
demo --duration 1 | not in the range 2<=x<=3600
demo --seed -1 | not in the range x>=0
demo --role-config boss={garbage} | --role-config takes ROLE=FILE; write a ROLE of producer, consumer
demo --role-config producer | --role-config takes ROLE=FILE
demo --role-config producer={garbage} | line 1: not a key=value line; give a file
demo --input {dir}/none | No such file or directory; choose another --input
demo --key-regex '(' | --key-regex belongs to --input
demo --topic 'a b' | 'a b' is not the name of a topic
demo --html {dir}/none/page.html | No such file or directory; choose another --html
demo -X hunter2 | not a key=value pair; write
demo -X security.protocol=SSL | no brokers; add -b HOST:PORT
"""
CASES = [tuple(part.strip() for part in row.split(" | ")) for row in ROWS.strip().splitlines()]
ASKS = (
    "resume orders/3",
    "resume orders/3 --thaw",
    "abort orders/3",
    "retire orders/3",
    "retire orders/3 --force",
)


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The files that rows name."""
    folder = tmp_path_factory.mktemp("given")
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    return {"dir": str(folder), **{name: str(folder / name) for name in FILES}}


@pytest.fixture(autouse=True)
def unreached(monkeypatch: pytest.MonkeyPatch) -> None:
    """No row may get as far as to what asks a cluster, or starts one."""

    def begun(*_: object, **__: object) -> None:
        raise AssertionError("something was begun")

    monkeypatch.delenv("KPSPLIT_BOOTSTRAP_SERVER", raising=False)
    monkeypatch.setattr(Admin, "__init__", begun)
    monkeypatch.setattr("kpsplit.admin_cli.commands.cluster.start_detached", begun)
    monkeypatch.setattr("kpsplit.devcluster.cluster.DevCluster.__init__", begun)


Shown = tuple[int, list[str]]


def piped(arguments: list[str]) -> Shown:
    """Run a command line without a terminal; return its exit code and what it said on stderr."""
    ran = CliRunner().invoke(cli, arguments)
    assert ran.stdout == ""
    return ran.exit_code, ran.stderr.splitlines()


def on_a_terminal(arguments: list[str], answer: str = "n") -> Shown:
    """Run a command line on a terminal of 60 columns, where any question gets an answer."""
    terminal, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    kept = sys.stdin, sys.stdout, sys.stderr
    os.write(terminal, f"{answer}\n".encode())
    try:
        sys.stdin, sys.stdout, sys.stderr = (os.fdopen(os.dup(theirs), mode) for mode in "rww")
        code = run(cli, arguments)
    finally:
        for stream in (sys.stdin, sys.stdout, sys.stderr):
            stream.close()
        sys.stdin, sys.stdout, sys.stderr = kept
        os.set_blocking(terminal, False)
        shown = b"".join(_chunks(terminal)).decode()
        os.close(theirs)
        os.close(terminal)
    return code, [line for line in shown.replace("\r", "").splitlines() if line != answer]


def _chunks(terminal: int) -> Iterator[bytes]:
    while True:
        try:
            yield os.read(terminal, 1 << 16)
        except BlockingIOError:
            return


def test_the_table_is_long_enough() -> None:
    rows = [row for row, _ in CASES]
    assert len(set(rows)) == len(rows) >= 200
    assert {word for row in rows for word in row.split()} >= BY_NAME.keys()


@pytest.mark.parametrize("shown_by", [piped, on_a_terminal], ids=["piped", "terminal"])
@pytest.mark.parametrize(("row", "wanted"), CASES, ids=[row for row, _ in CASES])
def test_what_is_typed_wrong_is_refused_in_one_line(
    row: str, wanted: str, shown_by: Callable[[list[str]], Shown], names: dict[str, str]
) -> None:
    code, lines = shown_by(shlex.split(row.format(**names)))
    assert (code, len(lines)) == (USAGE, 1), lines
    (line,) = lines
    assert line.startswith("kpsplit: error: ") and line.isprintable()
    assert wanted.format(**names) in line
    assert NEXT_STEP.search(line), line
    assert NEVER_SHOWN not in line
    assert "a bug in" not in line


@pytest.mark.parametrize("row", ASKS)
def test_what_changes_data_is_asked_first_and_refused_where_nobody_can_be_asked(row: str) -> None:
    arguments = [*shlex.split(row), "-b", "b:1"]
    code, (line,) = piped(arguments)
    assert code == USAGE
    assert line.endswith("there is no terminal to ask on; nothing was changed; pass --yes")
    code, lines = on_a_terminal(arguments)
    assert code == FAILED
    assert lines[0].endswith("[y/N]: ") or "[y/N]" in lines[0]
    assert lines[-1].endswith("not confirmed; nothing was changed")

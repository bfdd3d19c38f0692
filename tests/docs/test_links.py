"""The pages name only tests, files and sections that exist."""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_test_that_a_row_names_exists() -> None:
    page = (ROOT / "docs" / "failure-scenarios.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(test_\w+)`", page))
    source = "\n".join(p.read_text(encoding="utf-8") for p in (ROOT / "tests").rglob("test_*.py"))
    existing = set(re.findall(r"^\s*def (test_\w+)", source, flags=re.MULTILINE))
    assert named, "the page names no test at all"
    assert named <= existing, f"not there: {sorted(named - existing)}"


def test_every_file_that_a_page_links_to_exists() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).exists(), f"{page.name} links to {link}"


def test_every_file_of_the_program_that_a_page_names_exists() -> None:
    package = ROOT / "kpsplit"
    bases = (ROOT, package, ROOT / "tests", package / "consumer", package / "spark_jobs")
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for name in re.findall(r"`((?:[\w-]+/)+[\w-]+\.py)`", page.read_text(encoding="utf-8")):
            assert any((base / name).exists() for base in bases), f"{page.name} names {name}"


def test_every_journey_passes_files_that_exist() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.+?) \| (.*▸.*) \|$", page.partition("## Journeys")[2], re.MULTILINE)
    assert len(rows) >= 6
    for journey, files in rows:
        named = re.findall(r"`([\w/]+\.py)`", files)
        assert len(named) >= 2, journey
        assert all((ROOT / "kpsplit" / name).exists() for name in named), f"{journey}: {named}"


def anchors_of(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_section_that_a_page_links_to_exists() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for file, anchor in re.findall(r"\]\(([\w./-]*)#([^)]+)\)", page.read_text(encoding="utf-8")):
            target = page.parent / file if file else page
            assert anchor in anchors_of(target), f"{page.name} links to {file}#{anchor}"


CITATION = re.compile(r"protocol,\s+sections?\s+((?:[\d.]*\d(?:,\s+|\s+and\s+|\s+to\s+)?)+)")


def test_every_section_of_the_protocol_that_is_cited_exists() -> None:
    page = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
    sections = set(re.findall(r"^#+ (\d+(?:\.\d+)*)\.? ", page, flags=re.MULTILINE))
    folders = ("kpsplit", "tests", "benchmarks", "examples", "scripts")
    sources = [p for folder in folders for p in (ROOT / folder).rglob("*.py")]
    cited = 0
    for source in sources:
        for numbers in CITATION.findall(source.read_text(encoding="utf-8")):
            for number in re.findall(r"\d+(?:\.\d+)*", numbers):
                cited += 1
                assert number in sections, (
                    f"{source.relative_to(ROOT)} cites section {number} of the protocol"
                )
    assert cited > 40, "the citations have another form now"


def test_nothing_is_cited_that_is_not_in_the_repository() -> None:
    for source in (ROOT / "kpsplit").rglob("*.py"):
        text = source.read_text(encoding="utf-8")
        assert not re.search(r"(?<!protocol, )(?<!protocol,\n)\bsections? \d", re.sub(r"\n +", "\n", text)), (
            source
        )
        assert not re.search(r"\bthe design\b|\bdesign,? sections?\b", text, flags=re.IGNORECASE), source


def test_no_message_of_a_sequence_diagram_has_a_semicolon() -> None:
    """Mermaid ends a statement at a semicolon, so the picture would be an error message."""
    for page in (ROOT / "docs").rglob("*.md"):
        for picture in re.findall(r"```mermaid\nsequenceDiagram(.*?)```", page.read_text("utf-8"), re.DOTALL):
            assert ";" not in picture, page.name


def test_the_index_and_the_site_name_every_page() -> None:
    index = (ROOT / "docs" / "index.md").read_text("utf-8")
    site = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:")[2]))
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert site == pages
    assert all(f"]({page})" in index for page in pages - {"index.md"})


def test_every_file_of_the_repository_that_a_page_names_exists() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        text = page.read_text(encoding="utf-8")
        for path in re.findall(r"`((?:kpsplit|tests|examples|benchmarks|scripts)/[\w./-]+)`", text):
            assert (ROOT / path).exists(), f"{page.name} names {path}"


PATH = re.compile(r"(?<![\w/.])((?:kpsplit|tests|docs|examples|benchmarks|scripts)/[\w./-]*\w)")
SETTINGS = {"kafka.max.poll.records"}
"""Settings that look like a module's path."""
MODULE = re.compile(r"``((?:kpsplit\.)?[a-z_]+(?:\.\w+)+)``")


def prose_of(source: Path) -> str:
    """The docstrings and comments of a file."""
    text = source.read_text(encoding="utf-8")
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    kinds = (tokenize.COMMENT, tokenize.STRING)
    return "\n".join(token.string for token in tokens if token.type in kinds)


def test_every_file_that_a_docstring_or_comment_names_exists() -> None:
    for source in [p for folder in ("kpsplit", "scripts") for p in (ROOT / folder).rglob("*.py")]:
        for path in PATH.findall(prose_of(source)):
            assert (ROOT / path).exists(), f"{source.relative_to(ROOT)} names {path}"


def test_every_module_that_a_docstring_names_exists() -> None:
    package = ROOT / "kpsplit"
    for source in package.rglob("*.py"):
        for name in MODULE.findall(prose_of(source)):
            parts = name.removeprefix("kpsplit.").split(".")
            if not (package / parts[0]).is_dir() or name in SETTINGS:
                continue  # a method, a setting, a module of somebody else's
            known = package
            while parts and ((known / parts[0]).is_dir() or (known / f"{parts[0]}.py").exists()):
                known = known / parts.pop(0)
            file = known / "__init__.py" if known.is_dir() else known.with_suffix(".py")
            defined = not parts or re.search(rf"\b{parts[0]}\b", file.read_text("utf-8"))
            assert defined, f"{source.relative_to(ROOT)} names {name}"

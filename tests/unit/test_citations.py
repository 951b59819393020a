"""What code, tests and documents cite exists: decisions, pages and their anchors, sections and algorithms of the paper."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("airflow_logio", "dags", "docker", "docs", "tests")
HERE = Path(__file__).resolve()

# --- the paper (arXiv 2512.16038) -------------------------------------------------------------------------------------

SUBSECTIONS = {1: 5, 2: 3, 3: 6, 4: 4, 5: 2, 6: 4, 7: 3, 8: 2, 9: 4, 10: 0, 11: 0}
"""Section → number of its subsections."""
DEEPER = {"3.5": 3, "4.4": 3, "6.3": 2, "8.1": 3, "8.2": 5, "9.3": 4}
"""Subsection → number of its own."""
SECTIONS = (
    {str(one) for one in SUBSECTIONS}
    | {f"{one}.{two}" for one, count in SUBSECTIONS.items() for two in range(1, count + 1)}
    | {f"{one}.{three}" for one, count in DEEPER.items() for three in range(1, count + 1)}
)
STEPS = {
    1: "1 2 2.a 2.b 2.c 2.d 3",
    2: "1 2 3",
    3: "1 2 3 4 5 6",
    4: "1 2 3",
    5: "1 2 3",
    6: "1 2 3 3.a 3.b 4 4.a 4.b",
    7: "1 2",
    8: "1 2 2.a 2.b",
    9: "1 2 2.a 2.b 2.c 3",
    10: "1 2 3 4 5",
    11: "1 2 3 4 4.a 4.b 5",
    12: "1 2 3",
    13: "1 1.a 1.b 1.c 1.d 2 3",
}
"""Algorithm, counted in order of appearance → its steps."""
COUNTED = {"Table": 9, "Listing": 3, "Example": 11}

# --- what is cited ----------------------------------------------------------------------------------------------------

AND = r"(?:,| and| to| or|,? and)"
DESIGN = re.compile(rf"\b(?:[Dd]esign|[Hh]oles?)\s+(?:#\s+)?([DH]\d+(?:{AND}\s+[DH]\d+)*)")
ADR = re.compile(r"\bADR-(\d+)\b")
SECTION = re.compile(rf"\bSections?\s+(\d+(?:\.\d+)*(?:{AND}\s+\d+(?:\.\d+)*)*)")
ALGORITHM = re.compile(rf"\b(?:Algorithms?|Alg\.)\s+(\d+(?:{AND}\s+\d+)*)")
STEP = re.compile(
    rf"\b(?:Algorithm|Alg\.)\s+(\d+),?\s+Steps?\s+(\d(?:\.[a-d])?(?:{AND}\s+(?:Step\s+)?\d(?:\.[a-d])?(?!\d))*)"
)
OTHER = re.compile(rf"\b(Table|Listing|Example)s?\s+(\d+(?:{AND}\s+\d+)*)")
LINK = re.compile(r"\]\(([^)\s]+)\)")
PAGE = re.compile(r"(?<![\w/(])(docs/[\w/-]+\.md)(#[\w-]+)?")
FILE = re.compile(r"`((?:\w+/)+\w+\.py)`")
NAMED_IN = re.compile(r"`((?:\w+/)+\w+\.py)`(?: \(|, )((?:`\w+`(?:, )?)+)")
"""A module, and what a map says is in it: `` `protocol/life.py` (`START`) ``."""
OUTDATED = re.compile(r"\bDESIGN\b|\b[Dd]ecisions? \d|\b[Hh]oles? \d")


@cache
def cited_from() -> dict[str, str]:
    """Every file of Python and every page, but this one."""
    pages = [*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))]
    modules = [module for folder in FOLDERS for module in (ROOT / folder).rglob("*.py")]
    files = sorted({*pages, *modules} - {HERE})
    return {str(file.relative_to(ROOT)): file.read_text(encoding="utf-8") for file in files}


def numbers(text: str) -> list[str]:
    return re.findall(r"\d+(?:\.[\da-d]+)*", text)


def found(pattern: re.Pattern[str]) -> Iterator[tuple[str, re.Match[str]]]:
    for file, text in cited_from().items():
        for match in pattern.finditer(text):
            yield f"{file}:{text.count(chr(10), 0, match.start()) + 1}: {match[0]!r}", match


@cache
def anchors(page: Path) -> frozenset[str]:
    """Explicit ones, and those that GitHub makes of headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    slugs = (re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings)
    return frozenset({*slugs, *re.findall(r'<a id="([^"]+)"></a>', text)})


@pytest.mark.parametrize(
    ("page", "prefix", "last"), [("design", "D", 14), ("design", "H", 10), ("decisions/archive", "ADR-", 45)]
)
def test_every_decision_has_its_anchor_and_heading(page: str, prefix: str, last: int) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    placed = re.findall(rf'^<a id="({prefix}\d+)"></a>\n#+ \1\. ', text, re.MULTILINE)
    assert placed[:last] == [f"{prefix}{number}" for number in range(1, last + 1)]
    numbers = [int(anchor.removeprefix(prefix)) for anchor in placed]
    assert numbers == sorted(set(numbers)), "in order, and each once"


def test_cited_decisions_exist() -> None:
    design, decisions = (anchors(ROOT / "docs" / page) for page in ("design.md", "decisions/archive.md"))
    assert [where for where, match in found(DESIGN) if not set(re.findall(r"[DH]\d+", match[1])) <= design] == []
    assert [where for where, match in found(ADR) if match[0] not in decisions] == []
    assert len(list(found(DESIGN))) > 50, "the pattern finds what is cited"


def test_the_decisions_that_hold_are_few_short_and_sorted_by_topic() -> None:
    """What a reader holds in the head; the full texts are in the archive, which each of them names."""
    text = (ROOT / "docs" / "decisions.md").read_text(encoding="utf-8")
    entries = re.split(r"^### ", text, flags=re.MULTILINE)[1:]
    assert 20 <= len(entries) <= 40
    bodies = [re.split(r"^## ", entry, flags=re.MULTILINE)[0] for entry in entries]
    assert [body.splitlines()[0] for body in bodies if len(body.strip().splitlines()) > 15] == []
    assert [body.splitlines()[0] for body in bodies if not ADR.search(body)] == []
    archive = re.findall(r'id="(ADR-\d+)"', (ROOT / "docs" / "decisions" / "archive.md").read_text(encoding="utf-8"))
    assert sorted(set(archive) - {match[0] for match in ADR.finditer(text)}) == []


def test_decisions_are_cited_by_names_that_cannot_be_confused() -> None:
    assert [where for where, _ in found(OUTDATED)] == [], "cite (design D8), (hole H3) or (ADR-12)"


def test_cited_sections_and_algorithms_of_the_paper_exist() -> None:
    assert [where for where, match in found(SECTION) if not set(numbers(match[1])) <= SECTIONS] == []
    assert [where for where, match in found(ALGORITHM) if not {int(n) for n in numbers(match[1])} <= set(STEPS)] == []
    assert [
        where for where, match in found(STEP) if not set(numbers(match[2])) <= set(STEPS[int(match[1])].split())
    ] == []
    assert [
        where for where, match in found(OTHER) if not all(1 <= int(n) <= COUNTED[match[1]] for n in numbers(match[2]))
    ] == []
    assert len(list(found(STEP))) > 50, "the pattern finds what is cited"


def test_pages_that_code_names_exist() -> None:
    missing = []
    for where, match in found(PAGE):
        page = ROOT / match[1]
        if not page.is_file() or (match[2] and match[2][1:] not in anchors(page)):
            missing.append(where)
    assert missing == []


def test_the_map_of_the_documentation_has_every_page_once() -> None:
    docs = ROOT / "docs"
    linked = [link for link in LINK.findall((docs / "README.md").read_text(encoding="utf-8")) if ".." not in link]
    assert sorted(linked) == sorted(
        str(page.relative_to(docs)) for page in docs.rglob("*.md") if page.name != "README.md"
    )


def test_modules_that_pages_name_exist() -> None:
    places = (ROOT, ROOT / "airflow_logio", ROOT / "tests")
    assert [
        where
        for where, match in found(FILE)
        if where.partition(":")[0].endswith(".md") and not any((place / match[1]).is_file() for place in places)
    ] == []


def test_what_the_map_of_the_code_names_is_in_its_module() -> None:
    missing, seen = [], 0
    for module, names in NAMED_IN.findall((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")):
        text = (ROOT / "airflow_logio" / module).read_text(encoding="utf-8")
        for name in re.findall(r"\w+", names):
            seen += 1
            if not re.search(rf"^\s*(?:(?:class|def) {name}\b|{name}\b[^=\n]* = )", text, re.MULTILINE):
                missing.append(f"{module}: {name}")
    assert missing == []
    assert seen > 10, "the pattern finds what is named"


def test_rows_of_tables_have_as_many_cells_as_their_head() -> None:
    """What is beyond the head is not shown."""
    torn = []
    for file, text in cited_from().items():
        cells = 0
        for number, line in enumerate(text.splitlines() if file.endswith(".md") else (), 1):
            found_here = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0
            if cells and found_here not in (0, cells):
                torn.append(f"{file}:{number}")
            cells = cells or found_here if found_here else 0
    assert torn == []


def test_links_between_pages_lead_somewhere() -> None:
    dead = []
    for where, match in found(LINK):
        if "://" in match[1] or not where.partition(":")[0].endswith(".md"):
            continue
        path, _, anchor = match[1].partition("#")
        file = ROOT / where.partition(":")[0]
        target = (file.parent / path).resolve() if path else file
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            dead.append(where)
    assert dead == []

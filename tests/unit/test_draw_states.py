"""The picture of the states in docs/protocol.md is the transition table."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from kpsplit.splitter.partition_state import TRANSITIONS

SCRIPT = Path(__file__).parents[2] / "scripts" / "draw_states.py"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("draw_states", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


draw_states = load()


def test_the_picture_is_up_to_date() -> None:
    assert draw_states.main(["--check"]) == 0, "run: python scripts/draw_states.py"


def test_the_picture_has_an_arrow_per_transition() -> None:
    arrows = [line for line in draw_states.diagram().splitlines() if " --> " in line and ": " in line]
    assert len(arrows) == len(TRANSITIONS)
    assert "    fenced --> committed: commit" in arrows


def test_drawing_again_changes_nothing_and_leaves_the_rest_of_the_page_alone() -> None:
    page = f"# Title\n\nbefore\n{draw_states.BEGIN}\nold\n{draw_states.END}\nafter\n"
    drawn = draw_states.with_diagram(page)
    assert drawn.startswith("# Title\n\nbefore\n")
    assert drawn.endswith("\nafter\n")
    assert "old" not in drawn
    assert draw_states.with_diagram(drawn) == drawn


@pytest.mark.parametrize(
    "page", ["", draw_states.BEGIN, draw_states.END, draw_states.END + draw_states.BEGIN]
)
def test_a_page_without_the_two_comments_is_refused(page: str) -> None:
    with pytest.raises(ValueError, match="must hold"):
        draw_states.with_diagram(page)


def test_a_missing_or_old_page_is_noticed_and_mended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draw_states, "PAGE", tmp_path / "protocol.md")
    assert draw_states.main(["--check"]) == 1
    assert draw_states.main([]) == 0
    assert draw_states.main(["--check"]) == 0

"""The documents say what the code says: tables are as printed, pictures exist, links lead somewhere."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(DOCS.glob("*.md"))
ROOT = DOCS.parent
LINKING = [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), ROOT / "jax_clc" / "emulator" / "README.md"]


def load(name):
    sys.path.insert(0, str(DOCS / "figures"))
    try:
        spec = importlib.util.spec_from_file_location(name, DOCS / "figures" / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(DOCS / "figures"))


def test_interference_table_is_the_output_of_its_command():
    assert load("interference").table() in (DOCS / "choosing_a_schedule.md").read_text(encoding="utf-8")


def test_cost_of_asking_is_the_output_of_its_command():
    assert f"> {load('cost_of_asking').summary()}\n" in (DOCS / "choosing_a_schedule.md").read_text(encoding="utf-8")


def test_the_story_quotes_what_was_measured():
    static, dynamic = (load("interference").measured_us(schedule) for schedule in ("static", "dynamic"))
    quiet, held, dynamic_quiet, dynamic_held = (round(t) for t in (static[0], static[4], dynamic[0], dynamic[4]))
    story = " ".join((DOCS / "how_a_tile_finds_its_worker.md").read_text(encoding="utf-8").split())
    assert f"takes {quiet} us for 8192 x 8192 x 4096 alone, and {held} us when 4 of the 132 SMs are held" in story
    assert f"under `dynamic`, in smaller tiles, it takes {dynamic_quiet} and {dynamic_held} us" in story
    assert f"- {quiet}, {held}, {dynamic_quiet} and {dynamic_held} us: NVIDIA H200" in story


def test_model_predicts_the_measured_interference():
    """Within 14%: the page says where the largest errors are, and what could explain them."""
    interference = load("interference")
    for schedule in ("nonpersistent", "static", "dynamic"):
        for held, time in interference.measured_us(schedule).items():
            assert interference.predicted(schedule, held).makespan == pytest.approx(time, rel=0.14), (schedule, held)


def test_every_picture_has_its_function_and_every_function_its_picture(monkeypatch):
    pytest.importorskip("matplotlib", reason="pictures need the extra `plot`")
    monkeypatch.syspath_prepend(str(DOCS.parent))
    drawn = set(load("make_figures").FIGURES)
    pages = [*PAGES, ROOT / "README.md"]
    shown = {stem for page in pages for stem in re.findall(r"\]\((?:docs/)?figures/(\w+)\.png\)", page.read_text())}
    assert drawn <= shown
    assert {path.stem for path in (DOCS / "figures").glob("*.png")} == shown


@pytest.mark.parametrize("page", LINKING, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page):
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", text):
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), target
        if anchor and linked.suffix == ".md":
            headings = re.findall(r"^#+ (.*)$", linked.read_text(encoding="utf-8"), flags=re.MULTILINE)
            assert anchor in {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}, (
                target
            )


def test_index_leads_to_every_page():
    linked = set(re.findall(r"\]\(([\w./]+\.md)\)", (DOCS / "README.md").read_text(encoding="utf-8")))
    pages = {str(path.relative_to(DOCS)) for path in [*DOCS.glob("*.md"), *DOCS.glob("notes/*.md")]}
    assert pages - {"README.md"} <= linked


def test_rules_name_functions_that_are_there():
    """The table of rules says where each is kept: every name in it is in the kernels' sources."""
    kernels = "".join(path.read_text(encoding="utf-8") for path in (DOCS.parent / "kernels").glob("*.py"))
    page = (DOCS / "how_a_tile_finds_its_worker.md").read_text(encoding="utf-8")
    table = page.partition("## 6.")[2].partition("\n\nA kernel that")[0]
    names = [part for text in re.findall(r"`([\w.]+)`", table) for part in text.split(".")]
    assert len(names) > 12
    assert not [name for name in names if not re.search(rf"\b{name}\b", kernels)]

"""The page on the memory model and the switches say the same."""

from pathlib import Path

from jax_clc.emulator import axioms

PAGE = Path(__file__).parents[3] / "docs" / "memory_model.md"


def test_the_page_lists_every_switch_with_its_number_tag_and_words():
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ") and line[2].isdigit()]
    expected = [
        f"| {axioms.NUMBERS[name]} | `{name}` | {tag.value} | {axioms.STATEMENTS[name]} |"
        for name, tag in axioms.TAGS.items()
    ]
    assert rows == expected


def test_only_rules_of_the_isa_condemn_a_foreign_kernel():
    assert not axioms.is_unproven(None)
    assert not axioms.is_unproven("lanes_are_threads")
    assert axioms.is_unproven("fence_by_accessing_thread")
    assert axioms.is_unproven("scope_limits_async_hand_back")

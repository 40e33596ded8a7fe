"""Dotted keys of nested mappings."""

from __future__ import annotations

from ajet.utils.keys import leaves, under


def test_leaves_are_values_by_dotted_key_and_an_empty_mapping_is_a_value() -> None:
    tree = {"a": {"b": 1, "c": {"d": [2], "e": {}}}, "f": None}
    assert list(leaves(tree)) == [("a.b", 1), ("a.c.d", [2]), ("a.c.e", {}), ("f", None)]


def test_only_whole_parts_of_a_key_count_as_above_it() -> None:
    assert under("train.steps", "train") and under("train", "train")
    assert not under("training.steps", "train") and not under("train", "train.steps")

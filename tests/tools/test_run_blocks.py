"""The site shows what commands of a page print, and fails where a page shows something else."""

from __future__ import annotations

import pytest

from tests.pages import page, tool

run_blocks = tool("run_blocks")
PAGE = """
`words.txt`:

```
one
two
three
```

```console
$ cat words.txt
one
...
three
$ wc -l \\
    words.txt
99 words.txt
```
"""


def test_the_output_takes_the_place_of_what_the_page_shows() -> None:
    assert run_blocks.run_page(PAGE, "docs/words.md") == PAGE.replace("99", "3")


def test_a_page_without_consoles_stays_as_it_is() -> None:
    assert run_blocks.run_page("```\n$ false\n```\n", "docs/words.md") == "```\n$ false\n```\n"


def test_other_words_than_the_page_shows_are_an_error_that_prints_the_real_ones() -> None:
    with pytest.raises(
        run_blocks.BlockFailed, match=r"(?s)docs/words.md:11: `cat words.txt` prints .*\none\ntwo"
    ):
        run_blocks.run_page(PAGE.replace("\none\n...", "\nuno\n..."), "docs/words.md")


def test_a_command_that_fails_is_an_error_with_its_output() -> None:
    text = "```console\n$ echo no; exit 3\nno\n```\n"
    with pytest.raises(run_blocks.BlockFailed, match=r"(?s)docs/x.md:2: .* ended with exit code 3:\nno"):
        run_blocks.run_page(text, "docs/x.md")


def test_an_update_keeps_what_fits_and_fills_in_what_does_not() -> None:
    text = PAGE.replace("\none\n...", "\nuno\n...")
    updated = run_blocks.run_page(text, "docs/words.md", update=True)
    assert "$ cat words.txt\none\ntwo\nthree\n" in updated
    assert run_blocks.run_page(PAGE, "docs/words.md", update=True) == PAGE.replace("99", "3")


def test_a_marked_block_is_neither_written_nor_run() -> None:
    text = "<!-- not run: it fails -->\n```console\n$ false\n```\n"
    assert run_blocks.run_page(text + PAGE, "docs/x.md").startswith(text)
    (block, *_) = run_blocks.blocks(text)
    assert (block.reason, block.is_run) == ("it fails", False)


SHORTENED = """
<!-- shortened: --steps 2 -->
```console
$ true
$ echo first
first
$ printf '%s\\n' "step 9" "0.1 → 0.9" end
step 9
0.1 → 0.9
end
...
```
"""


def test_a_shortened_block_has_arguments_of_its_own_and_keeps_what_the_page_shows() -> None:
    assert run_blocks.run_page(SHORTENED, "docs/x.md") == SHORTENED
    (block,) = run_blocks.blocks(SHORTENED)
    assert (block.shortened, block.fewer, block.is_run) == (True, "--steps 2", True)
    with pytest.raises(run_blocks.BlockFailed, match=r"(?s)prints something else .*end\n--steps\n2$"):
        run_blocks.run_page(SHORTENED.replace("\nend\n", "\nstart\n"), "docs/x.md")


def test_what_a_whole_training_changes_is_compared_with_no_shortened_one() -> None:
    changed = SHORTENED.replace("\n0.1 → 0.9\n", "\nlearned: 0.2 → 0.8\n")
    assert run_blocks.run_page(changed, "docs/x.md") == changed


def test_an_update_runs_a_shortened_block_in_full() -> None:
    updated = run_blocks.run_page(SHORTENED.replace("...\n", ""), "docs/x.md", update=True)
    assert updated == SHORTENED.replace("...\n", "")


def test_commands_that_look_at_a_shortened_run_keep_what_the_page_shows() -> None:
    text = "<!-- shortened -->\n```console\n$ echo 20 steps\n30 steps\n```\n"
    assert run_blocks.run_page(text, "docs/x.md") == text


def test_folders_of_this_machine_are_not_shown() -> None:
    text = "```console\n$ pwd\n...\n$ command -v python\n...\n```\n"
    shown = run_blocks.run_page(text, "docs/words.md", update=True)
    assert (
        "$ pwd\n/home/ada/words\n" in shown and "$ command -v python\n/home/ada/.venv/bin/python\n" in shown
    )


def test_the_files_of_an_example_are_beside_the_page() -> None:
    text = "<!-- files: examples/drift -->\n```console\n$ ls agent.py\nagent.py\n```\n"
    assert run_blocks.run_page(text, "docs/x.md") == text


@pytest.mark.parametrize(
    ("shown", "fits"),
    [
        (["a", "b 9", "c"], True),
        (["..."], True),
        (["...", "c"], True),
        (["a", "..."], True),
        (["a", "...", "c"], True),
        (["a"], False),
        (["...", "b 2"], False),
        (["c", "...", "a"], False),
        ([], False),
    ],
)
def test_three_dots_stand_for_lines_that_are_left_out(shown: list[str], fits: bool) -> None:
    real = ["a", "b 2", "c"]
    found = run_blocks.fitted(shown, real)
    assert (found is not None) == fits
    if found:
        assert [line for line in found if line != "..."] == [line for line in real if line in found]


def test_the_first_agent_is_the_readmes() -> None:
    def agents(path: str) -> list[str]:
        return [block.code for block in run_blocks.blocks(page(path)) if block.file == "my_agent.py"]

    assert agents("docs/start.md") == agents("README.md") != []
    assert agents("docs/python.md") == agents("docs/exactness.md") != []

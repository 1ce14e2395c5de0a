"""patches/README.md says what series.toml says."""

from __future__ import annotations

import re

from patches import readme, series
from tests.patches.conftest import Mini


def test_the_checked_in_page_is_the_generated_one() -> None:
    known = series.load()
    page = (known.root / "README.md").read_text(encoding="utf-8")
    assert page == readme.render(known), "run `python -m patches readme`"


def test_every_patch_has_a_row_with_its_parts(mini: Mini) -> None:
    page = readme.render(mini.series)
    rows = [line for line in page.splitlines() if line.startswith("| [P0") or line.startswith("| A0")]
    assert len(rows) == 4
    link = "[sglang#30119](https://github.com/sgl-project/sglang/issues/30119); acme note"
    assert rows[0] == (
        "| [P01](0001-p01.patch) | [Alpha \\| one](contracts/test_p01_alpha.py) | Because of alpha. "
        f"| {link} | upstream has it |"
    )
    assert "| none found | never |" in rows[1]
    assert "| 0.5.17 |" in rows[3]
    for table in re.split(r"\n\n", page):
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines() if line.startswith("|")}
        assert len(widths) <= 1


def test_check_finds_a_stale_page(mini: Mini) -> None:
    from patches import cli

    root = ["--root", str(mini.root), "readme"]
    assert cli.main([*root, "--check"]) == 1
    assert cli.main(root) == 0
    assert cli.main([*root, "--check"]) == 0
    mini.toml("Because of", "On account of")
    assert cli.main([*root, "--check"]) == 1

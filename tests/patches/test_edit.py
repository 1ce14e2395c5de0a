"""refresh and import-git: what they write, and what they leave alone."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from patches import apply, cli, edit, series, wheelfile
from patches.errors import ConfigError
from tests.patches.conftest import ALPHA, BETA, P01, Mini


def text(mini: Mini) -> str:
    return (mini.root / "series.toml").read_text()


def run(mini: Mini, *args: str | Path) -> int:
    return cli.main(["--root", str(mini.root), *map(str, args)])


def test_refresh_keeps_comments_and_is_stable(mini: Mini, capsys: pytest.CaptureFixture[str]) -> None:
    before = text(mini)
    for comment in (
        "# kept: what this file is",
        "# kept: why four",
        "# kept: about P01",
        "# kept: a comment",
    ):
        assert before.count(comment) == 1
    assert run(mini, "refresh", "--wheel", mini.wheel) == 0
    assert text(mini) == before
    assert "up to date" in capsys.readouterr().out


def test_refresh_follows_a_changed_patch_down_the_chain(mini: Mini) -> None:
    old = series.load(mini.root)
    path = mini.root / "0001-p01.patch"
    path.write_text(P01.replace('"P01"', '"one"'))
    assert run(mini, "refresh", "--wheel", mini.wheel, "--check") == 1
    assert run(mini, "refresh", "--wheel", mini.wheel) == 0
    new = series.load(mini.root)
    alpha = "sglang/alpha.py"
    assert new.by_id("P01").files[alpha].before == old.by_id("P01").files[alpha].before
    assert new.by_id("P01").files[alpha].after == new.by_id("P02").files[alpha].before
    assert new.by_id("P02").files[alpha] != old.by_id("P02").files[alpha]
    assert new.by_id("P02").files["sglang/beta.py"] == old.by_id("P02").files["sglang/beta.py"]
    apply.build(new, mini.wheel)


def test_refresh_refuses_a_patch_made_for_something_else(
    mini: Mini, capsys: pytest.CaptureFixture[str]
) -> None:
    before = text(mini)
    path = mini.root / "0001-p01.patch"
    path.write_text(P01.replace("@@ -2,5 +2,6 @@", "@@ -3,5 +3,6 @@"))
    assert run(mini, "refresh", "--wheel", mini.wheel) == 78
    assert "not made for the base release: P01: sglang/alpha.py: hunk 1" in capsys.readouterr().err
    assert text(mini) == before


# --- import-git ----------------------------------------------------------------------------------

ENTRY = """[[patch]]
# a fragment keeps its comments
id = "{id}"
title = "{title}"
why = "Why {id}."
upstream = []
state = "carried"
contract = "contracts/test_{low}.py"
drop_when = "never"
"""


class Repo:
    def __init__(self, path: Path, mini: Mini) -> None:
        self.path = path
        path.mkdir()
        for name, member in wheelfile.read(mini.wheel).items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(member.data)
        self.git("init", "-q", "-b", "main")
        self.commit("released")
        self.git("tag", "base")

    def git(self, *args: str) -> None:
        subprocess.run(
            ["git", "-C", str(self.path), "-c", "user.name=t", "-c", "user.email=t@localhost", *args],
            check=True,
            capture_output=True,
        )

    def commit(self, subject: str, **files: str) -> None:
        for name, content in files.items():
            target = self.path / "sglang" / (name.replace("__", "/") + ".py")
            target.parent.mkdir(exist_ok=True)
            target.write_text(content)
        self.git("add", "-A")
        self.git("commit", "-q", "-m", subject)


@pytest.fixture
def repo(mini: Mini, tmp_path: Path) -> Repo:
    return Repo(tmp_path / "repo", mini)


@pytest.fixture
def meta(tmp_path: Path) -> Path:
    path = tmp_path / "meta"
    path.mkdir()
    return path


def fragment(meta: Path, ident: str, title: str) -> None:
    (meta / f"{ident}.toml").write_text(ENTRY.format(id=ident, title=title, low=ident.lower()))


def test_import_replaces_the_series_by_the_branch(mini: Mini, repo: Repo, meta: Path) -> None:
    alpha = ALPHA.replace("alpha = 5\n", "alpha = 55\n")
    repo.commit("P07: Alpha of the branch\n\nBecause.", alpha=alpha)
    repo.commit("P01: Beta and a new one", beta=BETA + "# no newline", extra__new="x = 1\n")
    fragment(meta, "P07", "Alpha of the branch")
    for gone in ("P02", "P03"):
        mini.toml(text(mini)[text(mini).index(f'[[patch]]\nid = "{gone}"') :].split("\n\n")[0], "")
    assert run(mini, "import-git", repo.path, "base..main", "--meta", meta, "--wheel", mini.wheel) == 0
    known = series.load(mini.root)
    assert [(p.id, p.patch) for p in known.patches] == [
        ("P07", "0001-p07-alpha-branch.patch"),
        ("P01", "0002-p01-beta-new-one.patch"),
        ("A01", None),
    ]
    assert sorted(f.name for f in mini.root.glob("*.patch")) == [p.patch for p in known.carried]
    assert known.by_id("P01").title == "Alpha | one"  # kept from series.toml, no fragment
    assert "# a fragment keeps its comments" in text(mini)
    assert "# kept: about P01" in text(mini)
    got = apply.build(known, mini.wheel)[1].members
    assert got["sglang/alpha.py"].data.decode() == alpha
    assert got["sglang/beta.py"].data.decode() == BETA + "# no newline"
    assert got["sglang/extra/new.py"].data == b"x = 1\n"
    first = (mini.root / "0001-p07-alpha-branch.patch").read_text()
    assert first.startswith("--- a/sglang/alpha.py\n+++ b/sglang/alpha.py\n@@ ")
    before = text(mini)
    assert run(mini, "refresh", "--wheel", mini.wheel) == 0
    assert run(mini, "import-git", repo.path, "base..main", "--meta", meta, "--wheel", mini.wheel) == 0
    assert text(mini) == before


@pytest.mark.parametrize(
    ("subject", "change", "complaint"),
    [
        ("Tidy up", {"alpha": "x\n"}, "subject 'Tidy up' is not like 'P06: title'"),
        ("P55: unknown", {"alpha": "x\n"}, "P55: no entry in series.toml and no fragment"),
        ("P01: only one", {"alpha": "x\n"}, "P02, P03: carried, but without a commit"),
        ("P01: empty file", {"alpha": "x\n", "blank": ""}, "sglang/blank.py: not a text change"),
    ],
)
def test_import_refuses_and_writes_nothing(
    mini: Mini,
    repo: Repo,
    capsys: pytest.CaptureFixture[str],
    subject: str,
    change: dict[str, str],
    complaint: str,
) -> None:
    before = {p.name: p.read_bytes() for p in mini.root.iterdir()}
    repo.commit(subject, **change)
    assert run(mini, "import-git", repo.path, "base..main", "--wheel", mini.wheel) == 78
    err = capsys.readouterr().err
    assert complaint in err
    assert err.count("\n") == 1
    assert {p.name: p.read_bytes() for p in mini.root.iterdir()} == before


def test_import_refuses_two_commits_of_one_patch_and_bad_spans(mini: Mini, repo: Repo) -> None:
    repo.commit("P01: one", alpha="x\n")
    repo.commit("P01: two", alpha="y\n")
    with pytest.raises(ConfigError, match="P01 has two commits"):
        edit.commits(repo.path, "base..main")
    with pytest.raises(ConfigError, match="no commits in"):
        edit.commits(repo.path, "main..base")
    with pytest.raises(ConfigError, match="git log in"):
        edit.commits(repo.path, "base..nowhere")


def test_a_fragment_must_hold_its_one_entry(mini: Mini, repo: Repo, meta: Path) -> None:
    repo.commit("P01: one", alpha="x\n")
    fragment(meta, "P07", "x")
    shutil.move(meta / "P07.toml", meta / "P08.toml")
    with pytest.raises(ConfigError, match=r"P08\.toml: needs exactly one \[\[patch\]\] whose id is P08"):
        edit.import_git(mini.root, repo.path, "base..main", meta, wheelfile.read(mini.wheel))


def test_slugs_are_short_and_safe() -> None:
    assert edit.slug("The head's gate is one, for all that packs it — really") == "head-gate-one-all-packs"
    assert edit.slug("…") == "patch"

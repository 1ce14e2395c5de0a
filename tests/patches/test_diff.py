"""The applier: exact, all or nothing, and right for every diff that difflib can write."""

from __future__ import annotations

import difflib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patches import diff
from patches.errors import ConfigError, DoesNotApply

LINE = st.sampled_from(
    [b"a", b"b", b"", b"  c", b"-- x", b"++ y", b"@@ -1 +1 @@", b"\\ z", b"\x0c\xff", b"d\r"]
)


@st.composite
def texts(draw: st.DrawFn) -> bytes:
    lines = draw(st.lists(LINE, max_size=40))
    return b"\n".join(lines) + (b"\n" if draw(st.booleans()) and lines else b"")


@st.composite
def edited(draw: st.DrawFn) -> tuple[bytes, bytes]:
    old = draw(texts())
    lines = diff.split_lines(old)
    for _ in range(draw(st.integers(0, 5))):
        at = draw(st.integers(0, len(lines)))
        cut = draw(st.integers(0, 3))
        lines[at : at + cut] = [line + b"\n" for line in draw(st.lists(LINE, max_size=3))]
    new = b"".join(lines)
    if draw(st.booleans()):
        new = new.removesuffix(b"\n")
    if draw(st.booleans()):
        old, new = old.replace(b"\n", b"\r\n"), new.replace(b"\n", b"\r\n")
    return old, new


def unified(old: bytes, new: bytes, context: int = 3) -> bytes:
    """difflib's diff in the form git writes it, with its marker for a last line without newline."""
    out = []
    names = (b"a/f.py", b"b/f.py")
    for line in difflib.diff_bytes(
        difflib.unified_diff, diff.split_lines(old), diff.split_lines(new), *names, n=context, lineterm=b"\n"
    ):
        out.append(line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n")
    return b"".join(out)


@settings(max_examples=200, deadline=None)
@given(edited(), st.integers(1, 5))
def test_apply_gives_the_target_and_reverse_gives_the_source(pair: tuple[bytes, bytes], context: int) -> None:
    old, new = pair
    if old == new:
        return
    (patch,) = diff.parse(unified(old, new, context), "p")
    done = diff.apply_file(patch, old)
    assert done.text == new
    assert done.offsets == {}
    assert diff.apply_file(patch.reversed(), new).text == old


@settings(max_examples=200, deadline=None)
@given(edited(), st.integers(1, 30))
def test_a_shifted_file_is_found_or_refused_never_guessed(pair: tuple[bytes, bytes], shift: int) -> None:
    old, new = pair
    if old == new or not old:
        return
    (patch,) = diff.parse(unified(old, new), "p")
    head = b"".join(b"unique %d\n" % i for i in range(shift))
    try:
        done = diff.apply_file(patch, head + old)
    except DoesNotApply:
        return
    # Equal blocks may make another place exact; a text of distinct lines may not.
    if len(set(diff.split_lines(old))) == len(diff.split_lines(old)):
        assert done.text == head + new
        assert set(done.offsets.values()) == {shift}


def numbered(n: int = 40) -> bytes:
    return b"".join(b"line %d\n" % i for i in range(1, n + 1))


def change(old: bytes, new: bytes) -> diff.FilePatch:
    (patch,) = diff.parse(unified(old, new), "p")
    return patch


def test_offsets_are_reported_per_hunk() -> None:
    old = numbered()
    patch = change(old, old.replace(b"line 5\n", b"five\n").replace(b"line 30\n", b"thirty\n"))
    moved = old.replace(b"line 1\n", b"line 0\nline 1\n").replace(b"line 20\n", b"line 20\nx\ny\n")
    done = diff.apply_file(patch, moved)
    assert done.offsets == {1: 1, 2: 3}
    assert done.text == moved.replace(b"line 5\n", b"five\n").replace(b"line 30\n", b"thirty\n")


def test_an_ambiguous_place_is_refused() -> None:
    block = b"if x:\n    pass\n    y = 1\n    z\n"
    patch = change(block, block.replace(b"y = 1", b"y = 2"))
    twice = b"first\n" + block + b"between\n" + block
    with pytest.raises(DoesNotApply, match=r"matches in 2 places \(lines 2, 7\)"):
        diff.apply_file(patch, twice)


def test_no_fuzz_one_changed_context_line_is_enough() -> None:
    old = numbered()
    patch = change(old, old.replace(b"line 5\n", b"five\n"))
    with pytest.raises(
        DoesNotApply, match=r"hunk 1 .*\(6 of 7 lines\) differs in line 3: .* 'line 3', is 'LINE 3'"
    ):
        diff.apply_file(patch, old.replace(b"line 3\n", b"LINE 3\n"))
    with pytest.raises(DoesNotApply, match="differs in line 3: should be 'line 3'"):
        diff.apply_file(patch, old.replace(b"line 3\n", b"line 3 \n"))
    with pytest.raises(DoesNotApply, match=r"nearest is line 2, where the file .* ends"):
        diff.apply_file(patch, numbered(6))


def test_line_ends_are_part_of_a_line() -> None:
    old = numbered()
    patch = change(old, old.replace(b"line 5\n", b"five\n"))
    with pytest.raises(DoesNotApply):
        diff.apply_file(patch, old.replace(b"\n", b"\r\n"))


def test_a_hunk_for_the_end_does_not_fit_the_middle() -> None:
    patch = change(b"a\nb\n", b"a\nb\nc")
    with pytest.raises(DoesNotApply, match="the file goes on"):
        diff.apply_file(patch, b"a\nb\nmore\n")


def test_new_and_deleted_files() -> None:
    data = (
        b"--- /dev/null\n+++ b/n.py\n@@ -0,0 +1,2 @@\n+x\n+y\n--- a/d.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-z\n"
    )
    files = diff.parse(data, "p")
    texts = {"d.py": b"z\n"}
    done = diff.apply(files, texts.get, "p")
    assert {k: v.text for k, v in done.items()} == {"n.py": b"x\ny\n", "d.py": None}
    back = diff.apply(diff.reverse(files), {"n.py": b"x\ny\n"}.get, "p")
    assert {k: v.text for k, v in back.items()} == {"n.py": None, "d.py": b"z\n"}
    with pytest.raises(DoesNotApply, match="exists already"):
        diff.apply(files, {"n.py": b"", "d.py": b"z\n"}.get, "p")
    with pytest.raises(DoesNotApply, match="holds other lines"):
        diff.apply(files, {"d.py": b"z\nmore\n"}.get, "p")
    with pytest.raises(DoesNotApply, match=r"P99: d\.py: no such file"):
        diff.apply(files, {}.get, "P99")


def test_hunk_states_tell_absorbed_from_failing() -> None:
    old = numbered()
    new = old.replace(b"line 5\n", b"five\n").replace(b"line 20\n", b"twenty\n").replace(b"line 35\n", b"3\n")
    patch = change(old, new)
    half = old.replace(b"line 5\n", b"five\n").replace(b"line 33\n", b"other\n")
    states = [state.split(":")[0] for _hunk, state in diff.hunk_states(patch, half)]
    assert states == ["absorbed", "applies", "fails"]


HEAD = "--- a/f.py\n+++ b/f.py\n"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("nothing here\n", "no unified diff"),
        (HEAD, "no hunks"),
        (HEAD + "@@ -1,2 +1,2 @@\n a\n-b\n", "the patch ends inside it"),
        (HEAD + "@@ -1,1 +1,1 @@\n-a\n+b\n+c\n", "more lines than its header"),
        (HEAD + "@@ -1,2 +1,1 @@\n+a\n+b\n", "do not add up"),
        (HEAD + "@@ -1,2 +1,2 @@\n a\n*b\n", "do not add up"),
        (HEAD + "@@ -9 +9 @@\n-a\n+b\n@@ -1 +1 @@\n-a\n+b\n", "out of order"),
        (HEAD + "@@ -1 +1 @@\n-a\n+b\n" + HEAD + "@@ -1 +1 @@\n-b\n+c\n", "appears twice"),
        ("@@ -1 +1 @@\n-a\n+b\n", "without --- and"),
        ("--- a/f.py\n+++ b/g.py\n@@ -1 +1 @@\n-a\n+b\n", "renames are not supported"),
        ("--- a/../f.py\n+++ b/../f.py\n@@ -1 +1 @@\n-a\n+b\n", "unsafe path"),
        ("--- a//etc/f\n+++ b//etc/f\n@@ -1 +1 @@\n-a\n+b\n", "unsafe path"),
        ("--- f.py\n+++ f.py\n@@ -1 +1 @@\n-a\n+b\n", "must start with a/ or b/"),
        ('--- "a/f\\303"\n+++ "b/f\\303"\n@@ -1 +1 @@\n-a\n+b\n', "quoted path"),
        ("old mode 100644\nnew mode 100755\n", "only text changes"),
        ("GIT binary patch\n", "only text changes"),
        ("--- /dev/null\n+++ /dev/null\n@@ -1 +1 @@\n-a\n+b\n", "both sides"),
    ],
)
def test_broken_patches_are_refused_in_one_line(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint) as e:
        diff.parse(text.encode(), "0001-x.patch")
    assert str(e.value).startswith("0001-x.patch: ")
    assert "\n" not in str(e.value)


def test_prose_time_stamps_and_mail_signatures_are_skipped() -> None:
    text = "From: me\n\nIt says\n---\n f.py | 2 +-\n\ndiff --git a/f.py b/f.py\nindex 1..2 100644\n"
    text += "--- a/f.py\t2026-01-01\n+++ b/f.py\t2026-01-02\n@@ -1 +1 @@ def f():\n-a\n+b\n-- \n2.43.0\n"
    (patch,) = diff.parse(text.encode(), "p")
    assert patch.path == "f.py"
    assert patch.hunks[0].section == "def f():"
    assert diff.apply_file(patch, b"a\n").text == b"b\n"

"""Write series.toml: file hashes (`refresh`) and patches taken from a git branch (`import-git`).

The file is edited as text, block by block, so comments and the order of keys stay. Only `patch = ` and the
`[patch.files]` table of an entry belong to the tool.
"""

from __future__ import annotations

import re
import subprocess
import tomllib
from dataclasses import replace
from pathlib import Path

from patches import diff, wheelfile
from patches.apply import Outcome, apply_one
from patches.errors import ConfigError, NotWhole
from patches.series import FileHashes, Patch, Series, load, parse_entry
from patches.wheelfile import Members

_SUBJECT = re.compile(r"^([A-Z]{1,3}\d{2}): (\S.*)$")
_ENTRY = re.compile(r"^\[\[patch\]\]\s*(#.*)?$")
_STOP_WORDS = {"a", "an", "and", "as", "for", "is", "it", "its", "of", "or", "s", "that", "the", "to", "what"}
_TABLE = re.compile(r"^\[")


def blocks(text: str) -> tuple[str, list[str]]:
    """(text before the first entry, the entries), comments directly above an entry going with it."""
    lines = text.splitlines(keepends=True)
    starts = []
    for i, line in enumerate(lines):
        if _ENTRY.match(line):
            start = i
            while start and lines[start - 1].startswith("#"):
                start -= 1
            starts.append(start)
    ends = [*starts[1:], len(lines)][: len(starts)]
    head = "".join(lines[: starts[0]] if starts else lines)
    return head, ["".join(lines[a:b]) for a, b in zip(starts, ends, strict=True)]


def block_id(block: str) -> str:
    entries = tomllib.loads(block).get("patch", [])
    ident = entries[0].get("id") if entries else None
    if not isinstance(ident, str):
        raise ConfigError("an entry without an id")
    return ident


def with_files(block: str, patch: str | None, files: dict[str, FileHashes]) -> str:
    """The entry with its `patch` key and its `[patch.files]` table replaced."""
    kept: list[str] = []
    in_files = False
    for line in block.rstrip("\n").splitlines():
        if _TABLE.match(line) and not _ENTRY.match(line):
            in_files = line.strip().startswith("[patch.files]")
        if not in_files and not re.match(r"^patch\s*=", line):
            kept.append(line)
    while kept and not kept[-1].strip():
        kept.pop()
    if patch is not None:
        kept.append(f'patch = "{patch}"')
    if files:
        kept.append("[patch.files]")
        kept += [
            f'"{path}" = {{ before = "{h.before}", after = "{h.after}" }}'
            for path, h in sorted(files.items())
        ]
    return "\n".join(kept) + "\n"


def hashes(series: Series, members: Members) -> dict[str, dict[str, FileHashes]]:
    """patch id -> path -> hashes, by applying the series to the released members."""
    outcome = Outcome(members)
    for patch in series.carried:
        outcome.members = apply_one(outcome.members, patch, series.read(patch), outcome)
    if outcome.notes:
        raise ConfigError(f"a patch is not made for the base release: {outcome.notes[0]}")
    return outcome.files


def refreshed(series: Series, members: Members, text: str) -> str:
    """The text of series.toml with every hash recomputed; equal input gives equal output."""
    found = hashes(series, members)
    head, entries = blocks(text)
    out = []
    for block in entries:
        patch = series.by_id(block_id(block))
        out.append(with_files(block, patch.patch, found.get(patch.id, {})))
    return _join(head, out)


def _join(head: str, entries: list[str]) -> str:
    return "\n".join([head.rstrip("\n") + "\n", *entries])


def refresh(root: Path, members: Members, *, check: bool = False) -> bool:
    """Rewrite root/series.toml; True when it changed. `check` raises NotWhole instead of writing."""
    path = root / "series.toml"
    text = path.read_text(encoding="utf-8")
    new = refreshed(load(root, hashes=False), members, text)
    if new == text:
        return False
    if check:
        raise NotWhole("series.toml is not up to date; run `python -m patches refresh`")
    with wheelfile.writing(path) as part:
        part.write_text(new, encoding="utf-8")
    return True


# --- import-git ----------------------------------------------------------------------------------


def _git(repo: Path, *args: str) -> bytes:
    done = subprocess.run(["git", "-C", str(repo), *args], capture_output=True, check=False)
    if done.returncode:
        raise ConfigError(
            f"git {args[0]} in {repo}: {done.stderr.decode('utf-8', 'replace').strip().splitlines()[-1]}"
        )
    return done.stdout


def slug(title: str, words: int = 5) -> str:
    """`One head gate for every layout` -> one-head-gate-every-layout; for patch file names."""
    parts = [w for w in re.findall(r"[a-z0-9]+", title.lower()) if w not in _STOP_WORDS]
    return "-".join(parts[:words]) or "patch"


def commits(repo: Path, span: str) -> list[tuple[str, str, str]]:
    """(commit, id, title) of a linear BASE..BRANCH, oldest first; one commit per patch, `P06: title`."""
    out: list[tuple[str, str, str]] = []
    log = _git(repo, "log", "--reverse", "--no-merges", "--format=%H%x09%s", span).decode()
    for line in log.splitlines():
        sha, _, subject = line.partition("\t")
        match = _SUBJECT.match(subject)
        if match is None:
            raise ConfigError(f"{repo}: commit {sha[:12]}: subject {subject!r} is not like 'P06: title'")
        if match[1] in {ident for _, ident, _ in out}:
            raise ConfigError(f"{repo}: {match[1]} has two commits in {span}; squash them into one")
        out.append((sha, match[1], match[2]))
    if not out:
        raise ConfigError(f"{repo}: no commits in {span}")
    return out


def commit_patch(repo: Path, sha: str) -> bytes:
    """A commit as a plain unified diff below sglang/, without git's own header lines."""
    args = ["--no-ext-diff", "--no-textconv", "--no-color", "--no-renames", "--unified=3"]
    args += ["--diff-algorithm=histogram", "--src-prefix=a/", "--dst-prefix=b/"]
    raw = _git(repo, "diff", *args, f"{sha}^", sha, "--", "sglang")
    noise = (b"diff --git ", b"index ", b"new file mode ", b"deleted file mode ")
    # Header lines start in column one; lines of a hunk start with one of " +-\\".
    plain = b"".join(line for line in diff.split_lines(raw) if not line.startswith(noise))
    named = _git(repo, "diff", "--name-only", "--no-renames", f"{sha}^", sha).decode().splitlines()
    held = {f.path for f in diff.parse(plain, sha[:12])} if plain else set()
    if odd := set(named) - held:
        raise ConfigError(
            f"{repo}: commit {sha[:12]}: {', '.join(sorted(odd))}: not a text change below sglang/"
        )
    return plain


def import_git(root: Path, repo: Path, span: str, meta: Path | None, members: Members) -> list[str]:
    """Replace the patch files and their entries by the commits of a branch; returns what was written.

    Entries come from `meta`/ID.toml when it exists, else from series.toml as it is. Entries of state
    upstream or dropped are kept (or taken from `meta`) after the carried ones. All is written or nothing.
    """
    toml = root / "series.toml"
    head, old = blocks(toml.read_text(encoding="utf-8"))
    known = {block_id(b): b for b in old}
    if meta is not None:
        for file in sorted(meta.glob("*.toml")):
            text = file.read_text(encoding="utf-8")
            known[_fragment(file, text)] = text
    files: dict[str, bytes] = {}
    entries: dict[str, tuple[str, Patch]] = {}
    for number, (sha, ident, title) in enumerate(commits(repo, span), 1):
        if ident not in known:
            raise ConfigError(f"{ident}: no entry in series.toml and no fragment {ident}.toml")
        name = f"{number:04d}-{ident.lower()}-{slug(title)}.patch"
        files[name] = commit_patch(repo, sha)
        diff.parse(files[name], name)
        entry = parse_entry(tomllib.loads(known[ident])["patch"][0], ident, hashes=False)
        entries[ident] = (known[ident], replace(entry, patch=name))
    if left := [i for i in known if i not in entries and _state(known[i]) == "carried"]:
        raise ConfigError(f"{', '.join(left)}: carried, but without a commit in {span}")
    outcome = Outcome(members)
    for ident, (block, patch) in entries.items():
        assert patch.patch is not None
        outcome.members = apply_one(outcome.members, patch, files[patch.patch], outcome)
        entries[ident] = (with_files(block, patch.patch, outcome.files[ident]), patch)
    rest = [with_files(known[i], None, {}) for i in sorted(known) if i not in entries]
    text = _join(head, [b for b, _ in entries.values()] + rest)
    tomllib.loads(text)
    for name, data in files.items():
        with wheelfile.writing(root / name) as part:
            part.write_bytes(data)
    with wheelfile.writing(toml) as part:
        part.write_text(text, encoding="utf-8")
    for stale in root.glob("[0-9][0-9][0-9][0-9]-*.patch"):
        if stale.name not in files:
            stale.unlink()
    return [*files, "series.toml"]


def _fragment(file: Path, text: str) -> str:
    try:
        ident = block_id(text)
        entries = tomllib.loads(text)["patch"]
    except (tomllib.TOMLDecodeError, KeyError, IndexError, ConfigError) as e:
        raise ConfigError(f"{file.name}: not a [[patch]] table: {e}") from None
    if len(entries) != 1 or ident != file.stem:
        raise ConfigError(f"{file.name}: needs exactly one [[patch]] whose id is {file.stem}")
    return ident


def _state(block: str) -> str:
    return parse_entry(tomllib.loads(block)["patch"][0], "entry", hashes=False).state

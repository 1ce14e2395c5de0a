"""`patches/README.md`: what we carry and why, generated from series.toml."""

from __future__ import annotations

import re

from patches import wheelfile
from patches.errors import NotWhole
from patches.series import Patch, Series

_REPOS = {
    "sglang": "sgl-project/sglang",
    "flashinfer": "flashinfer-ai/flashinfer",
    "modelopt": "NVIDIA/Model-Optimizer",
    "vllm": "vllm-project/vllm",
}
_REF = re.compile(r"(?:[\w-]+/)?\b(" + "|".join(_REPOS) + r")#(\d+)", re.IGNORECASE)

_HEAD = """# What we carry on SGLang {version}, and why

<!-- Generated from series.toml by `python -m patches readme`. Do not edit. -->

The engine is the released wheel of SGLang {version}, pinned by sha256, plus the {carried} below; the result
calls itself `{spark}`. Every patch is Python only, does one thing, and leaves the default path as it was.
Each has a contract: a test file that fails on the released engine and passes on ours, run both ways by
`python -m patches contracts`. A patch goes when its last column comes true.
"""

_TAIL = """
## Commands

| command | does |
|---|---|
| `python -m patches status` | the series as a table |
| `python -m patches apply WHEEL -o DIR` | the patched wheel from a pinned released one; same bytes every time |
| `python -m patches apply --tree DIR` | the patched files unpacked, for PYTHONPATH |
| `python -m patches verify [WHEEL or ENV]` | applied, missing, upstream or drifted, per patch; exit 1 when not whole |
| `python -m patches contracts [ID…]` | every contract on the released and on the patched engine |
| `python -m patches try VERSION` | what of the series applies to another release, what it absorbed |
| `python -m patches import-git REPO BASE..BRANCH --meta DIR` | patch files from a branch, one commit per patch |
| `python -m patches refresh` | file hashes in series.toml, recomputed |

Exit codes: 0 ok, 1 not whole or a contract does not behave, 2 usage, 69 the index does not answer,
73 cannot write, 78 a wheel, patch or series.toml is not right.

## A new patch

1. Write the change as one commit `PNN: title` on a tree of the released wheel, and `PNN.toml` with its entry.
2. Write `contracts/test_pNN_name.py`. Every test in it must fail on the released engine by an assertion of its
   own; mark with `@pytest.mark.guard` those that hold the unchanged default path and pass on both.
3. `import-git`, then `contracts PNN`, then `readme`, and raise `release` in series.toml once it has shipped.
"""


def render(series: Series) -> str:
    """The whole page."""
    carried = series.carried
    rest = [p for p in series.patches if p.state == "upstream"]
    dropped = [p for p in series.patches if p.state == "dropped"]
    count = f"{len(carried)} patch{'' if len(carried) == 1 else 'es'}"
    out = [_HEAD.format(version=series.version, carried=count, spark=series.spark_version)]
    if carried:
        out += [
            "\n## Carried, in order\n",
            _table(("id", "title", "why", "upstream", "drop when"), [_row(p) for p in carried]),
        ]
    if rest:
        out += [
            "\n## Already upstream, held by a contract\n",
            "Nothing is patched here. The contract runs on both engines, so that a later base cannot lose the",
            "behaviour silently.\n",
            _table(
                ("id", "title", "why it matters", "upstream", "since", "drop when"),
                [(*_row(p)[:4], p.since or "", _cell(p.drop_when)) for p in rest],
            ),
        ]
    if dropped:
        out += [
            "\n## Dropped\n",
            _table(("id", "title", "why", "upstream", "dropped because"), [_row(p) for p in dropped]),
        ]
    out.append(_TAIL)
    return "\n".join(out)


def _row(patch: Patch) -> tuple[str, ...]:
    title = patch.title
    if patch.contract:
        title = f"[{_cell(title)}]({patch.contract})"
    ident = f"[{patch.id}]({patch.patch})" if patch.patch else patch.id
    refs = "; ".join(_link(_cell(r)) for r in patch.upstream) or "none found"
    return ident, title, _cell(patch.why), refs, _cell(patch.drop_when)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _link(ref: str) -> str:
    return _REF.sub(
        lambda m: f"[{m[1]}#{m[2]}](https://github.com/{_REPOS[m[1].lower()]}/issues/{m[2]})", ref
    )


def _table(headers: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(headers) + " |", "|" + "---|" * len(headers)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def write(series: Series, *, check: bool = False) -> bool:
    """Write README.md beside series.toml; True when it changed. `check` raises NotWhole instead."""
    path = series.root / "README.md"
    new = render(series)
    if path.is_file() and path.read_text(encoding="utf-8") == new:
        return False
    if check:
        raise NotWhole("patches/README.md is not what series.toml says; run `python -m patches readme`")
    with wheelfile.writing(path) as part:
        part.write_text(new, encoding="utf-8")
    return True

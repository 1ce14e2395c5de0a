"""No key, no token, no home path in a bundle; what is of use stays."""

import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch import bundle
from launch.errors import CannotWrite, CheckFailed

TOKEN = "hf_" + "AbCdEfGhIjKlMnOpQrStUvWx"
KEY = "s3cr3t-engine-key"
HOME = "/home/maria"

LOG = f"""\
[12:00:00] server_args=ServerArgs(model_path='{HOME}/models/x', api_key='other-secret-1', port=30000)
Authorization: Bearer eyJhbGciOi.payload.sig
curl -H 'authorization: bearer {KEY}' http://user:pa55word@proxy:3128/
HF_TOKEN={TOKEN} "api-key": "json-secret-2", password = plain-secret-3
-----BEGIN OPENSSH PRIVATE KEY-----
b3BlbnNzaC1rZXktdjEAAA
-----END OPENSSH PRIVATE KEY-----
loaded /root/.cache/x and /Users/jane/y on spark-7f3a by maria
max_total_num_tokens=16384, KV Cache is allocated. #tokens: 16384
"""
LEAKS = [
    TOKEN, KEY, "other-secret-1", "json-secret-2", "plain-secret-3", "eyJhbGciOi", "pa55word", "b3BlbnNz",
    HOME, "/root", "jane", "maria", "spark-7f3a",
]  # fmt: skip


@pytest.fixture
def written(tmp_path):
    state = tmp_path / "state"
    (state / "logs").mkdir(parents=True)
    (state / "admission").mkdir()
    (state / "logs" / "a.log").write_text(LOG)
    (state / "state.json").write_text('{"phase": "tripped", "low_water": 123}')
    (state / "admission" / "a.json").write_text(f'{{"forced": ["see {HOME}/x"]}}')
    (tmp_path / "key").write_text(KEY + "\n")
    secrets = bundle.secrets_of(
        {"HF_TOKEN": TOKEN, "PATH": "/usr/bin", "MY_KEY_FILE": "/a/b"}, [tmp_path / "key"]
    )
    out = tmp_path / "b.tar.gz"
    bundle.write(out, bundle.parts(state), secrets, [HOME], ["maria", "spark-7f3a"])
    with tarfile.open(out) as tar:
        return {m.name: tar.extractfile(m).read().decode() for m in tar.getmembers()}


@pytest.mark.parametrize("leak", LEAKS)
def test_nothing_private_is_in_it(written, leak):
    assert [name for name, text in written.items() if leak in text or leak in name] == []


def test_what_is_of_use_stays(written):
    log = written["sparkserve-bundle/state/logs/a.log"]
    assert "max_total_num_tokens=16384" in log
    assert "model_path='~/models/x'" in log
    assert "port=30000" in log
    assert "tripped" in written["sparkserve-bundle/state/state.json"]
    assert "MemTotal" in written["sparkserve-bundle/proc/meminfo"]


def test_only_the_end_of_a_long_log(tmp_path):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "x.log").write_text("a" * 500_000 + "THE END")
    text = bundle.parts(tmp_path)["state/logs/x.log"]
    assert text.endswith("THE END")
    assert len(text) == bundle.TAIL_BYTES


def test_a_secret_that_survives_stops_the_bundle(tmp_path, monkeypatch):
    monkeypatch.setattr(bundle, "redact", lambda text, *_: text)
    with pytest.raises(CheckFailed, match="no bundle was written"):
        bundle.write(tmp_path / "b.tgz", {"a": KEY}, [KEY], [], [])
    assert list(tmp_path.iterdir()) == []


def test_unwritable_place(tmp_path):
    with pytest.raises(
        CannotWrite, match=r"b\.tgz: No such file or directory; give --bundle a file in a folder that exists"
    ):
        bundle.write(tmp_path / "no" / "b.tgz", {"a": "x"}, [], [], [])


@given(st.text(alphabet=st.characters(categories=["Ll", "Lu", "Nd"]), min_size=8), st.text(), st.text())
def test_known_secrets_never_survive(secret, before, after):
    assert secret not in bundle.redact(before + secret + after, [secret], ["/home/u"]).replace("***", "\0")


def test_short_or_path_values_are_not_taken_for_secrets():
    assert bundle.secrets_of({"API_KEY": "abc", "KEY_FILE": "/x/y", "A_TOKEN": "longenough"}, []) == [
        "longenough"
    ]

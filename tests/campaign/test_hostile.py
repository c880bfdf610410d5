"""The hostile parts in small form, and proof that each of them finds what it looks for."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from campaign.hostile import corpus, paths
from campaign.hostile.access import AccessPart
from campaign.hostile.bombs import defuse
from campaign.hostile.corpus import Corpus
from campaign.hostile.fuzz import FuzzPart
from campaign.hostile.grpc_calls import GrpcCallsPart
from campaign.hostile.mutator import INPUT_BYTES_MAX, Mutator
from campaign.hostile.part import PARTS, all_targets
from campaign.hostile.paths import PathsPart
from campaign.hostile.requests import RequestsPart
from campaign.hostile.secrets import SecretsPart
from campaign.hostile.target import Disagreement, Target, by_both
from tiermq.broker.admin.topic_admin_processor import TopicAdminProcessor
from tiermq.broker.grpc import send_calls
from tiermq.message import client_batch
from tiermq.remoting.access import ANY_ACCOUNT, serves
from tiermq.remoting.codes import RequestCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.permissions import AccessTable, Account


def test_every_decoder_takes_its_kept_corpus_and_some_new_inputs(tmp_path: Path) -> None:
    part = FuzzPart(all_targets, corpora=_copied(tmp_path / "corpora"), inputs=12)
    outcome = part.round(1, tmp_path / "scratch")
    assert outcome.findings == []
    assert outcome.counts["inputs"] > outcome.counts["kept_inputs"] > 500


def _copied(path: Path) -> Path:
    """A corpus that a test may add to."""
    for directory in corpus.HERE.iterdir():
        (path / directory.name).mkdir(parents=True)
        for file in directory.iterdir():
            (path / directory.name / file.name).write_bytes(file.read_bytes())
    return path


def test_every_target_has_a_kept_corpus_of_small_files(tmp_path: Path) -> None:
    for target in all_targets(tmp_path):
        kept = Corpus(corpus.HERE, target.name).inputs()
        assert kept, target.name
        assert all(len(data) <= INPUT_BYTES_MAX for _, data in kept)


def test_a_decoder_that_breaks_is_found_kept_and_shrunk(tmp_path: Path) -> None:
    def attempt(data: bytes) -> str:
        if b"!" in data[3:]:
            raise IndexError("a mistake of the decoder's own")
        return "sound"

    target = Target("fragile", lambda: [b"some sound bytes"], attempt, (b"!",))
    part = FuzzPart(lambda _scratch: [target], corpora=tmp_path, inputs=200)
    [finding] = part.round(5, tmp_path).findings
    assert finding.found.startswith("IndexError")
    [(name, data)] = [kept for kept in Corpus(tmp_path, "fragile").inputs() if kept[0].startswith("found-")]
    assert b"!" in data
    assert part.round(6, tmp_path).findings, f"{name} is tried again whatever the seed is"
    shrunk = part.shrink(5, tmp_path)
    assert shrunk is not None
    assert shrunk.steps[0].startswith("4 bytes")


def test_a_decoder_without_a_bound_is_found_by_the_batch_s_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def careless(data: bytes, position: int, end: int) -> tuple[client_batch.BatchElement, int]:
        return client_batch.BatchElement(0, data[position : position + data[position + 40]], b""), end

    monkeypatch.setattr(client_batch, "_decode_element", careless)
    part = FuzzPart(
        lambda scratch: [each for each in all_targets(scratch) if each.name == "batch"], corpora=tmp_path, inputs=60
    )
    assert part.round(3, tmp_path / "scratch").findings


def test_kernels_that_disagree_are_reported() -> None:
    said = iter((1, 2))
    with pytest.raises(Disagreement, match="pure says 1, compiled says 2"):
        by_both("a number", lambda _twin: next(said))


def test_mutations_are_known_by_their_seed_and_bounded() -> None:
    def made(seed: int) -> list[bytes]:
        mutator = Mutator(random.Random(seed), (b"word",))
        return [mutator.mutated(b'{"a":[1,2,{"b":"c"}]}', [b"other"]) for _ in range(200)]

    assert made(1) == made(1) != made(2)
    assert max(map(len, made(3))) <= INPUT_BYTES_MAX


def test_senseless_requests_are_answered(tmp_path: Path) -> None:
    outcome = RequestsPart(requests=60).round(1, tmp_path)
    assert outcome.findings == []
    assert outcome.counts["distinct_answers"] > 10


def test_a_handler_that_trips_over_a_request_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @serves(RequestCode.GET_TOPIC_CONFIG, access=ANY_ACCOUNT)
    def settings(_self: object, _connection: object, command: RemotingCommand) -> RemotingCommand:
        return command.respond(remark=command.ext["no such field"])

    monkeypatch.setattr(TopicAdminProcessor, "settings", settings)
    assert any(
        "a mistake of the handler" in each.found for each in RequestsPart(requests=150).round(1, tmp_path).findings
    )


def test_peers_without_a_right_get_nothing(tmp_path: Path) -> None:
    assert AccessPart().round(1, tmp_path).findings == []


def test_a_check_that_lets_everybody_in_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AccessTable, "signer_of", lambda _self, _command, _host: None)
    found = {finding.found.split(",")[0] for finding in AccessPart().round(1, tmp_path).findings}
    assert len(found) > 20


def test_names_that_climb_stay_inside(tmp_path: Path) -> None:
    assert PathsPart(names=3).round(1, tmp_path).findings == []


def test_a_name_that_is_let_out_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "check_topic", lambda _name: None)
    assert any("lets" in finding.found for finding in PathsPart(names=3).round(1, tmp_path).findings)


@pytest.mark.parametrize("kind", ["json keys", "json nesting"])
def test_json_that_would_unpack_to_gigabytes_is_refused(kind: str) -> None:
    defuse_without_limit(kind)


def defuse_without_limit(kind: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("campaign.hostile.bombs.resource.setrlimit", lambda *_limits: None)
        defuse(kind, 40)


def test_a_bomb_that_goes_off_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("campaign.hostile.bombs.resource.setrlimit", lambda *_limits: None)
    monkeypatch.setattr("tiermq.remoting.json_dialect.decode_body", lambda _data: {})
    with pytest.raises(AssertionError, match="without a word"):
        defuse("json keys", 40)


def test_parts_have_names_of_one_word_and_titles() -> None:
    assert len({part.name for part in PARTS}) == len(PARTS) == 8
    assert all(part.name.split() == [part.name] and part.title and part.rounds for part in PARTS)
    assert isinstance(PARTS[-1], SecretsPart)


def test_senseless_calls_of_grpc_are_answered_and_peers_without_a_right_refused(tmp_path: Path) -> None:
    outcome = GrpcCallsPart(calls=60).round(1, tmp_path)
    assert outcome.findings == []
    assert outcome.counts["distinct_answers"] > 10


def test_a_call_of_grpc_that_fails_or_lets_all_peers_in_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(send_calls, "transaction_place", lambda text: tuple(int(each, 16) for each in text.split("-")))
    monkeypatch.setattr(Account, "require_topic", lambda _self, _topic, _wanted: None)
    found = " ".join(each.found for each in GrpcCallsPart(calls=400).round(1, tmp_path).findings)
    assert "EndTransaction: a mistake of the handler" in found
    assert "QueryRoute by without: expected 40300, found 20000" in found

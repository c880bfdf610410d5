"""Signatures, against the check value of the protocol."""

from __future__ import annotations

from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.permissions import Credentials, signature_of


def test_a_signature_has_the_bytes_of_rocketmq() -> None:
    command = RemotingCommand(1, ext={"topic": "T"}, body=b"body")
    Credentials("ak", "sk").sign(command)
    assert command.ext["Signature"] == "Kl84W8mGQQm89V3600onwZ8IR9s="
    assert signature_of(command, "sk") == command.ext["Signature"]


def test_signing_again_gives_the_same_and_a_token_is_signed_too() -> None:
    command = RemotingCommand(1, ext={"topic": "T"})
    Credentials("ak", "sk").sign(command)
    before = command.ext["Signature"]
    Credentials("ak", "sk").sign(command)
    assert command.ext["Signature"] == before
    Credentials("ak", "sk", "token").sign(command)
    assert command.ext["SecurityToken"] == "token"
    assert command.ext["Signature"] != before


def test_old_clients_added_the_unique_key_query_behind_the_signature() -> None:
    old = RemotingCommand(12, ext={"key": "k"}, version=399)
    signed = signature_of(old, "sk")
    old.ext["_UNIQUE_KEY_QUERY"] = "true"
    assert signature_of(old, "sk") == signed
    old.version = 401
    assert signature_of(old, "sk") != signed

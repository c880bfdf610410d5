"""Marked secrets through flows that fail: they are in no output, no log, no error, and no file that we write."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from campaign.part import Finding, Outcome
from servers.loopback import free_ports
from servers.serving import Serving
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.permissions import Credentials

ASKED = (RequestCode.GET_BROKER_CONFIG, RequestCode.GET_BROKER_RUNTIME_INFO, RequestCode.HEART_BEAT)
PROMISE = "a secret is in no output, log, error or file of ours"


@dataclass(frozen=True)
class SecretsPart:
    """See the module."""

    rounds: int = 6
    name: str = "secrets"
    title: str = "access keys, S3 secrets and passwords in failing flows, looked for in everything that is written"

    def missing(self) -> str:
        return ""

    def round(self, seed: int, scratch: Path) -> Outcome:
        chance = random.Random(seed)
        mark = f"marked{chance.randrange(10**12)}"
        scratch.mkdir(parents=True, exist_ok=True)
        outcome = Outcome()
        said: dict[str, str] = {}
        for number, words in enumerate(_flows(scratch, mark)):
            done = subprocess.run(
                [sys.executable, "-m", "tiermq.cli", *words],
                env={**os.environ, **_environment(mark)},
                capture_output=True,
                text=True,
                check=False,
            )
            outcome.counts["flows"] += 1
            if done.returncode == 0:
                outcome.findings.append(Finding(PROMISE, f"a flow that should fail did not: {words}", seed))
            said[f"flow {number}: {words[:3]}"] = done.stdout + done.stderr
        said |= _served(scratch, mark)
        outcome.counts["flows"] += 1
        outcome.counts["characters_searched"] += sum(map(len, said.values()))
        outcome.counts["rounds"] += 1
        leaks = [f"{where}: {_around(text, mark)!r}" for where, text in said.items() if mark in text]
        outcome.findings += [Finding(PROMISE, leak, seed) for leak in leaks]
        return outcome

    def shrink(self, seed: int, scratch: Path) -> Finding | None:
        return next(iter(self.round(seed, scratch).findings), None)


def _environment(mark: str) -> dict[str, str]:
    [absent] = free_ports(1)
    return {
        "AWS_ACCESS_KEY_ID": f"access-{mark}", "AWS_SECRET_ACCESS_KEY": f"secret-{mark}", "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{absent}", "AWS_ALLOW_HTTP": "true",
        "AWS_SESSION_TOKEN": f"token-{mark}",
        "AZURE_STORAGE_ACCOUNT_NAME": "account", "AZURE_STORAGE_ACCOUNT_KEY": f"not base64 {mark}",
        "ROCKETMQ_ACCESS_KEY": "user", "ROCKETMQ_SECRET_KEY": f"rocket-{mark}",
    }  # fmt: skip


def _flows(scratch: Path, mark: str) -> list[list[str]]:
    """Commands that fail, each with a secret in its hands."""
    [absent] = free_ports(1)
    broken = scratch / "acl.yml"
    broken.write_text(f"accounts:\n- accessKey: user\n  secretKey: {mark}\n  topicPerms:\n  - orders\n")
    toml = scratch / "acl.toml"
    toml.write_text(f'[[accounts]]\naccessKey = "user"\nsecretKey = "{mark}\n')
    key = scratch / "key.pem"
    key.write_text(f"-----BEGIN PRIVATE KEY-----\n{mark}\n-----END PRIVATE KEY-----\n")
    store = str(scratch / "unused")
    return [
        ["tier", "verify", "s3://bucket/prefix"],
        ["tier", "verify", f"s3://user:{mark}@bucket/prefix"],
        ["tier", "verify", "az://container/prefix"],
        ["produce", "orders", "-n", f"127.0.0.1:{absent}", "--body", "x"],
        ["consume", "orders", "-n", f"127.0.0.1:{absent}"],
        ["serve", store, "--acl", str(broken)],
        ["serve", store, "--acl", str(toml)],
        ["serve", store, "--tls-cert", str(key), "--tls-key", str(key)],
        ["pipeline", "verify", "--tier", "s3://bucket/prefix", "--master", "here"],
    ]


def _served(scratch: Path, mark: str) -> dict[str, str]:
    """A broker with accounts, asked wrongly: its words, its log, its answers, and all small files of its store."""
    accounts = scratch / "accounts.toml"
    accounts.write_text(f'[[accounts]]\naccessKey = "user"\nsecretKey = "{mark}"\nadmin = true\n')
    said: dict[str, str] = {}
    with Serving(scratch / "store", "--acl", str(accounts)) as served:
        for secret in (mark, f"{mark}-wrong"):
            with BlockingClient("127.0.0.1", served.port, credentials=Credentials("user", secret)) as client:
                for code in ASKED:
                    answer = client.request(RemotingCommand(code, ext={"a": "b"}, body=b"{"))
                    reported = bytes(answer.body).decode("utf-8", "replace")
                    said[f"answer to {int(code)}, {secret == mark}"] = f"{answer.remark} {answer.ext} {reported}"
    said["what the broker wrote"] = served.errors.read_text()
    for path in (scratch / "store").rglob("*"):
        if path.is_file() and path.stat().st_size < 1 << 20:
            said[str(path.relative_to(scratch))] = path.read_bytes().decode("latin-1")
    return said


def _around(text: str, mark: str) -> str:
    at = text.index(mark)
    return text[max(0, at - 80) : at + len(mark) + 20]

"""The list of processors."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.brokers import running
from tiermq.broker.processors import PROCESSORS
from tiermq.remoting.access import declared_by
from tiermq.remoting.receiving import SEND_CODES


def test_processors_stand_in_the_order_of_their_names() -> None:
    names = [getattr(each, "__name__", "") for each in PROCESSORS]
    assert names == sorted(set(names))


def test_a_broker_has_each_of_them_and_serves_what_they_declare(tmp_path: Path) -> None:
    with running(tmp_path) as broker:
        assert [type(each) for each in broker.processors] == list(PROCESSORS)
        declared = {each.code for processor in broker.processors for each, _ in declared_by(processor)}
        server = broker.parts.server
        assert declared <= server.codes
        assert server.declared.keys() == server.codes | SEND_CODES
        with pytest.raises(ValueError, match="expected one handler"):
            server.serve(broker.processors[0])

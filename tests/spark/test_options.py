"""Options as values, and which of them contradict each other."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tiermq.client.wire_history import WirePlace
from tiermq.errors import BadOption
from tiermq.history.scan_values import HistoryPlace, StorePlace
from tiermq.remoting.tls import ClientTls
from tiermq.spark.option_table import Use
from tiermq.spark.options import SinkOptions, SourceOptions


def source(use: Use = Use.BATCH, **given: str) -> SourceOptions:
    return SourceOptions.of(given, use)


def test_a_place_has_absolute_paths_and_names_for_its_stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = source(tier="s3://bucket/prefix", store="a,/b", brokerName="x,y", clusterName="c")
    stores = (StorePlace(os.path.join(tmp_path, "a"), "c", "x"), StorePlace("/b", "c", "y"))
    assert options.scan.place == HistoryPlace("s3://bucket/prefix", stores, "c")
    same = source(store="/a,/b", brokerName="x").scan.place.stores
    assert same == (StorePlace("/a", "", "x"), StorePlace("/b", "", "x"))
    assert source(store="/a").scan.place == HistoryPlace(None, (StorePlace("/a"),))
    assert source(tier="s3://b", brokerName="x,y,z").scan.place == HistoryPlace("s3://b")
    assert source(tier="s3://b", clusterName="c").scan.place == HistoryPlace("s3://b", cluster="c")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "the location of messages"),
        ({"tier": "/some/dir"}, "is file:///some/dir"),
        ({"store": "/a,/b,/c", "brokerName": "x,y"}, "one for each of the 3 stores, found 2"),
        ({"tier": "s3://b", "subscribe": "a", "subscribePattern": "b"}, "subscribe and subscribePattern"),
        ({"tier": "s3://b", "subscribe": "a", "assign": '{"a":[0]}'}, "subscribe and assign"),
        ({"tier": "s3://b", "queueIds": "0", "assign": '{"a":[0]}'}, "assign and queueIds"),
        ({"tier": "s3://b", "subscribePattern": "("}, "a regular expression, found '('"),
        ({"tier": "s3://b", "startingOffsets": "latest", "startingTimestamp": "5"}, "where to begin in one way"),
        ({"tier": "s3://b", "endingOffsets": "latest", "endingTimestamp": "5"}, "where to end in one way"),
        ({"tier": "s3://b", "endingOffsets": "earliest"}, "would read nothing"),
        ({"tier": "s3://b", "startingTimestamp": "5", "endingTimestamp": "4"}, "found 4 and 5"),
        ({"tier": "s3://b", "columns": "body", "includeBody": "false"}, "asks for body"),
        ({"tier": "s3://b", "columns": "headers", "includeProperties": "false"}, "asks for headers"),
        ({"tier": "s3://b", "columns": "body", "kafkaColumns": "true"}, "columns and kafkaColumns"),
        ({"tier": "s3://b", "startingOffsets": '{"a":'}, "option startingOffsets: expected JSON (Expecting value"),
        ({"tier": "s3://b", "kafka.bootstrap.servers": "x"}, "tier, store"),
        ({"tier": "s3://b", "namesrv": "a:1"}, "tier and namesrv contradict"),
        ({"store": "s", "nameServer": "a:1"}, "store and namesrv contradict"),
        ({"namesrv": "nowhere"}, "option namesrv: expected name servers as host:port;host:port, found 'nowhere'"),
        ({"namesrv": ";"}, "expected host:port"),
        ({"tier": "s3://b", "tls": "true"}, "brokers of namesrv"),
    ],
)
def test_options_that_contradict_each_other_are_refused(given: dict[str, Any], expected: str) -> None:
    with pytest.raises(BadOption) as raised:
        source(**given)
    assert expected in str(raised.value)


def test_limits_of_a_trigger_must_leave_room() -> None:
    with pytest.raises(BadOption, match="found 6 and 5"):
        source(Use.STREAM, tier="s3://b", minOffsetsPerTrigger="6", maxOffsetsPerTrigger="5")
    with pytest.raises(BadOption, match="maxTriggerDelay limits the waiting of minOffsetsPerTrigger"):
        source(Use.STREAM, tier="s3://b", maxTriggerDelay="5s")


def test_the_sink_stages_beside_its_store_unless_asked_otherwise(tmp_path: Path) -> None:
    options = SinkOptions.of({"store": f"{tmp_path}/store/", "checkpointLocation": "/c"})
    assert (options.store, options.staging) == (f"{tmp_path}/store", f"{tmp_path}/store.staging")
    assert SinkOptions.of({"path": "/s", "staging": "/t"}).staging == "/t"
    with pytest.raises(BadOption, match="expected option store"):
        SinkOptions.of({"topic": "a"})
    with pytest.raises(BadOption, match="no option subscribe; there are store, namesrv"):
        SinkOptions.of({"subscribe": "a"})


def test_the_sink_puts_into_a_store_or_sends_to_brokers() -> None:
    options = SinkOptions.of({"namesrv": "a:1;b:2", "topic": "t", "tls": "true"})
    assert (options.name_servers, options.tls, options.store, options.staging) == ("a:1;b:2", True, "", "")
    for wrong, value in (("store", "/x"), ("staging", "/x"), ("storeSettings", '{"max_hash_slot_num": 64}')):
        with pytest.raises(BadOption, match=f"{wrong} and namesrv contradict"):
            SinkOptions.of({"namesrv": "a:1", wrong: value})
    with pytest.raises(BadOption, match="found 'nowhere'"):
        SinkOptions.of({"namesrv": "nowhere"})
    with pytest.raises(BadOption, match="brokers of namesrv"):
        SinkOptions.of({"store": "/s", "tls": "true"})


def test_settings_of_a_store_are_a_json_object() -> None:
    options = SinkOptions.of({"store": "/s", "storeSettings": '{"max_hash_slot_num": 64}'})
    assert options.store_settings == {"max_hash_slot_num": 64}
    for text in ("[1]", "{"):
        with pytest.raises(BadOption, match="option storeSettings: expected"):
            SinkOptions.of({"store": "/s", "storeSettings": text})


def test_a_store_may_be_given_with_its_brokers_name(tmp_path: Path) -> None:
    def places(store: str, **more: str) -> list[tuple[str, str, str]]:
        stores = SourceOptions.of({"store": store, **more}, Use.BATCH).scan.place.stores
        return [(place.path, place.cluster, place.broker) for place in stores]

    assert places("/a=b1,/c=east/b2") == [("/a", "", "b1"), ("/c", "east", "b2")]
    assert places("/a=b1", clusterName="east") == [("/a", "east", "b1")]
    assert places("/a", brokerName="b1") == [("/a", "", "b1")]
    there = tmp_path / "day=1"
    there.mkdir()
    assert places(str(there)) == [(str(there), "", "")]
    for bad in ({"store": "/a=b1,/c"}, {"store": "/a=b1", "brokerName": "b1"}):
        with pytest.raises(BadOption, match="of every store"):
            SourceOptions.of(bad, Use.BATCH)


def test_certificates_of_a_client_mean_tls_and_go_where_brokers_are_asked() -> None:
    files = {"namesrv": "a:1", "tlsCert": "/c.pem", "tlsKey": "/k.pem", "tlsCa": "/ca.pem"}
    place = SourceOptions.of(files, Use.BATCH).scan.place
    assert isinstance(place, WirePlace)
    assert place.certificates == SinkOptions.of(files).certificates == ClientTls("/c.pem", "/k.pem", "/ca.pem")
    with pytest.raises(BadOption, match="brokers of namesrv"):
        SourceOptions.of({"tier": "s3://b", "tlsCa": "/ca.pem"}, Use.BATCH)
    with pytest.raises(BadOption, match="brokers of namesrv"):
        SinkOptions.of({"store": "/s", "tlsCert": "/c.pem"})

"""Every driver against the simplest model of it, in unlikely orders of calls, with planned faults."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from obstore.store import MemoryStore

from servers.faulty_driver import Fault, FaultyDriver, ScriptedFaults
from tier.driver.bundling import BundlingDriver
from tier.driver.objects import objects_driver
from tiermq.errors import (
    IllegalRange,
    ManifestConflict,
    SegmentConflict,
    SegmentMissing,
    SegmentSealed,
    TierUnavailable,
)
from tiermq.tier.driver import bundle, object_store
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.driver.memory import MemoryDriver, forget
from tiermq.tier.driver.posix import PosixDriver
from tiermq.tier.names import QueueKey, SegmentKey, SegmentType

_numbers = itertools.count()
QUEUE = QueueKey("c", "b", "t", 0)
KEYS = [QUEUE.segment(SegmentType.COMMIT_LOG, base) for base in (0, 1000)]
OBJECT = QUEUE.object_name("manifest")

keys = st.sampled_from(KEYS)
blocks = st.binary(min_size=1, max_size=12)
faults = st.sampled_from([None, None, None, Fault.BEFORE, Fault.AFTER])


class DriverMachine(RuleBasedStateMachine):
    """The model: a run of bytes and a sealed flag for each key, one small object, all of it reopened at will."""

    torn_writes = False

    def __init__(self) -> None:
        super().__init__()
        self.driver = FaultyDriver(self.opened())
        self.data: dict[SegmentKey, bytes] = {}
        self.sealed: set[SegmentKey] = set()
        self.object: bytes | None = None
        self.version: str | None = None

    def opened(self) -> TierDriver:
        raise NotImplementedError

    def end(self, key: SegmentKey) -> int:
        return len(self.data.get(key, b""))

    @rule()
    def reopen(self) -> None:
        self.driver.close()
        self.driver = FaultyDriver(self.opened())

    @rule(key=keys, block=blocks, back=st.integers(0, 15), fault=faults, tear=st.booleans())
    def write(self, key: SegmentKey, block: bytes, back: int, fault: Fault | None, tear: bool) -> None:
        """At the end, or some bytes before it, with the bytes that are there or others."""
        stored = self.data.get(key, b"")
        position = max(0, len(stored) - back)
        fits = block.startswith(stored[position:]) or stored[position:].startswith(block)
        if tear and self.torn_writes and fits and key not in self.sealed:
            fault = Fault.TORN
        self.driver.plan = ScriptedFaults("write", [fault])
        lands = fits and key not in self.sealed and position + len(block) > len(stored)
        after = stored[:position] + block if lands else stored
        try:
            self.driver.write(key, position, [block])
        except SegmentSealed:
            assert key in self.sealed
        except SegmentConflict:
            assert not fits
        except TierUnavailable:
            # What is not known is asked for: nothing of it, all of it, or (torn) a prefix.
            size = self.driver.size(key)
            assert len(stored) <= size <= len(after)
            assert fault is Fault.TORN or size in (len(stored), len(after))
            if size:
                self.data[key] = after[:size]
        else:
            assert fits
            assert key not in self.sealed
            self.data[key] = after

    @rule(key=keys, block=blocks, ahead=st.integers(1, 5))
    def write_behind_a_hole(self, key: SegmentKey, block: bytes, ahead: int) -> None:
        expected = SegmentSealed if key in self.sealed else IllegalRange
        with pytest.raises(expected):
            self.driver.write(key, self.end(key) + ahead, [block])

    @rule(key=keys, position=st.integers(0, 60), length=st.integers(1, 60))
    def read(self, key: SegmentKey, position: int, length: int) -> None:
        if key not in self.data:
            with pytest.raises(SegmentMissing):
                self.driver.read(key, position, length)
        elif position + length > self.end(key):
            with pytest.raises(IllegalRange):
                self.driver.read(key, position, length)
        else:
            assert self.driver.read(key, position, length) == self.data[key][position : position + length]

    @precondition(lambda self: self.data)
    @rule(key=keys, fault=faults)
    def seal(self, key: SegmentKey, fault: Fault | None) -> None:
        self.driver.plan = ScriptedFaults("seal", [fault])
        try:
            self.driver.seal(key)
        except SegmentMissing:
            assert key not in self.data
        except TierUnavailable:
            if fault is Fault.AFTER:
                self.sealed.add(key)
        else:
            self.sealed.add(key)

    @rule(key=keys, fault=faults)
    def merge(self, key: SegmentKey, fault: Fault | None) -> None:
        self.driver.plan = ScriptedFaults("merge", [fault])
        with suppress(TierUnavailable):
            self.driver.merge(key)

    @rule(key=keys, fault=faults)
    def delete(self, key: SegmentKey, fault: Fault | None) -> None:
        self.driver.plan = ScriptedFaults("delete", [fault])
        try:
            self.driver.delete(key)
        except TierUnavailable:
            if fault is Fault.BEFORE:
                return
        self.data.pop(key, None)
        self.sealed.discard(key)

    @rule(data=blocks, known=st.booleans(), fault=faults)
    def put_object(self, data: bytes, known: bool, fault: Fault | None) -> None:
        self.driver.plan = ScriptedFaults("put_object", [fault])
        expected = self.version if known else "another version"
        try:
            self.version = self.driver.put_object(OBJECT, data, expected=expected)
            assert known or data == self.object
        except ManifestConflict:
            assert not known
            return
        except TierUnavailable:
            found = self.driver.get_object(OBJECT)
            assert (found.data if found else None) == (data if fault is Fault.AFTER else self.object)
            self.version = found.version if found else None
            self.object = found.data if found else None
            return
        self.object = data

    @invariant()
    def the_driver_says_what_the_model_says(self) -> None:
        for key in KEYS:
            assert self.driver.size(key) == self.end(key)
            assert self.driver.is_sealed(key) == (key in self.sealed)
            if key in self.data:
                assert self.driver.read(key, 0, self.end(key)) == self.data[key]
        listed = {info.key: (info.size, info.sealed) for info in self.driver.list_segments() if info.size}
        assert listed == {key: (len(data), key in self.sealed) for key, data in self.data.items()}
        found = self.driver.get_object(OBJECT)
        assert (found.data if found else None) == self.object


class MemoryMachine(DriverMachine):
    def __init__(self) -> None:
        self.name = f"model-{next(_numbers)}"
        super().__init__()

    def opened(self) -> TierDriver:
        return MemoryDriver(self.name)

    def teardown(self) -> None:
        forget(self.name)


class PosixMachine(DriverMachine):
    torn_writes = True

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="tiermq-model-"))
        super().__init__()

    def opened(self) -> TierDriver:
        return PosixDriver(self.root)

    def teardown(self) -> None:
        shutil.rmtree(self.root)


class ObjectMachine(DriverMachine):
    def __init__(self) -> None:
        self.store = MemoryStore()
        super().__init__()

    def opened(self) -> TierDriver:
        return objects_driver(self.store)

    def teardown(self) -> None:
        self.driver.close()


class BundleMachine(ObjectMachine):
    """Writes of an odd length go into bundles, which are merged and unpacked early."""

    def __init__(self) -> None:
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(bundle, "MERGE_RUN", 4)
        self.patch.setattr(object_store, "UNPACKED_BYTES", 24)
        super().__init__()

    def teardown(self) -> None:
        super().teardown()
        self.patch.undo()

    def opened(self) -> TierDriver:
        return BundlingDriver(objects_driver(self.store), lambda data: len(data) % 2 == 1)


for machine, examples in ((MemoryMachine, 40), (PosixMachine, 15), (ObjectMachine, 30), (BundleMachine, 30)):
    machine.TestCase.settings = settings(max_examples=examples, stateful_step_count=25, deadline=None)

TestMemoryModel = MemoryMachine.TestCase
TestPosixModel = PosixMachine.TestCase
TestObjectModel = ObjectMachine.TestCase
TestBundleModel = BundleMachine.TestCase

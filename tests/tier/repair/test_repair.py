"""A damaged tier is repaired from what is left, keeps what it replaces, and says what it cannot repair."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from servers.faulty_driver import Fault, FaultyDriver, ScriptedFaults
from tier.repair.repair_world import RepairWorld, bytes_in
from tier.tier_world import BROKER, CLUSTER, TierWorld
from tier.verify.test_queue_verifier import DAMAGES
from tier.verify_world import QUEUE, bytes_of, index_key, log_key, unit_key
from tiermq.errors import TierUnavailable
from tiermq.tier.metadata.broker_lease import BrokerLease, Lease, LeaseHeld
from tiermq.tier.metadata.document import seal_document
from tiermq.tier.metadata.manifest import manifest_name
from tiermq.tier.metadata.metadata_values import LEASE_TERM_MS
from tiermq.tier.repair.repair import repair_tier, run_repair
from tiermq.tier.repair.repair_plan import RepairAction, RepairKind, RepairState, plan_repair
from tiermq.tier.verify.verify import verify_tier


@pytest.fixture
def repaired(tmp_path: Path) -> Iterator[RepairWorld]:
    made = RepairWorld.make(tmp_path)
    yield made
    made.world.close()


@pytest.mark.parametrize("damage", [damage for damage, _ in DAMAGES], ids=[damage.__name__ for damage, _ in DAMAGES])
def test_every_damage_is_fixed_to_the_byte_while_a_local_store_has_the_messages(
    repaired: RepairWorld, damage: Callable[[TierWorld], None]
) -> None:
    damage(repaired.world)
    report = repaired.repair()
    assert report.problems_before > 0
    assert (report.problems_after, report.is_complete) == (0, True), report.to_dict()
    repaired.assert_as_before()
    assert repaired.repair().outcomes == []


UNITS_ONLY = {"unit_offset", "unit_offset_forward", "unit_offset_far", "unit_size", "unit_size_negative", "unit_tag",
              "units_swapped", "units_gone", "units_misaligned"}  # fmt: skip


@pytest.mark.parametrize("damage", [damage for damage, _ in DAMAGES], ids=[damage.__name__ for damage, _ in DAMAGES])
def test_without_a_local_store_units_are_fixed_and_lost_records_are_named(
    repaired: RepairWorld, damage: Callable[[TierWorld], None]
) -> None:
    damage(repaired.world)
    report = repaired.repair(with_local=False)
    if damage.__name__ in UNITS_ONLY:
        assert report.is_complete, report.to_dict()
        repaired.assert_as_before()
    else:
        assert not report.is_complete
        texts = [text for outcome in report.outcomes for text in outcome.not_possible]
        assert any("lost" in text for text in texts)


def test_a_dry_run_reports_what_would_be_done_and_changes_nothing(repaired: RepairWorld) -> None:
    bytes_of(repaired.world, log_key(repaired.world))[100] ^= 1
    bytes_of(repaired.world, unit_key(repaired.world))[40] ^= 1
    before, objects = bytes_in(repaired.world), dict(repaired.world.driver._place.objects)
    report = repaired.repair(dry_run=True)
    assert {outcome.state for outcome in report.outcomes} >= {RepairState.PLANNED}
    assert not any(outcome.not_possible for outcome in report.outcomes if outcome.action.kind is RepairKind.LOG)
    assert (bytes_in(repaired.world), repaired.world.driver._place.objects) == (before, objects)
    assert repaired.asides == {}


def test_what_is_replaced_is_kept_under_a_name_that_no_listing_shows(repaired: RepairWorld) -> None:
    key = log_key(repaired.world)
    bytes_of(repaired.world, key)[100] ^= 1
    damaged = bytes(bytes_of(repaired.world, key))
    report = repaired.repair()
    (kept,) = [path for path in repaired.asides if path.startswith(key.path)]
    assert repaired.asides[kept] == damaged
    assert kept in {path for outcome in report.outcomes for path in outcome.kept}
    assert kept not in bytes_in(repaired.world)


def test_a_range_that_the_local_store_has_only_partly_is_left_and_the_rest_is_fixed(repaired: RepairWorld) -> None:
    repaired.local.forget("orders", 0, 0)
    bytes_of(repaired.world, log_key(repaired.world))[100] ^= 1
    second = log_key(repaired.world, 1)
    bytes_of(repaired.world, second)[95] ^= 1
    report = repaired.repair()
    (log,) = [outcome for outcome in report.outcomes if outcome.action.kind is RepairKind.LOG]
    assert log.state is RepairState.PARTLY
    assert "has 0 of these 1 messages" in log.not_possible[0]
    assert bytes_in(repaired.world)[second.path] == repaired.before[second.path]
    assert not report.is_complete


def test_records_of_other_sizes_are_not_squeezed_in(repaired: RepairWorld) -> None:
    repaired.local._records["orders", 0][0] = repaired.local._records["payments", 2][0]
    bytes_of(repaired.world, log_key(repaired.world))[100] ^= 1
    report = repaired.repair()
    assert any("bytes of them, the tier had" in text for o in report.outcomes for text in o.not_possible)


def test_a_lost_checksum_witness_is_not_renewed_for_bytes_that_are_still_damaged(repaired: RepairWorld) -> None:
    bytes_of(repaired.world, log_key(repaired.world))[100] ^= 1
    repaired.repair(with_local=False)
    kinds = {finding.kind for finding in verify_tier(repaired.world.driver).problems}
    assert kinds >= {"checksum", "damaged_record"}


@pytest.mark.parametrize("content", [b"{}", b"", b"not json"])
def test_a_manifest_that_cannot_be_read_is_rebuilt(repaired: RepairWorld, content: bytes) -> None:
    name = manifest_name(QUEUE)
    repaired.world.driver.put_object(name, content)
    report = repaired.repair(metadata=True)
    assert report.is_complete, report.to_dict()
    repaired.assert_as_before()
    kept = [path for outcome in report.outcomes for path in outcome.kept if "manifest" in path]
    stored = repaired.world.driver.get_object(kept[0])
    assert stored is not None
    assert stored.data == content


def test_a_manifest_whose_version_digit_went_bad_is_rebuilt_and_a_newer_one_left_alone(repaired: RepairWorld) -> None:
    name, driver = manifest_name(QUEUE), repaired.world.driver
    good = driver.get_object(name).data
    driver.put_object(name, good.replace(b'"version":1', b'"version":3'))
    assert repaired.repair(metadata=True).is_complete
    repaired.assert_as_before()
    newer = seal_document(json.loads(good)["body"], 3)
    driver.put_object(name, newer)
    assert not repaired.repair(metadata=True).is_complete
    assert driver.get_object(name).data == newer


def items_of(data: bytes) -> list[bytes]:
    """The items of an index file of seven slots, in no order: in a slot they stand as they were put."""
    return sorted(data[at : at + 28] for at in range(28 + 8 * 7, len(data), 28))


@pytest.mark.parametrize("at", [-25, 2, 10, 30, 26])
def test_an_index_file_is_rebuilt_with_the_same_items(repaired: RepairWorld, at: int) -> None:
    key = index_key(repaired.world)
    bytes_of(repaired.world, key)[at] ^= 1
    report = repaired.repair(metadata=True)
    assert report.is_complete, report.to_dict()
    before, after = repaired.before[key.path], bytes_in(repaired.world)[key.path]
    assert before[:28] == after[:28]
    assert items_of(before) == items_of(after)
    assert verify_tier(repaired.world.driver).problems == []


def test_an_index_file_that_is_gone_is_rebuilt(repaired: RepairWorld) -> None:
    key = index_key(repaired.world)
    repaired.world.driver.delete(key)
    assert repaired.repair(metadata=True).is_complete
    assert items_of(bytes_in(repaired.world)[key.path]) == items_of(repaired.before[key.path])


def test_a_second_run_goes_on_where_a_first_one_was_cut_short(repaired: RepairWorld) -> None:
    bytes_of(repaired.world, log_key(repaired.world))[100] ^= 1
    bytes_of(repaired.world, unit_key(repaired.world, 1))[40] ^= 1
    repaired.world.clock.advance_ms(3_600_000)
    for operation in ("replace", "put_object", "read"):
        for fault in (Fault.BEFORE, Fault.AFTER):
            for healthy in (0, 2, 5):
                driver = FaultyDriver(repaired.world.driver, ScriptedFaults(operation, [None] * healthy + [fault]))
                repaired.world.clock.advance_ms(2 * 3_600_000)
                try:
                    repair_tier(driver, sources=[repaired.local], clock=repaired.world.clock)
                except TierUnavailable:
                    continue
    repaired.world.clock.advance_ms(2 * 3_600_000)
    repaired.repair()
    repaired.assert_as_before()


def test_a_broker_at_work_is_named_and_nothing_is_changed(repaired: RepairWorld) -> None:
    bytes_of(repaired.world, log_key(repaired.world))[100] ^= 1
    before = bytes_in(repaired.world)
    with pytest.raises(LeaseHeld, match="me holds it"):
        repair_tier(repaired.world.driver, sources=[repaired.local], clock=repaired.world.clock)
    assert bytes_in(repaired.world) == before


def test_the_broker_goes_on_after_a_repair(repaired: RepairWorld) -> None:
    damage = bytes_of(repaired.world, unit_key(repaired.world))
    damage[45] ^= 1
    repaired.repair(metadata=True)
    lease = BrokerLease(repaired.world.driver, CLUSTER, BROKER, "me again", clock=repaired.world.clock)
    lease.acquire()
    repaired.world.reopen()
    repaired.world.write(3)
    repaired.world.put_manifests()
    assert verify_tier(repaired.world.driver, metadata=repaired.world.metadata).problems == []


def test_a_repair_holds_the_lease_for_the_one_term_and_gives_it_back(repaired: RepairWorld) -> None:
    world = repaired.world
    bytes_of(world, unit_key(world))[45] ^= 1
    world.clock.advance_ms(3_600_000)  # The lease of the world's writer has run out.
    watched = BrokerLease(world.driver, CLUSTER, BROKER, "observer", clock=world.clock)
    held: list[Lease | None] = []
    repair_tier(
        world.driver,
        sources=[repaired.local],
        clock=world.clock,
        on_outcome=lambda _outcome: held.append(watched.read()),
    )
    assert held
    assert all(each is not None and each.owner.startswith("repair ") for each in held)
    assert all(each is not None and each.expires_ms == world.clock.now_ms() + LEASE_TERM_MS for each in held)
    watched.acquire()


def test_an_action_for_something_that_is_sound_does_nothing(repaired: RepairWorld) -> None:
    for kind in (RepairKind.LOG, RepairKind.UNITS):
        outcome = run_repair(repaired.world.driver, RepairAction(kind, QUEUE), sources=[repaired.local])
        assert outcome.state is RepairState.UNCHANGED
    repaired.assert_as_before()


def test_a_clean_tier_has_nothing_to_repair(repaired: RepairWorld) -> None:
    assert plan_repair(verify_tier(repaired.world.driver)) == []
    report = repaired.repair()
    assert (report.outcomes, report.is_complete) == ([], True)


def test_a_lost_manifest_is_made_again_though_nothing_else_is_wrong(repaired: RepairWorld) -> None:
    driver = repaired.world.driver
    name = next(name for name in driver.list_objects() if name == manifest_name(QUEUE))
    driver.delete_object(name)
    assert verify_tier(driver).problems == []
    planned = repaired.repair(dry_run=True)
    assert [(outcome.action.where, outcome.state) for outcome in planned.outcomes] == [
        (QUEUE.directory, RepairState.PLANNED)
    ]
    assert driver.get_object(name) is None
    report = repaired.repair()
    assert (report.is_complete, report.problems_before, report.problems_after) == (True, 0, 0)
    assert driver.get_object(name) is not None
    assert repaired.repair().outcomes == []

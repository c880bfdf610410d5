"""What is looked at for each kind of finding, and in which order."""

from __future__ import annotations

import pytest

from tier.verify_world import QUEUE
from tiermq.tier.metadata.broker_lease import lease_name
from tiermq.tier.metadata.manifest import manifest_name
from tiermq.tier.names import SegmentType, index_queue
from tiermq.tier.repair.repair_plan import RepairKind, plan_repair, queue_at
from tiermq.tier.verify.verify_report import Problem, VerifyReport

LOG_PATH = QUEUE.segment(SegmentType.COMMIT_LOG, 0).path
UNIT_PATH = QUEUE.segment(SegmentType.CONSUME_QUEUE, 0).path
INDEX = index_queue(QUEUE.cluster, QUEUE.broker)
INDEX_PATH = INDEX.segment(SegmentType.INDEX, 0).path
LEASE = lease_name(QUEUE.cluster, QUEUE.broker)

WHOLE = [RepairKind.LOG, RepairKind.UNITS, RepairKind.MANIFEST]
CASES = [
    (Problem.DAMAGED_RECORD, f"{QUEUE.directory}/COMMIT_LOG", WHOLE),
    (Problem.UNIT_WITHOUT_RECORD, f"{QUEUE.directory}/CONSUME_QUEUE", WHOLE),
    (Problem.CHECKSUM, LOG_PATH, WHOLE),
    (Problem.MISSING_SEGMENT, LOG_PATH, WHOLE),
    (Problem.UNIT_DISAGREES, f"{QUEUE.directory}/COMMIT_LOG", WHOLE[1:]),
    (Problem.CHECKSUM, UNIT_PATH, WHOLE[1:]),
    (Problem.HOLE, UNIT_PATH, WHOLE[1:]),
    (Problem.MANIFEST, manifest_name(QUEUE), WHOLE[2:]),
    (Problem.OFFSETS, QUEUE.directory, WHOLE[2:]),
    (Problem.INDEX_ITEM, INDEX_PATH, [RepairKind.INDEX]),
    (Problem.MANIFEST, INDEX_PATH + ".tiermq.json", [RepairKind.INDEX]),
    (Problem.MANIFEST, manifest_name(INDEX), [RepairKind.MANIFEST]),
    (Problem.MANIFEST, LEASE, [RepairKind.NONE]),
]


@pytest.mark.parametrize(("problem", "where", "expected"), CASES)
def test_each_finding_leads_to_what_may_mend_it(problem: Problem, where: str, expected: list[RepairKind]) -> None:
    report = VerifyReport("memory://")
    report.problem(problem, where, "text")
    actions = plan_repair(report)
    assert [action.kind for action in actions] == expected
    assert all(problem.name.lower() in reason for action in actions for reason in action.reasons)


def test_each_thing_is_looked_at_once_and_logs_before_units_before_manifests_before_the_index() -> None:
    report = VerifyReport("memory://")
    for problem, where, _ in reversed(CASES):
        report.problem(problem, where, "text")
    actions = plan_repair(report)
    kinds = [action.kind for action in actions]
    assert kinds == sorted(kinds, key=list(RepairKind).index)
    assert len({(action.kind, action.queue, action.segment) for action in actions}) == len(actions)


def test_a_queue_is_recognised_by_any_path_of_it() -> None:
    for where in (QUEUE.directory, LOG_PATH, f"{QUEUE.directory}/CONSUME_QUEUE", manifest_name(QUEUE)):
        assert queue_at(where) == QUEUE
    for where in ("", "a/b", LEASE, "zz_x/broker/topic/0", QUEUE.directory.rsplit("/", 1)[0] + "/x"):
        assert queue_at(where) is None

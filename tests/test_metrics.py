"""Metrics: what is added is what is shown, in Prometheus' format."""

from __future__ import annotations

import threading
import time

import pytest

from tiermq.metrics import Registry, register_process


def test_a_counter_shows_the_sum_of_what_was_added_per_label() -> None:
    registry = Registry()
    puts = registry.counter("puts_total", "Messages put.", labels=("topic",))
    puts.labels("orders").add(2)
    puts.labels("orders").add()
    puts.labels("audit").add(0.5)
    assert registry.render_prometheus() == (
        "# HELP puts_total Messages put.\n"
        "# TYPE puts_total counter\n"
        'puts_total{topic="audit"} 0.5\n'
        'puts_total{topic="orders"} 3\n'
    )


def test_a_number_and_its_text_are_the_same_label_value() -> None:
    registry = Registry()
    puts = registry.counter("puts_total", "Messages put.", labels=("topic", "queue_id"))
    puts.labels("orders", 1).add()
    puts.labels("orders", "1").add()
    puts.labels("orders", 1).add()
    assert 'puts_total{topic="orders",queue_id="1"} 3\n' in registry.render_prometheus()


def test_a_counter_refuses_to_go_down() -> None:
    with pytest.raises(ValueError, match="only grows"):
        Registry().counter("n_total", "N.").labels().add(-1)


def test_a_gauge_with_a_function_is_asked_each_time_it_is_shown() -> None:
    registry = Registry()
    depth = [3]
    registry.gauge("depth", "Waiting.", function=lambda: depth[0])
    assert "depth 3\n" in registry.render_prometheus()
    depth[0] = 8
    assert "depth 8\n" in registry.render_prometheus()


def test_a_gauge_can_be_set_and_moved() -> None:
    gauge = Registry().gauge("g", "G.").labels()
    gauge.set(5)
    gauge.add(-7)
    assert gauge.value == -2


def test_a_histogram_counts_a_value_in_every_bucket_at_or_above_it() -> None:
    registry = Registry()
    child = registry.histogram("h", "H.", bounds=(1.0, 2.5)).labels()
    for value in (0.5, 1.0, 2.0, 9.0):
        child.observe(value)
    assert registry.render_prometheus() == (
        "# HELP h H.\n# TYPE h histogram\n"
        'h_bucket{le="1"} 2\nh_bucket{le="2.5"} 3\nh_bucket{le="+Inf"} 4\nh_sum 12.5\nh_count 4\n'
    )
    assert (child.count, child.sum) == (4, 12.5)


def test_label_values_and_help_are_escaped() -> None:
    registry = Registry()
    registry.counter("c_total", 'Two\nlines \\ "quoted"', labels=("path",)).labels('a"b\\c\nd').add()
    text = registry.render_prometheus()
    assert '# HELP c_total Two\\nlines \\\\ "quoted"\n' in text
    assert 'c_total{path="a\\"b\\\\c\\nd"} 1\n' in text


@pytest.mark.parametrize("name", ["", "9lives", "with space", "minus-sign"])
def test_a_name_outside_the_format_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="named by"):
        Registry().counter(name, "X.")


@pytest.mark.parametrize("label", ["le", "__name__", "a-b"])
def test_a_reserved_or_foreign_label_is_refused(label: str) -> None:
    with pytest.raises(ValueError, match="label"):
        Registry().histogram("h", "H.", labels=(label,))


def test_the_wrong_number_of_label_values_is_refused() -> None:
    with pytest.raises(ValueError, match="labels"):
        Registry().counter("c_total", "C.", labels=("topic",)).labels("a", "b")


def test_a_name_is_given_once() -> None:
    registry = Registry()
    registry.counter("c_total", "C.")
    with pytest.raises(ValueError, match="exists already"):
        registry.gauge("c_total", "C.")


def test_bounds_must_ascend() -> None:
    with pytest.raises(ValueError, match="ascending"):
        Registry().histogram("h", "H.", bounds=(2.0, 1.0))


def test_no_addition_is_lost_between_threads() -> None:
    registry = Registry()
    counter = registry.counter("c_total", "C.").labels()
    histogram = registry.histogram("h", "H.").labels()

    def add() -> None:
        for _ in range(2_000):
            counter.add()
            histogram.observe(0.001)

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counter.value == 8_000
    assert histogram.count == 8_000


def test_infinite_and_undefined_values_are_spelled_as_the_format_spells_them() -> None:
    registry = Registry()
    registry.gauge("g", "G.", labels=("k",)).labels("inf").set(float("inf"))
    registry.gauge("h", "H.").labels().set(float("nan"))
    assert 'g{k="inf"} +Inf\n' in registry.render_prometheus()
    assert "h NaN\n" in registry.render_prometheus()


def test_a_process_reports_what_prometheus_clients_report() -> None:
    registry = Registry()
    register_process(registry, version="1", kernel="pure")
    lines = registry.render_prometheus().splitlines()
    shown = {line.partition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}
    assert shown['tiermq_build_info{version="1",kernel="pure"}'] == 1
    assert shown["process_cpu_seconds_total"] > 0
    assert 1 << 20 < shown["process_resident_memory_bytes"] < shown["process_virtual_memory_bytes"]
    assert 0 < shown["process_open_fds"] < shown["process_max_fds"]
    assert shown["process_threads"] >= 1
    now_s = time.time()
    assert now_s - 3 * 86_400 < shown["process_start_time_seconds"] <= now_s + 1

from tests.faults.start_and_stop import cycle, traces


def test_starting_and_stopping_samplers_leaves_no_process_descriptor_or_segment():
    cycle(0)
    before = traces()
    for number in range(15):
        cycle(number)
    assert traces() == before

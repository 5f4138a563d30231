"""Tests look at what is theirs: these are the looks, with a neighbour beside them."""

import os
import random
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch

from tests.own import is_alive, listening, open_files, own_s

DRAWN = []


@pytest.mark.parametrize("turn", range(2))
def test_every_test_draws_the_same_numbers_whatever_was_drawn_before_it(turn):
    DRAWN.append((random.random(), np.random.random(), torch.rand(1).item()))
    assert DRAWN[0] == DRAWN[-1]
    assert torch.get_num_threads() == 1


def test_only_ports_of_the_process_are_found():
    code = "import socket; s = socket.create_server(('', 0)); print(s.getsockname()[1], flush=True); input()"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, text=True) as neighbour:
        theirs = int(neighbour.stdout.readline())
        with socket.create_server(("127.0.0.1", 0)) as ours:
            found = listening([os.getpid()])
            assert ("0100007F", ours.getsockname()[1]) in found
            assert theirs not in {port for _, port in found}
            assert listening([neighbour.pid]) == {("00000000", theirs)}
        neighbour.communicate("\n")
    assert not is_alive(neighbour.pid)
    assert listening([neighbour.pid]) == set()
    assert open_files(neighbour.pid) == []


def test_our_clock_stands_still_while_others_have_the_core_and_goes_on_while_we_wait():
    cpu = min(os.sched_getaffinity(0))
    spin = f"import os\nos.sched_setaffinity(0, {{{cpu}}})\nprint(flush=True)\nwhile True: pass"
    taken = []

    def work():
        os.sched_setaffinity(0, {cpu})
        wall_s, begin_s, cpu_s = time.monotonic(), own_s(), time.thread_time()
        while time.thread_time() - cpu_s < 0.3:
            pass
        taken.extend((time.monotonic() - wall_s, own_s() - begin_s))

    with subprocess.Popen([sys.executable, "-c", spin], stdout=subprocess.PIPE) as neighbour:
        neighbour.stdout.readline()
        worker = threading.Thread(target=work)
        worker.start()
        worker.join()
        neighbour.kill()
    wall_s, our_s = taken
    assert our_s == pytest.approx(0.3, abs=0.1)
    assert wall_s > our_s + 0.1
    begin_s = own_s()
    time.sleep(0.2)
    assert own_s() - begin_s > 0.15

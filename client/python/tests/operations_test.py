"""Handles, waiting and error translation, without a framework's tensors."""

import copy
import ctypes
import gc
import json
import os
import pickle
import signal
import threading
import unittest
import weakref
from unittest import mock

import fake_library
import numpy as np
from maypole import _native
from maypole.common import (basics, collectives, exceptions, operations,
                            part_of_job, process_sets)
from maypole.common.constants import ReduceOp


def prepared(name="x", value=1.0):
    """An allreduce of one float64 in place, not submitted."""
    memory = ctypes.c_double(value)
    address = ctypes.addressof(memory)
    return operations.prepare(_native.ALLREDUCE, _native.FLOAT64, 1, 0, (1,),
                              1.0, 1.0, name, address, address, memory,
                              memory)


def submit(name="x", value=1.0):
    return operations.start(prepared(name, value))


class OperationsTest(unittest.TestCase):

    def setUp(self):
        self.fake = fake_library.FakeLibrary(1)
        _native.use(self.fake)

    def tearDown(self):
        _native.use(None)

    def test_a_handle_is_spent_by_synchronize(self):
        handle = operations.add(submit(value=3.0))
        self.assertTrue(operations.poll(handle))
        self.assertEqual(operations.synchronize(handle).value, 3.0)
        self.assertIsNone(operations.synchronize(handle))
        with self.assertRaisesRegex(ValueError, "unknown"):
            operations.poll(handle)
        self.assertEqual(self.fake.pending(), 0)

    def test_slices_and_interrupted_waits_are_continued(self):
        pending = submit(value=2.0)
        self.fake.wait_statuses = [
            _native.DEADLINE_EXCEEDED, _native.CANCELLED,
            _native.DEADLINE_EXCEEDED
        ]
        self.assertEqual(pending.wait().value, 2.0)
        self.assertEqual(self.fake.wait_statuses, [])

    def test_a_long_wait_has_no_bound(self):
        # Otherwise the library would never report this rank as blocked.
        pending = submit(value=2.0)
        self.fake.wait_statuses = [_native.DEADLINE_EXCEEDED] * 10
        self.fake.wait_statuses.append(_native.CANCELLED)
        self.assertEqual(pending.wait().value, 2.0)
        self.assertEqual(self.fake.wait_timeouts, [100] * 10 + [-2] * 2)

    def test_waiting_again_gives_the_outcome_again(self):
        pending = submit(value=2.0)
        self.assertIs(pending.wait(), pending.wait())
        self.assertEqual(len(self.fake.released), 1)

    def test_memory_of_an_ended_operation_is_let_go(self):
        owner = weakref.ref(submit(value=2.0).wait())
        gc.collect()
        self.assertIsNone(owner())

    def finishing(self, finish, finish_releases=False):
        memory = ctypes.c_double(1.0)
        address = ctypes.addressof(memory)
        return operations.submit(_native.ALLREDUCE, _native.FLOAT64, 1, 0, (1,),
                                 1.0, 1.0, "x", address, address, memory,
                                 memory, finish, finish_releases)

    def test_an_end_that_another_thread_sees_first(self):
        """It releases the handle between two steps of this one."""
        library = _native.library()
        for method in ("poll", "call_when_done"):
            with self.subTest(method=method):
                pending = submit(method)
                real = getattr(library, method, None)

                def ended_meanwhile(native, *function, pending=pending, real=real):
                    pending.wait()
                    if real is not None:
                        return real(native)
                    raise _native.StatusError(_native.NOT_FOUND, "no operation has the handle")

                called = []
                with mock.patch.object(library, method, ended_meanwhile, create=True):
                    if method == "poll":
                        self.assertTrue(pending.done())
                    else:
                        pending.call_when_done(lambda: called.append(1))
                        self.assertEqual(called, [1])

    def test_an_error_of_finish_is_the_outcome_and_the_handle_is_released(self):

        def fail(_):
            raise exceptions.HorovodInternalError("the copy failed")

        for releases in (False, True):
            self.fake.released.clear()
            pending = self.finishing(fail, releases)
            native = pending.native
            for _ in range(2):
                with self.assertRaisesRegex(exceptions.HorovodInternalError,
                                            "the copy failed"):
                    pending.wait()
            self.assertTrue(pending.ended())
            self.assertEqual(self.fake.released, [native])
            self.assertNotIn(pending, operations._submitted)

    def test_a_signal_within_finish_leaves_the_handle(self):
        calls = []

        def finish(native):
            calls.append(native)
            if len(calls) == 1:
                raise KeyboardInterrupt
            return "result"

        handle = operations.add(self.finishing(finish))
        with self.assertRaises(KeyboardInterrupt):
            operations.synchronize(handle)
        self.assertEqual(self.fake.released, [])
        self.assertEqual(operations.synchronize(handle), "result")
        self.assertEqual(len(calls), 2)
        self.assertEqual(self.fake.released, calls[:1])

    def test_a_signal_within_a_finish_that_cannot_be_repeated(self):

        def finish(_):
            raise KeyboardInterrupt

        pending = self.finishing(finish, finish_releases=True)
        with self.assertRaises(KeyboardInterrupt):
            pending.wait()
        with self.assertRaisesRegex(exceptions.HorovodInternalError, "signal"):
            pending.wait()
        self.assertEqual(len(self.fake.released), 1)

    def test_the_stream_reaches_the_library(self):
        memory = ctypes.c_double(1.0)
        address = ctypes.addressof(memory)
        for name, stream in (("host", None), ("default", 0), ("s", 77)):
            operations.submit(_native.ALLREDUCE, _native.FLOAT64, 1, 0, (1,),
                              1.0, 1.0, name, address, address, memory, memory,
                              stream=stream).wait()
        self.assertEqual(self.fake.streams, {
            (0, "host"): None,
            (0, "default"): 0,
            (0, "s"): 77
        })

    def test_statuses(self):
        for code, kind in ((_native.INVALID_ARGUMENT, ValueError),
                           (_native.ALREADY_EXISTS, ValueError),
                           (_native.UNIMPLEMENTED, NotImplementedError),
                           (_native.ABORTED, exceptions.HorovodInternalError),
                           (99, exceptions.MaypoleError)):
            error = exceptions.from_status(code, "what and why")
            self.assertIs(type(error), kind)
            self.assertEqual(str(error), "what and why")

    def test_errors_that_frameworks_report(self):
        for text, code, status in (
                ("{{function_node f}} maypole: rank 1 was lost\n [[at]]", 2, 2),
                ("XlaRuntimeError: ABORTED: maypole: rank 1 was lost", None,
                 _native.ABORTED),
                ("INTERNAL: Error dispatching computation: maypole: rank 1 was lost",
                 None, _native.INTERNAL),
                ("a code that is new: NEW: maypole: rank 1 was lost", None,
                 _native.INTERNAL)):
            error = exceptions.from_framework(text, code)
            self.assertEqual((str(error), error.status, error.epoch),
                             ("rank 1 was lost", status, None))
        # XLA's own texts and codes in front: what counts is the operation's code, at the end.
        for text in ("ABORTED: ", "INTERNAL: Error dispatching computation: Error dispatching computation: ",
                     "INTERNAL: Compute error: Error dispatching computation: %s", "INTERNAL: Compute error: ",
                     "FAILED_PRECONDITION: Buffer Definition Event: Error preparing computation: ", ""):
            error = exceptions.from_framework(text + "maypole: rank 1 was lost [ABORTED, membership epoch 12]; more")
            self.assertEqual((str(error), error.status, error.epoch), ("rank 1 was lost", _native.ABORTED, 12))
        self.assertIsNone(exceptions.from_framework("INTERNAL: maypole: no [INVALID_ARGUMENT, membership epoch 1]"))
        for text, code in ((None, 2), ("rank 1 was lost", 2),
                           ("of a program: maypole: lost", None),
                           ("maypole: wrong", _native.INVALID_ARGUMENT),
                           ("ALREADY_EXISTS: maypole: 'a' is pending", None)):
            self.assertIsNone(exceptions.from_framework(text, code))

    def test_outside_a_job(self):
        self.fake.shutdown()
        for function in (basics.rank, basics.size, basics.local_rank,
                         basics.local_size, basics.cross_rank,
                         basics.cross_size, basics.is_homogeneous,
                         basics.mpi_threads_supported, submit):
            with self.assertRaisesRegex(ValueError, "not been initialized"):
                function()
        self.assertFalse(basics.is_initialized())
        self.assertIsNone(process_sets.global_process_set.ranks)

    def test_ctrl_c_ends_init(self):
        joining = threading.Event()
        ended = threading.Event()

        def init():
            joining.set()
            ended.wait(30)
            return _native.OK

        self.fake.init = init

        def interrupt():
            joining.wait(30)
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with self.assertRaises(KeyboardInterrupt):
            basics.init()
        ended.set()
        thread.join()

    def test_an_init_that_fails(self):
        self.fake.init = lambda: _native.DEADLINE_EXCEEDED
        self.fake.last_error = lambda: "rank 3 did not come"
        with self.assertRaisesRegex(exceptions.HorovodInternalError,
                                    "rank 3 did not come"):
            basics.init()

    def test_init_takes_all_ranks_in_several_forms(self):
        class Comm:
            """As of mpi4py."""

            def __init__(self, size):
                self.Get_size = lambda: size  # pylint: disable=invalid-name

        _native.use(fake_library.FakeLibrary(2))
        for everyone in ([], [0, 1], (0, 1), Comm(2)):
            basics.shutdown()
            basics.init(comm=everyone)
            self.assertTrue(basics.is_initialized())
        for wrong in (3, "all", [0, "1"], [-1]):
            with self.assertRaisesRegex(ValueError, "list of ranks"):
                basics.init(comm=wrong)
        self.assertTrue(basics.is_initialized())
        basics.init(comm=[0])  # a second call does nothing
        for wrong in ([0], [0, 1, 2], Comm(3)):
            basics.shutdown()
            with self.assertRaisesRegex(NotImplementedError,
                                        r"comm.*of a job of 2.*process_set"):
                basics.init(comm=wrong)
            self.assertFalse(basics.is_initialized())

    def test_a_part_of_the_job(self):
        def place(rank, local_rank, local_size, node, nodes, size):
            return {"MAYPOLE_RANK": str(rank), "MAYPOLE_SIZE": str(size),
                    "MAYPOLE_LOCAL_RANK": str(local_rank),
                    "MAYPOLE_LOCAL_SIZE": str(local_size),
                    "MAYPOLE_CROSS_RANK": str(node),
                    "MAYPOLE_CROSS_SIZE": str(nodes), "MAYPOLE_JOB": "j" * 60}

        def of(environ, ranks):
            got = part_of_job.variables(environ, ranks)
            return [int(got[name]) for name in environ
                    if name != "MAYPOLE_JOB"], got["MAYPOLE_JOB"]

        second = place(3, 1, 2, 1, 3, 6)  # rank 3 is on the second node
        self.assertEqual(part_of_job.variables(second, None), {})
        self.assertEqual(part_of_job.variables(second, list(range(6))), {})
        self.assertEqual(part_of_job.variables({}, [0]), {})
        # rank, size, local rank, local size, node, nodes
        numbers, job = of(second, [0, 2, 3])
        self.assertEqual(numbers, [2, 3, 1, 2, 1, 2])
        self.assertRegex(job, "^j{54}-[0-9a-f]{8}$")
        other, same = of(place(0, 0, 2, 0, 3, 6), [0, 2, 3])
        self.assertEqual((other, same), ([0, 3, 0, 1, 0, 2], job))
        self.assertEqual(of(second, [3, 4]), ([0, 2, 0, 1, 0, 2], mock.ANY))
        self.assertNotEqual(of(second, [3, 4])[1], job)
        self.assertEqual(of(second, [3])[0], [0, 1, 0, 1, 0, 1])
        with self.assertRaisesRegex(ValueError, "rank 3 is not in the list"):
            part_of_job.variables(second, [0, 1])
        for environ, ranks, text in (
                (second, [3, 2], "ascending"), (second, [2, 3, 3], "ascending"),
                (second, [3, 6], "launcher's 6"),
                (place(2, 0, 1, 1, 2, 3), [0, 2], "different numbers"),
                (place(3, 0, 2, 1, 3, 6), [0, 3], "different numbers")):
            with self.assertRaisesRegex(NotImplementedError, text):
                part_of_job.variables(environ, ranks)
        with mock.patch.dict(os.environ, {"MAYPOLE_RANK": "7"}):
            os.environ.pop("MAYPOLE_JOB", None)
            with part_of_job.environment({"MAYPOLE_RANK": "1",
                                          "MAYPOLE_JOB": "j"}):
                self.assertEqual(os.environ["MAYPOLE_RANK"], "1")
            self.assertEqual(os.environ["MAYPOLE_RANK"], "7")
            self.assertNotIn("MAYPOLE_JOB", os.environ)


class ReduceOpTest(unittest.TestCase):

    def test_the_members_are_horovods_numbers(self):
        numbers = {"Average": 0, "Sum": 1, "Adasum": 2, "Min": 3, "Max": 4, "Product": 5}
        self.assertEqual({op.name: op.value for op in ReduceOp}, numbers)
        for op, number in zip(ReduceOp, numbers.values()):
            self.assertEqual((op, hash(op), {number: "found"}[op]), (number, hash(number), "found"))
            self.assertEqual((str(op), f"{op}", f"{op:02d}", "%d %s" % (op, op), json.dumps([op])),
                             (str(number), str(number), f"0{number}", f"{number} {number}", f"[{number}]"))
            self.assertEqual(repr(op), f"<ReduceOp.{op.name}: {number}>")
            for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
                self.assertIs(pickle.loads(pickle.dumps(op, protocol)), op)
            self.assertIs(copy.deepcopy(op), op)

    def test_what_op_may_be(self):
        for given in (ReduceOp.Max, 4, np.int64(4)):
            self.assertIs(collectives.reduction(None, given), ReduceOp.Max)
        self.assertIs(collectives.reduction(False, None), ReduceOp.Sum)
        self.assertIs(collectives.reduction(None, None), ReduceOp.Average)
        for wrong in (6, -1, "Sum", None.__class__, [1]):
            with self.assertRaisesRegex(ValueError, "is not a reduction"):
                collectives.reduction(None, wrong)
        with self.assertRaisesRegex(ValueError, "both average and op"):
            collectives.reduction(True, ReduceOp.Sum)


class TwoRanksTest(unittest.TestCase):

    def setUp(self):
        self.fake = fake_library.FakeLibrary(2)
        _native.use(self.fake)

    def tearDown(self):
        _native.use(None)

    def test_ctrl_c_ends_the_wait_and_leaves_the_handle(self):
        self.fake.set_rank(0)
        handle = operations.add(submit(value=1.0))
        waiting = threading.Event()
        real_wait = self.fake.wait

        def wait(native, timeout_ms):
            waiting.set()
            return real_wait(native, timeout_ms)

        self.fake.wait = wait

        def interrupt():
            waiting.wait(30)
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with self.assertRaises(KeyboardInterrupt):
            operations.synchronize(handle)
        thread.join()
        self.assertFalse(operations.poll(handle))
        self.fake.set_rank(1)
        submit(value=2.0)
        self.assertEqual(operations.synchronize(handle).value, 3.0)

    def test_memory_outlives_a_submit_that_a_signal_has_interrupted(self):
        self.fake.set_rank(0)  # the other one never comes
        owners = []

        class Interrupting:

            def __getattr__(_, name):
                return getattr(self.fake, name)

            def submit(_, *arguments):
                # After the submission a handler raises, so the caller never gets
                # the handle.
                self.fake.submit(*arguments)
                raise KeyboardInterrupt

        class Owner:
            pass

        def interrupted():
            owner = Owner()
            owners.append(weakref.ref(owner))
            memory = ctypes.c_double(1.0)
            owner.memory = memory
            address = ctypes.addressof(memory)
            operations.submit(_native.ALLREDUCE, _native.FLOAT64, 1, 0, (1,),
                              1.0, 1.0, "x", address, address, owner, owner)

        _native.use(Interrupting())
        with self.assertRaises(KeyboardInterrupt):
            interrupted()
        gc.collect()
        self.assertIsNotNone(owners[0]())

    def test_memory_outlives_a_group_that_a_signal_has_interrupted(self):
        self.fake.set_rank(0)  # the other one never comes
        owners = []

        class Interrupting:

            def __getattr__(_, name):
                return getattr(self.fake, name)

            def submit_group(_, members):
                self.fake.submit_group(members)
                raise KeyboardInterrupt

        def interrupted():
            members = [prepared("x"), prepared("y")]
            owners.extend(weakref.ref(member.input) for member in members)
            operations.start_group(members)

        _native.use(Interrupting())
        with self.assertRaises(KeyboardInterrupt):
            interrupted()
        gc.collect()
        self.assertNotIn(None, [owner() for owner in owners])

    def test_a_group_waits_for_all_before_it_fails(self):
        def rank(number):
            good = prepared("good", float(number))
            bad_memory = (ctypes.c_double * 2)()
            bad = operations.prepare(_native.ALLREDUCE, _native.FLOAT64, 1, 0,
                                     (1 + number,), 1.0, 1.0, "bad",
                                     ctypes.addressof(bad_memory),
                                     ctypes.addressof(bad_memory), bad_memory)
            handle = operations.add(operations.start_group([bad, good]))
            with self.assertRaisesRegex(exceptions.HorovodInternalError,
                                        "bad: rank 0 has"):
                operations.synchronize(handle)
            return good.wait().value

        self.assertEqual(fake_library.run_ranks(self.fake, rank), [1.0, 1.0])
        self.assertEqual(self.fake.pending(), 0)

    def test_a_group_is_accepted_whole_or_not_at_all(self):
        self.fake.set_rank(0)
        submit("b")
        owner = prepared("a")
        reference = weakref.ref(owner.input)
        with self.assertRaisesRegex(ValueError, "'b' is pending"):
            operations.start_group([owner, prepared("b")])
        self.assertEqual(self.fake.submitted, [(0, "b")])
        self.assertEqual(self.fake.pending(), 1)
        del owner
        gc.collect()
        self.assertIsNone(reference())
        self.assertEqual(operations.start_group([]).wait(), [])


if __name__ == "__main__":
    unittest.main()

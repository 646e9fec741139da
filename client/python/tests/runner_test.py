"""maypole.run() without ranks: its options, what it pickles, and maypoleruns that are scripts."""

import inspect
import os
import pickle
import tempfile
import unittest
from unittest import mock

import maypole
from maypole.common import objects, program
from maypole.runner import RankError, api, job, messages

OF_MAIN = "def f():\n    return 1\n"


class MessagesTest(unittest.TestCase):
    def test_a_call_arrives(self):
        paths, body = messages.decode_paths(messages.encode_call(os.path.join, ["a"], {}, ["/x"]))
        func, args, kwargs = messages.decode_value(body)
        self.assertEqual((paths, func(*args, "b", **kwargs)), (["/x"], "a/b"))

    def test_an_answer_arrives_only_whole(self):
        answer = messages.encode_answer(3, 4, result=pickle.dumps([1]))
        self.assertEqual(messages.decode_answer(answer), {"rank": 3, "size": 4, "result": pickle.dumps([1])})
        for length in range(len(answer)):
            self.assertIsNone(messages.decode_answer(answer[:length]))

    def test_without_cloudpickle_the_error_says_what_to_install(self):
        names = {"__name__": "__main__"}
        exec(OF_MAIN, names)  # pylint: disable=exec-used
        with mock.patch.object(objects, "PICKLES_BY_VALUE", False):
            for func, args in ((names["f"], ()), (lambda: 1, ()), (print, (names["f"],))):
                with self.assertRaisesRegex(TypeError, "python3-cloudpickle"):
                    messages.encode_call(func, args, {}, [])
            self.assertTrue(messages.encode_call(os.path.join, ("a",), {}, []))

    def test_what_nobody_can_pickle(self):
        with self.assertRaisesRegex(TypeError, "cannot pickle print and its arguments for the ranks: .*generator"):
            messages.encode_call(print, ((i for i in ()),), {}, [])


class OptionsTest(unittest.TestCase):
    def options(self, *args, **kwargs):
        with mock.patch.object(job, "run_job") as run_job:
            maypole.run(print, *args, **kwargs)
        return run_job.call_args[0][1]

    def test_parameters_become_options(self):
        self.assertEqual(self.options(), ["-np", "1"])
        self.assertEqual(self.options(np=None, hosts="a:2", verbose=2, ssh_port=7),
                         ["-H", "a:2", "--ssh-port", "7", "--verbose"])
        self.assertEqual(self.options(min_np=2, max_np=4, cooldown_range=(1, 9), network_interfaces=["e", "f"]),
                         ["-np", "2", "--min-np", "2", "--max-np", "4", "--network-interfaces", "e,f",
                          "--blacklist-cooldown-range", "1", "9"])
        self.assertEqual(self.options(use_gloo=True, options=["--autotune"]), ["-np", "1", "--autotune"])

    def test_two_controllers(self):
        with self.assertRaisesRegex(ValueError, "exclude"):
            maypole.run(print, use_gloo=True, use_mpi=True)

    def test_another_python_has_its_own_libraries(self):
        with mock.patch.object(api.sys, "path", ["/work", api.sys.prefix + "/lib/python3", "/else"]):
            self.assertEqual(api._paths("/opt/python"), ["/work", "/else"])  # pylint: disable=protected-access
            self.assertEqual(len(api._paths(None)), 3)  # pylint: disable=protected-access

    def test_the_exception_is_a_runtime_error(self):
        self.assertIs(maypole.RankError, RankError)
        self.assertTrue(issubclass(RankError, RuntimeError))
        self.assertEqual(list(inspect.signature(maypole.run).parameters)[:4], ["func", "args", "kwargs", "np"])


class JobTest(unittest.TestCase):
    """A script plays maypolerun; its $2 is the private directory."""

    def setUp(self):
        self.dir = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))
        patch = mock.patch.dict(os.environ, MAYPOLE_BIN=self.dir)
        patch.start()
        self.addCleanup(patch.stop)

    def run_script(self, text):
        path = os.path.join(self.dir, "maypolerun")
        with open(path, "w", encoding="utf-8") as f:
            f.write("#!/bin/sh\n" + text)
        os.chmod(path, 0o755)
        return job.run_job(b"call", [], None)

    def answer(self, name, rank, size=None, **fields):
        path = os.path.join(self.dir, name)
        with open(path, "wb") as f:
            f.write(messages.encode_answer(rank, size, **fields))
        return path

    def test_results_by_rank(self):
        a = self.answer("a", 1, result=pickle.dumps("one"))
        b = self.answer("b", 0, result=pickle.dumps("zero"))
        c = self.answer("c", None, result=pickle.dumps("left its job"))
        self.assertEqual(self.run_script(f"cp {a} $2/result.0; cp {b} $2/result.1; cp {c} $2/result.2"),
                         ["zero", "one", "left its job"])

    def test_of_processes_that_were_replaced_nothing_comes(self):
        a = self.answer("a", 0, error="it died", traceback="")
        b = self.answer("b", 1, result=pickle.dumps("one"))
        c = self.answer("c", 0, result=pickle.dumps("zero"))
        self.assertEqual(self.run_script(f"cp {a} $2/result.0; cp {b} $2/result.1; cp {c} $2/result.10"),
                         ["zero", "one"])

    def test_each_rank_must_answer(self):
        a = self.answer("a", 1, 2, result=pickle.dumps("one"))
        with self.assertRaisesRegex(RankError, "^rank 0 ended with status 0 without a result: ") as caught:
            self.run_script(f"cp {a} $2/result.1")
        self.assertEqual(caught.exception.rank, 0)
        with self.assertRaisesRegex(RankError, "^all ranks ended with status 0 without a result: "):
            self.run_script("")

    def test_the_directory_is_private(self):
        a = self.answer("a", 0, result=pickle.dumps(1))
        self.run_script(f"stat -c %a $2 $2/function >{self.dir}/modes; cat $2/function >{self.dir}/got; "
                        f"cp {a} $2/result.0")
        with open(os.path.join(self.dir, "modes"), encoding="utf-8") as f:
            self.assertEqual(f.read(), "700\n600\n")
        with open(os.path.join(self.dir, "got"), "rb") as f:
            self.assertEqual(f.read(), b"call")

    def test_no_job_was_started(self):
        with self.assertRaisesRegex(RuntimeError, "^maypolerun: -np is wrong$"):
            self.run_script("printf '%s\\n' -1 '-np is wrong' >$2/outcome; exit 2")
        with self.assertRaisesRegex(RuntimeError, "^maypolerun: the job ended with status 143$"):
            self.run_script("exit 143")

    def test_an_answer_that_is_cut_off(self):
        a = self.answer("a", 0, result=b"0" * 100)
        with self.assertRaisesRegex(RankError, "rank 0 .* incomplete") as caught:
            self.run_script(f"head -c 50 {a} >$2/result.0")
        self.assertEqual(caught.exception.rank, 0)

    def test_a_result_of_a_module_that_is_not_here(self):
        a = self.answer("a", 0, result=b"cno.such.module\nThing\n.")
        with self.assertRaisesRegex(RankError, "the result of rank 0 cannot be unpickled here: ModuleNotFoundError"):
            self.run_script(f"cp {a} $2/result.0")

    def test_an_exception_of_a_module_that_is_not_here(self):
        a = self.answer("a", 4, error="Odd: x", traceback="Trace", exception=b"cno.such.module\nOdd\n.")
        with self.assertRaisesRegex(RankError, r"^rank 4: Odd: x \(process 2 failed\)\n\nTrace$") as caught:
            self.run_script(f"cp {a} $2/result.2; printf '%s\\n' 2 'process 2 failed' >$2/outcome; exit 1")
        self.assertEqual((caught.exception.rank, caught.exception.__cause__), (4, None))

    def test_no_maypolerun(self):
        with self.assertRaisesRegex(FileNotFoundError, "MAYPOLE_BIN"):
            program.find_program("maypolerun")


if __name__ == "__main__":
    unittest.main()

"""One line for each reason why a CUDA tensor cannot be used, on real ranks."""

import os
import unittest

import fake_gpu
import harness

NOT_HERE = "ValueError: allreduce 'x': CUDA tensors cannot be used here: "


class RefusalsTest(unittest.TestCase):

    def errors(self, args, np=2, fake="", **options):
        with fake_gpu.Job(np, "one.py", args, fake=fake, **options) as job:
            job.check_ok()
            return [record["error"] for record in job.records()]

    def check(self, line, args=("address",), **options):
        for error in self.errors(args, **options):
            self.assertEqual(error, line)

    def test_no_driver(self):
        self.check(NOT_HERE + "there is no NVIDIA driver on this machine (libcuda.so.1 cannot be loaded); in a "
                   "container, start it with access to the GPUs", driver=None)

    def test_the_toolkits_stub(self):
        self.check(NOT_HERE + "libcuda.so.1 is the stub of CUDA's toolkit, not the NVIDIA driver; remove the toolkit's "
                   "directory 'stubs' from LD_LIBRARY_PATH", driver=os.path.join(fake_gpu.DIRECTORY, "stub"))

    def test_an_old_driver(self):
        self.check(NOT_HERE + "the NVIDIA driver is older than CUDA 12 (libcuda.so.1 has no cuGetProcAddress_v2); "
                   "install driver 525 or newer", driver=os.path.join(fake_gpu.DIRECTORY, "old"))

    def test_no_device(self):
        for error in self.errors(["address"], fake="init=100"):
            self.assertRegex(error, "^" + NOT_HERE + r"the NVIDIA driver finds no usable GPU: cuInit: .* "
                             r"\(CUDA_ERROR_NO_DEVICE, 100\)$")

    def test_an_address_of_nothing(self):
        self.check("ValueError: allreduce 'x': input: the address is not one of CUDA device memory in this process")

    def test_no_page_locked_memory(self):
        for error in self.errors(["array"], fake="fail=cuMemHostAlloc:1", launcher_args=["--arena-bytes=0"]):
            self.assertRegex(error, r"allreduce 'x': no page-locked host memory for 4194304 bytes of a CUDA tensor "
                             r"\(0 bytes are allocated for others\): cuMemHostAlloc: .*OUT_OF_MEMORY, 2\)")

    def test_a_gpu_that_fails_ends_the_epoch_with_its_error(self):
        # With stream writes, the event of an input is asked only now and then.
        for fake in ("writes=0,fail=cuEventQuery:1:700", "late=200000,seed=1,fail=cuEventQuery:1:700"):
            for error in self.errors(["fails", "1", fake]):
                self.assertRegex(error, "^HorovodInternalError: rank 1: allreduce 'x': the GPU has failed before the "
                                 r"input was copied: cuEventQuery: .*\(CUDA_ERROR_ILLEGAL_ADDRESS, 700\), on GPU-.*")

    def test_gpu_on_one_rank_and_cpu_on_the_other(self):
        for nodes in (1, 2):
            self.check("HorovodInternalError: allreduce 'x': mismatched devices: rank 0 submitted GPU, rank 1 submitted "
                       "CPU; every rank must submit the same device class", ["host", "1"], nodes=nodes)

    def check_works(self, arena, **options):
        with fake_gpu.Job(2, "one.py", ["array"], **options) as job:
            job.check_ok()
            for record in job.records():
                self.assertIsNone(record["error"])
                self.assertEqual(record["values"], [3.0])
                self.assertEqual(record["arena"], arena)

    def test_staging_is_in_the_arena_if_it_can_be(self):
        self.check_works(1)
        self.check_works(0, fake="fail=cuMemHostRegister:1")
        self.check_works(0, launcher_args=["--arena-bytes=0"])


if __name__ == "__main__":
    unittest.main()

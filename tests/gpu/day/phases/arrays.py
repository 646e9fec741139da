"""JAX's arrays through maypole.jax, and CuPy's through maypole.torch."""

from day import Skip


def run(day):
    with day.check("CuPy by DLPack, 2 ranks") as values:
        for module in ["torch"] + ["cupy"] * (not day.rehearsal):
            if not day.module(module):
                raise Skip("the module %s is not there" % module)
        with day.job(2, "dlpack_arrays.py") as job:
            job.check_ok(30)
            values.update(job.record(0))
    with day.check("maypole.jax, 2 ranks") as values:
        if not day.module("jax"):
            raise Skip("the module jax is not there")
        with day.job(2, "jax_arrays.py") as job:
            job.check_ok(45)
            records = job.records()
        values.update(records[0])
        if len({record["bits"] for record in records}) != 1:
            raise AssertionError("the ranks' weights differ: %s" % records)

"""How many tasks a Spark cluster can run at the same time."""

from typing import Any, Optional


def count(context: Any) -> Optional[int]:
    """The slots of all present executors, busy or not; None if this Spark does not report it."""
    try:
        scala = context._jsc.sc()
        if hasattr(scala, "resourceProfileManager"):  # Spark 3.1 and newer
            return int(scala.maxNumConcurrentTasks(scala.resourceProfileManager().defaultResourceProfile()))
        return int(scala.maxNumConcurrentTasks())
    except Exception:  # anything that py4j raises: this calls an internal function of Spark
        return None


def is_local(context: Any) -> bool:
    """Whether all tasks run in the driver's JVM, so that the number of slots never changes."""
    return (context.master or "").startswith("local") and not (context.master or "").startswith("local-cluster")


def is_on_this_machine(context: Any) -> bool:
    """Whether all executors run on the driver's machine."""
    return (context.master or "").startswith("local")


def grows(context: Any) -> bool:
    """Whether Spark starts executors on demand, in which case it has no barrier stages."""
    return context.getConf().get("spark.dynamicAllocation.enabled", "false").lower() == "true"


def describe(context: Any) -> str:
    """For messages: "4 slots (master local[4], spark.task.cpus=1)"."""
    slots = count(context)
    cpus = context.getConf().get("spark.task.cpus", "1")
    number = "an unknown number of" if slots is None else slots
    return f"{number} slots (master {context.master}, spark.task.cpus={cpus})"

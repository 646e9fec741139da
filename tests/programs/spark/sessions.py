"""A Spark session for the programs here: small, quiet, on loopback."""

import json
import os
import sys

from pyspark.sql import SparkSession

# Executors of local-cluster get the driver's environment.
os.environ.update(PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1")


def session(master, **more):
    builder = SparkSession.builder.master(master).appName("maypole").config("spark.ui.enabled", "false")
    for name, value in {"spark.sql.shuffle.partitions": "2", "spark.executor.memory": "512m", **more}.items():
        builder = builder.config(name, value)
    found = builder.getOrCreate()
    found.sparkContext.setLogLevel("OFF")
    return found


def say(name, value):
    print("JSON" + json.dumps({name: value}), flush=True)

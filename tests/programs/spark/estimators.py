"""The estimators on a real Spark with Fashion-MNIST; prints the results as JSON.

    estimators.py DIRECTORY NAME...      NAME: torch, torch_columns, keras
"""

import os
import sys

import numpy
import sessions
from pyspark.ml.linalg import Vectors

from maypole.spark.common.store import Store

ROWS = 600


def images(spark):
    import fashion_mnist_data
    pixels, labels = fashion_mnist_data.load(os.environ.get("FASHION_MNIST", fashion_mnist_data.DIRECTORY), "train",
                                             ROWS)
    pixels = numpy.asarray(pixels, dtype=float).reshape(ROWS, -1)[:, ::4]
    rows = [(Vectors.dense(x), int(y), i % 5 == 0) for i, (x, y) in enumerate(zip(pixels, labels))]
    return spark.createDataFrame(rows, ["pixels", "label", "is_test"]).repartition(3)


def torch(spark, directory):
    import torch as framework
    from maypole.spark.torch import TorchEstimator, TorchModel
    frame = images(spark)
    framework.manual_seed(1)
    width = len(frame.first().pixels)
    model = framework.nn.Sequential(framework.nn.Linear(width, 32), framework.nn.ReLU(), framework.nn.Linear(32, 10))
    estimator = TorchEstimator(num_proc=2,
                               store=Store.create(directory),
                               model=model,
                               optimizer=framework.optim.SGD(model.parameters(), lr=0.05),
                               loss=framework.nn.CrossEntropyLoss(),
                               metrics=[lambda out, label: (out.argmax(1) == label).float().mean()],
                               feature_cols=["pixels"],
                               label_cols=["label"],
                               validation="is_test",
                               batch_size=20,
                               epochs=4,
                               run_id="a run",
                               random_seed=1,
                               verbose=0)
    trained = estimator.fit(frame)
    predicted = trained.setOutputCols(["scores"]).transform(frame)
    rows = predicted.collect()
    with framework.no_grad():
        want = trained.getModel()(framework.tensor(numpy.stack([row.pixels for row in rows])).float()).numpy()
    difference = float(numpy.abs(numpy.stack([row.scores for row in rows]) - want).max())
    trained.write().overwrite().save(directory + "/saved")
    again = TorchModel.load(directory + "/saved").transform(frame).collect()
    same = [row.scores for row in again] == [row.scores for row in rows]
    more = estimator.copy().setEpochs(1).fit(frame)  # continues from the checkpoint
    written = Store.create(directory, train_path=directory + "/intermediate_train_data.0",
                           val_path=directory + "/intermediate_val_data.0")
    parquet = estimator.copy().setEpochs(1).setStore(written).fit_on_parquet()
    return {
        "history": trained.getHistory(),
        "difference": difference,
        "columns": predicted.columns,
        "saved": same,
        "rate": trained.getOptimizer().param_groups[0]["lr"],
        "parquet": parquet.getHistory(),
        "continued": more.getHistory(),
        "files": sorted(os.listdir(directory + "/runs/a run"))
    }


def torch_columns(spark, directory):
    """Numbers, several inputs and outputs, weights; the trained model is that of one process on the whole batch."""
    import torch as framework
    from maypole.spark.torch import TorchEstimator
    random = numpy.random.default_rng(0)
    table = [(float(a), int(b), [float(c), 1.0], float(2 * a - b), int(a > 0), float(w))
             for a, b, c, w in zip(random.normal(size=64), random.integers(0, 5, 64), random.normal(
                 size=64), random.uniform(0.5, 1.5, 64))]
    frame = spark.createDataFrame(table, ["a", "b", "c", "y", "kind", "weight"]).coalesce(1)

    class Net(framework.nn.Module):

        def __init__(self):
            super().__init__()
            self.first, self.second = framework.nn.Linear(4, 1), framework.nn.Linear(4, 2)

        def forward(self, a, b, c):
            x = framework.cat([a, b, c], 1)
            return self.first(x), framework.log_softmax(self.second(x), 1)

    framework.manual_seed(2)
    model = Net()
    losses = [framework.nn.MSELoss(), framework.nn.functional.nll_loss]
    estimator = TorchEstimator(num_proc=2,
                               store=Store.create(directory),
                               model=model,
                               optimizer=framework.optim.SGD(model.parameters(), lr=0.01),
                               loss=losses,
                               loss_weights=[0.25, 0.75],
                               feature_cols=["a", "b", "c"],
                               label_cols=["y", "kind"],
                               sample_weight_col="weight",
                               batch_size=32,
                               epochs=3,
                               shuffle=False,
                               verbose=0)
    trained = estimator.fit(frame)
    numbers = {
        name: framework.tensor(numpy.array([row[i] for row in table]))
        for i, name in enumerate(["a", "b", "c", "y", "kind", "weight"])
    }
    optimizer = framework.optim.SGD(model.parameters(), lr=0.02)  # of two ranks
    for _ in range(3):
        optimizer.zero_grad()
        y, kind = model(numbers["a"].float().reshape(-1, 1), numbers["b"].float().reshape(-1, 1), numbers["c"].float())
        weights = numbers["weight"].float()
        loss = (0.25 * ((y.reshape(-1) - numbers["y"].float())**2 * weights).mean() + 0.75 *
                (framework.nn.functional.nll_loss(kind, numbers["kind"], reduction="none") * weights).mean())
        loss.backward()
        optimizer.step()
    pairs = zip(model.state_dict().values(), trained.getModel().state_dict().values())
    out = trained.transform(frame)
    return {"difference": max(float((a - b).abs().max()) for a, b in pairs), "types": dict(out.dtypes[-2:])}


def keras(spark, directory):
    import keras as framework
    from maypole.spark.keras import KerasEstimator, KerasModel
    frame = images(spark)
    framework.utils.set_random_seed(1)
    model = framework.Sequential([
        framework.Input([len(frame.first().pixels)]),
        framework.layers.Dense(32, "relu"),
        framework.layers.Dense(10, "softmax")
    ])
    estimator = KerasEstimator(num_proc=2,
                               store=Store.create(directory),
                               model=model,
                               optimizer=framework.optimizers.SGD(0.05),
                               loss="sparse_categorical_crossentropy",
                               metrics=["accuracy"],
                               feature_cols=["pixels"],
                               label_cols=["label"],
                               validation="is_test",
                               batch_size=20,
                               epochs=4,
                               run_id="keras",
                               random_seed=1,
                               verbose=0)
    trained = estimator.fit(frame)
    rows = trained.transform(frame).collect()
    want = trained.getModel().predict(numpy.stack([row.pixels for row in rows]).astype("float32"), verbose=0)
    trained.write().overwrite().save(directory + "/saved")
    again = KerasModel.load(directory + "/saved").transform(frame).first()
    more = estimator.copy().setEpochs(1).fit(frame)
    return {
        "history": trained.getHistory(),
        "continued": more.getHistory(),
        "difference": float(numpy.abs(numpy.stack([row.label__output for row in rows]) - want).max()),
        "saved": float(numpy.abs(again.label__output.toArray() - rows[0].label__output.toArray()).max()),
        "files": sorted(os.listdir(directory + "/runs/keras"))
    }


CALLS = {"torch": torch, "torch_columns": torch_columns, "keras": keras}


def main():
    spark = sessions.session("local[4]")
    for name in sys.argv[2:]:
        sessions.say(name, CALLS[name](spark, os.path.join(sys.argv[1], name)))
    spark.stop()


if __name__ == "__main__":
    main()

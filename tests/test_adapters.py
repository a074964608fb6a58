"""Adapters, each with its real library."""

from __future__ import annotations

import math
import os

os.environ.setdefault("KERAS_BACKEND", "torch")

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from conftest import Deferred
from initmem.errors import ConfigError, ModelError
from initmem.measures.provenance import applied, applied_lines, applied_tables
from initmem.metric import metric_names
from initmem.pipeline.init import Init, UntouchedWarning
from initmem.pipeline.run import PipelineTrainer
from initmem.pipeline.tracker import Tracker
from initmem.recipe import PipelineRecipe
from initmem.record import RunRecord, crashed
from initmem.study import Run

pytestmark = [
    pytest.mark.usefixtures("empty_folder"),
    pytest.mark.filterwarnings("ignore"),  # those libraries warn about each other
]

keras, adapter = Deferred("keras"), Deferred("initmem.pipeline.keras")
X = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()
EPOCHS, BATCH = 3, 8
UPDATES = 5  # per epoch


def test_names_of_metrics() -> None:
    given = {"val/acc": 1, "eval_loss": 2, "test-acc": 3, "loss": 4, "lr-SGD": 5, "eval_runtime": 6, "f1": 7}
    expected = {"val_accuracy": 1, "val_loss": 2, "test_accuracy": 3, "train_loss": 4, "train_f1": 7}
    assert metric_names(given, bare="train_", skip=("_runtime",)) == expected


# -- Lightning ------------------------------------------------------------------------------------------


def lightning_module():
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))

        def _step(self, batch, name):
            x, y = batch
            out = self.net(x)
            loss = nn.functional.cross_entropy(out, y)
            self.log(f"{name}_loss", loss, on_step=name == "train", on_epoch=True)
            self.log(f"{name}/acc", (out.argmax(1) == y).float().mean(), on_step=False, on_epoch=True)
            return loss

        def training_step(self, batch, index):
            return self._step(batch, "train")

        def validation_step(self, batch, index):
            self._step(batch, "val")

        def test_step(self, batch, index):
            self._step(batch, "test")

        def on_train_epoch_end(self) -> None:
            self.log("late", float(self.current_epoch))

        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
            return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)]  # by epoch

    return Module()


QUIET = {
    "max_epochs": EPOCHS,
    "accelerator": "cpu",
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "enable_checkpointing": False,
    "logger": False,
}


def fitted(tracker: Tracker, tmp_path, *, loaders=None, **options):
    import lightning.pytorch as pl

    from initmem.pipeline.lightning import LightningTracker

    data = DataLoader(TensorDataset(X, Y), batch_size=BATCH)
    module = Init(1.5, 2).apply(lightning_module(), draw="fan-in")
    trainer = pl.Trainer(callbacks=[LightningTracker(tracker)], default_root_dir=tmp_path, **QUIET | options)
    trainer.fit(module, *(loaders or (data, data)))
    return trainer, module, data


def test_lightning(tmp_path) -> None:
    tracker = Tracker()
    trainer, module, data = fitted(tracker, tmp_path)
    history = tracker.history
    rates = 0.1 * 0.5 ** np.repeat(np.arange(EPOCHS), UPDATES)
    ends = np.arange(1, EPOCHS + 1) * UPDATES - 1
    np.testing.assert_allclose(history["clock_sgd"], np.cumsum(rates**2)[ends] / BATCH, rtol=1e-9)
    np.testing.assert_allclose(history["clock_momentum"], 100 * history["clock_sgd"], rtol=1e-9)
    assert {"train_loss", "train_accuracy", "val_loss", "val_accuracy", "norm"} <= history.keys()
    assert not {"train_loss_step", "train_loss_epoch"} & history.keys()
    assert history["late"].tolist() == [0, 1, 2]  # of its own epoch, though it was logged last
    with torch.no_grad():
        out = module.net(X)
    assert history["val_loss"][-1] == pytest.approx(float(nn.functional.cross_entropy(out, Y)), rel=1e-5)
    trainer.test(module, data, verbose=False)
    assert tracker.finals["test_accuracy"] == pytest.approx(history["val_accuracy"][-1])
    assert tracker.norm_init == pytest.approx(
        _norm(Init(1.5, 2).apply(lightning_module(), draw="fan-in").net)
    )


def _norm(net: nn.Module) -> float:
    return math.sqrt(sum(float(p.detach().square().sum()) for p in net.parameters() if p.ndim > 1))


def test_lightning_with_accumulation_and_rare_validation(tmp_path) -> None:
    tracker = Tracker()
    fitted(tracker, tmp_path, accumulate_grad_batches=5, check_val_every_n_epoch=2, max_epochs=4)
    assert tracker.updates == 4
    assert len(tracker.history["val_loss"]) == 2
    rates = 0.1 * 0.5 ** np.arange(4)
    assert tracker.history["clock_sgd"][-1] == pytest.approx((rates**2).sum() / (5 * BATCH))


def test_lightning_needs_to_know_the_batch(tmp_path) -> None:
    batches = [(X[i : i + BATCH], Y[i : i + BATCH]) for i in range(0, 40, BATCH)]
    with pytest.raises(ConfigError, match="batch_size: the data loader does not tell"):
        fitted(Tracker(), tmp_path, loaders=(DataLoader(batches, batch_size=None),))


def test_lightning_goes_on_from_a_checkpoint(tmp_path) -> None:
    import lightning.pytorch as pl

    from initmem.pipeline.lightning import LightningTracker

    whole, first, second = Tracker(), Tracker(), Tracker()
    fitted(whole, tmp_path)
    trainer, _, data = fitted(first, tmp_path, max_epochs=2)
    trainer.save_checkpoint(tmp_path / "saved.ckpt")
    again = pl.Trainer(callbacks=[LightningTracker(second)], default_root_dir=tmp_path, **QUIET)
    again.fit(lightning_module(), data, data, ckpt_path=tmp_path / "saved.ckpt", weights_only=False)
    for name in ("clock_sgd", "val_loss", "norm", "late"):
        np.testing.assert_allclose(second.history[name], whole.history[name], rtol=1e-6)
    assert second.norm_init == whole.norm_init


# -- transformers ---------------------------------------------------------------------------------------


def bert():
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=20, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return BertForSequenceClassification(config)


@pytest.mark.parametrize("logging", ["no", "epoch"])
@pytest.mark.parametrize("eval_on_start", [False, True])
def test_transformers(tmp_path, eval_on_start: bool, logging: str) -> None:
    from transformers import Trainer, TrainingArguments

    from initmem.pipeline.transformers import TransformersTracker

    tokens = torch.randint(1, 20, (32, 5), generator=torch.Generator().manual_seed(0))
    data = [{"input_ids": row, "labels": int(row[0] > 10)} for row in tokens]
    tracker = Tracker()
    arguments = TrainingArguments(
        str(tmp_path), num_train_epochs=2, per_device_train_batch_size=4, gradient_accumulation_steps=2,
        eval_strategy="epoch", learning_rate=0.01, lr_scheduler_type="linear", weight_decay=0.1, use_cpu=True,
        report_to="none", save_strategy="no", disable_tqdm=True, logging_strategy=logging,
        eval_on_start=eval_on_start,
    )  # fmt: skip
    trainer = Trainer(
        Init(1.0, 0).apply(bert()),
        arguments,
        train_dataset=data,
        eval_dataset=data,
        compute_metrics=lambda p: {"accuracy": float((p.predictions.argmax(1) == p.label_ids).mean())},
        callbacks=[TransformersTracker(tracker)],
    )
    trainer.train()
    rates = 0.01 * (1 - np.arange(8) / 8)  # linear to zero over 2 epochs of 4 updates
    assert tracker.updates == 8
    sums = np.concatenate([[0.0] * eval_on_start, np.cumsum(rates**2)[[3, 7]] / 8])
    np.testing.assert_allclose(tracker.history["clock_sgd"], sums, rtol=1e-9)
    assert tracker.history["clock_l2"][-1] == pytest.approx(
        0.05 * rates.sum(), rel=0.05
    )  # kernels alone decay
    assert {"val_loss", "val_accuracy", "norm"} <= tracker.history.keys()
    assert not {"val_runtime", "val_samples_per_second"} & tracker.history.keys()
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    assert len(losses) == 2 * (logging == "epoch")
    recorded = tracker.history.get("train_loss", [])  # none before the first update: then none at all
    assert list(recorded) == ([] if eval_on_start else losses)
    trainer.evaluate(data, metric_key_prefix="test")
    assert tracker.finals["test_accuracy"] == tracker.history["val_accuracy"][-1]
    assert "val_loss" not in tracker.finals


def test_the_layers_of_transformers_are_known() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(vocab_size=30, n_positions=8, n_embd=16, n_layer=1, n_head=2))
    table = Init(1.0, 0).describe(model, draw="fan-in")
    rows = {row["parameter"]: row for row in table.rows()}
    assert rows["transformer.wte.weight"]["note"] == "tied to lm_head.weight"
    assert rows["transformer.wte.weight"]["fan_in"] == 16
    assert rows["transformer.h.0.mlp.c_proj.weight"]["fan_in"] == 64  # stored as (in, out)
    assert not table.names("other")
    assert set(table.names("norm")) == {name for name in rows if ".ln_" in name}
    assert Init(1.0, 0).describe(bert()).names("other") == []


@pytest.mark.parametrize("role", ["init", "order"])
def test_the_order_of_lightning_follows_the_order_seed_from_the_first_epoch(role: str, tmp_path) -> None:
    import lightning.pytorch as pl

    from initmem.pipeline.lightning import LightningTracker

    orders: list[list[int]] = []

    def train(init, tracker):
        class Module(pl.LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.fc = nn.Linear(1, 1)

            def training_step(self, batch, index):
                orders[-1] += batch[0].flatten().int().tolist()
                return self.fc(batch[0]).square().mean()

            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), lr=0.01)

        orders.append([])
        data = DataLoader(TensorDataset(torch.arange(32.0)[:, None]), batch_size=8, shuffle=True)
        callbacks = [LightningTracker(tracker)]
        trainer = pl.Trainer(callbacks=callbacks, default_root_dir=tmp_path, **QUIET | {"max_epochs": 1})
        trainer.fit(init.apply(Module()), data)
        return {"loss": 1.0}

    recipe = PipelineRecipe.parse({"pipeline": "p"})
    PipelineTrainer(train)([Run(recipe, 1.0, 0, ((role, seed),)) for seed in (0, 1)], lambda run, row: None)
    assert sorted(orders[0]) == list(range(32))
    assert (orders[0] != orders[1]) == (role == "order")


# -- Keras ----------------------------------------------------------------------------------------------


def keras_model() -> keras.Model:
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(2)])


def keras_fitted(optimizer, **attach) -> tuple[Tracker, keras.Model]:
    tracker = Tracker()
    model = Init(1.5, 2).apply(keras_model())
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    x, y, watch = X.numpy(), Y.numpy(), adapter.KerasTracker(tracker, BATCH, **attach)
    model.fit(x, y, batch_size=BATCH, epochs=EPOCHS, verbose=0, validation_data=(x, y), callbacks=[watch])
    return tracker, model


def test_keras_with_a_schedule() -> None:
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, decay_steps=1, decay_rate=0.9)
    tracker, model = keras_fitted(keras.optimizers.SGD(schedule, momentum=0.5))
    rates = 0.1 * 0.9 ** np.arange(EPOCHS * UPDATES)
    ends = np.arange(1, EPOCHS + 1) * UPDATES - 1
    history = tracker.history
    np.testing.assert_allclose(history["clock_sgd"], np.cumsum(rates**2)[ends] / BATCH, rtol=1e-6)
    np.testing.assert_allclose(history["clock_momentum"], 4 * history["clock_sgd"], rtol=1e-6)
    assert {"train_loss", "train_accuracy", "val_loss", "val_accuracy"} <= history.keys()
    kernels = [layer.kernel.numpy() for layer in model.layers]
    norm = math.sqrt(sum(float((kernel.astype(float) ** 2).sum()) for kernel in kernels))
    assert history["norm"][-1] == pytest.approx(norm, rel=1e-5)


def test_keras_when_a_hook_comes_after_several_updates() -> None:
    """Other backends than torch can do so."""
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, decay_steps=1, decay_rate=0.9)
    tracker, model = Tracker(), keras_model()
    model.compile(keras.optimizers.SGD(schedule), "mse")
    callback = adapter.KerasTracker(tracker, BATCH)
    callback.set_model(model)
    callback.on_train_begin()
    for now in (3, 5):
        callback.on_train_batch_begin(0)
        model.optimizer._iterations.assign(now)
        callback.on_train_batch_end(0)
    assert tracker.updates == 5
    assert tracker.clocks()["adaptive"] == pytest.approx(sum(0.1 * 0.9**k for k in range(5)))


def test_keras_with_accumulation_decay_and_a_plateau() -> None:
    optimizer = keras.optimizers.AdamW(0.01, weight_decay=0.2, gradient_accumulation_steps=5)
    tracker, _ = keras_fitted(optimizer, l2=0.03)
    assert tracker.updates == EPOCHS
    assert tracker.history["clock_sgd"][-1] == pytest.approx(EPOCHS * 0.01**2 / (5 * BATCH))
    assert tracker.history["clock_l2"][-1] == pytest.approx(EPOCHS * 0.01 * (0.03 + 0.1))


def test_keras_models_are_drawn_like_torch_ones() -> None:
    model = Init(1.5, 2).apply(keras_model(), draw="fan-in")
    again = Init(1.5, 2)
    for layer, (rows, columns) in zip(model.layers, [(6, 8), (8, 2)], strict=True):
        np.testing.assert_allclose(layer.kernel.numpy(), again.kernel(rows, columns, fan_in=rows), rtol=1e-6)
        np.testing.assert_allclose(layer.bias.numpy(), again.bias(columns), rtol=1e-6)


def test_keras_models_of_one_process_are_one_kind() -> None:
    def record(seed: int) -> RunRecord:
        init = Init(2.0, seed)
        init.apply(keras_model())  # its layers are counted up from one model to the next
        return crashed(init.run, "", {"init": init.applied()})

    records = [record(0), record(1)]
    names = [row.name for each in records for model in applied(each) for row in model.rows]
    assert len(set(names)) == len(names)
    assert len(applied_lines(records)) == len(applied_tables(records)) == 1


def test_at_scale_1_a_keras_model_is_the_unwrapped_one_to_the_bit() -> None:
    def loss(init: Init | None) -> float:
        keras.utils.set_random_seed(3)
        model = keras_model()
        model = model if init is None else init.apply(model)
        model.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return float(model.evaluate(X.numpy(), Y.numpy(), batch_size=BATCH, verbose=0))

    assert loss(Init(1.0, 3)) == loss(None) != loss(Init(2.0, 3))


@pytest.mark.parametrize("draw", ["own", "fan-in"])
def test_a_perturbed_keras_model_differs_in_its_largest_weights(draw: str) -> None:
    kernels = []
    for perturbation in (1.0, 1.5):
        keras.utils.set_random_seed(3)
        run = Run(PipelineRecipe.parse({"pipeline": "p"}), 2.0, 0, (), perturbation)
        kernels.append(
            [layer.kernel.numpy() for layer in Init.of(run).apply(keras_model(), draw=draw).layers]
        )
    for plain, perturbed in zip(*kernels, strict=True):
        expected = np.where(np.abs(plain) == np.abs(plain).max(), 1.5 * plain, plain)
        np.testing.assert_allclose(perturbed, expected, rtol=1e-6)


def test_the_layers_of_keras_are_known() -> None:
    layers = keras.layers
    inputs = keras.Input((8, 8, 4))
    x = layers.Conv2D(6, 3, groups=2, name="conv")(inputs)
    x = layers.BatchNormalization(name="norm")(x)
    x = layers.DepthwiseConv2D(3, name="depthwise")(x)
    x = layers.SeparableConv2D(5, 3, name="separable")(x)
    x = layers.Conv2DTranspose(3, 4, strides=2, name="transposed")(x)
    x = layers.Reshape((-1, 3))(x)
    x = layers.MultiHeadAttention(2, 5, name="attention")(x, x)
    x = layers.LSTM(7, name="lstm")(x)
    model = keras.Model(inputs, layers.Dense(2, name="head")(x))
    rows = Init(0.5, 0).describe(model, draw="fan-in").rows()
    fan_ins = {row["parameter"]: row["fan_in"] for row in rows if row["role"] == "kernel"}
    assert fan_ins == {
        "conv.kernel": 2 * 9,
        "depthwise.kernel": 9,
        "separable.depthwise_kernel": 9,
        "separable.pointwise_kernel": 6,
        "transposed.kernel": 5 * 4,
        "attention.query.kernel": 3,
        "attention.key.kernel": 3,
        "attention.value.kernel": 3,
        "attention.attention_output.kernel": 10,
        "lstm.lstm_cell.kernel": 3,
        "lstm.lstm_cell.recurrent_kernel": 7,
        "head.kernel": 7,
    }
    assert {row["parameter"] for row in rows if row["role"] == "norm"} == {"norm.gamma", "norm.beta"}
    assert {row["role"] for row in rows} == {"kernel", "bias", "norm"}
    before = model.get_layer("conv").kernel.numpy()
    bias = model.get_layer("conv").bias.numpy()
    Init(2.0, 0, scaled="conv").apply(model)
    np.testing.assert_allclose(model.get_layer("conv").kernel.numpy(), 2 * before)
    np.testing.assert_allclose(model.get_layer("conv").bias.numpy(), bias)


def test_norm_layers_of_keras_are_what_they_are() -> None:
    class NormalizedDense(keras.layers.Dense):
        """A dense layer, whatever its name."""

    class OwnNorm(keras.layers.Layer):
        def build(self, shape) -> None:
            self.gain = self.add_weight(shape=(shape[-1],), name="gain", initializer="ones")

        def call(self, x):
            return x * self.gain

    layers = [
        NormalizedDense(3, name="dense"),
        OwnNorm(name="own"),
        keras.layers.LayerNormalization(name="norm"),
    ]
    model = keras.Sequential([keras.Input((6,)), *layers])
    assert {row["parameter"]: row["role"] for row in Init().describe(model).rows()} == {
        "dense.kernel": "kernel",
        "dense.bias": "bias",
        "own.gain": "norm",
        "norm.gamma": "norm",
        "norm.beta": "norm",
    }


def test_odd_keras_models_are_explained() -> None:
    with pytest.raises(ModelError, match="has no variables yet"):
        Init().apply(keras.Sequential([keras.layers.Dense(3)]))

    class Own(keras.layers.Layer):
        def build(self, shape) -> None:
            self.mixing = self.add_weight(shape=(shape[-1], 4), name="mixing")

        def call(self, x):
            return x @ self.mixing

    model = keras.Sequential([keras.Input((6,)), Own(name="own"), keras.layers.Dense(2, name="dense")])
    with pytest.warns(UntouchedWarning, match=r"own\.mixing \(6, 4\)"):
        Init().apply(model)
    with pytest.raises(ModelError, match=r"own\.mixing: its fan-in is not known"):
        Init().describe(model, draw="fan-in", kernels="own.mixing")
    rows = Init().describe(model, draw="fan-in", kernels={"own.mixing": 6}).rows()
    assert [(row["parameter"], row["fan_in"]) for row in rows if row["role"] == "kernel"] == [
        ("own.mixing", 6)
    ]

"""Cases about whole runs: recomputation, rehearsal, faults in every phase, going on after a crash.

They run in a process of their own for each Keras backend (started by test_guard_keras_runs.py).
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import guard_keras_cases as basic
import keras
import numpy as np
import pytest
from guard_keras_cases import FOLDER, X, Y, assert_same, assert_same_history, batches, make_faulty, with_dropout

import penstock as ps
from penstock.core.errors import InvalidInput, OutOfMemory
from penstock.core.events import events
from penstock.guard.keras import save as keras_save
from penstock.guard.keras import step as keras_step
from penstock.guard.optimizer_memory import lean_optimizer, state_nbytes


class Block(keras.layers.Layer):
    """Weights, batch statistics, dropout and a loss of its own in one layer."""

    def __init__(self, width, **options):
        super().__init__(**options)
        self.dense = keras.layers.Dense(width, activation="tanh", activity_regularizer="l2")
        self.norm, self.drop = keras.layers.BatchNormalization(), keras.layers.Dropout(0.3)

    def build(self, shape):
        self.dense.build(shape)
        self.norm.build((shape[0], self.dense.units))

    def call(self, x, training=False):
        return self.drop(self.norm(self.dense(x), training=training), training=training)


def blocks():
    keras.utils.set_random_seed(1)
    layers = [keras.Input((6,)), Block(12, name="one"), Block(8, name="two"), keras.layers.Dense(4, name="out")]
    model = keras.Sequential(layers)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(0.01), loss, metrics=["accuracy"])
    return model


def same_bits(left, right):
    return all(np.array_equal(a, b) for a, b in zip(left.get_weights(), right.get_weights(), strict=True))


def case_recomputed_layers_give_the_same_bits():
    kept = blocks()
    expected = ps.fit(kept, batches(X, Y), epochs=2).history
    for remat in (True, ["two"]):
        model = blocks()
        found = ps.fit(model, batches(X, Y), epochs=2, remat=remat).history
        assert same_bits(kept, model) and expected == found, (expected, found)
        assert not any("call" in layer.__dict__ for layer in model.layers)
    with pytest.raises(InvalidInput, match="no layer 'three'.*one, two, out"):
        ps.fit(blocks(), batches(X, Y), remat=["three"])


def case_the_ladder_recomputes_the_biggest_first():
    started, seen = [], []

    def faults(phase):
        if started:
            on = [layer.name for layer in model.layers if "call" in layer.__dict__]
            seen.append(on)
            if len(on) < 2:
                raise MemoryError("too large")

    model = make_faulty(faults)
    ps.fit(model, batches(X, Y), epochs=1)
    started.append(1)
    ps.fit(model, batches(X, Y), epochs=1, remat="auto")
    first = next(on for on in seen if on)
    assert first == [model.layers[0].name]  # 8 units against 4
    assert sum(event.kind == "guard.remat" for event in events.recent) >= 2
    with pytest.raises(OutOfMemory, match="rematerialisation"):
        model = make_faulty(faults)
        started.clear()
        ps.fit(model, batches(X, Y), epochs=1)
        started.append(1)
        faults_always.append(1)
        ps.fit(make_faulty(always), batches(X, Y), epochs=1, remat="auto")


faults_always: list[int] = []


def always(phase):
    if faults_always:
        raise MemoryError("never any room")


def padded():
    rng = np.random.default_rng(2)
    lengths = rng.integers(3, 20, 24)

    def rows():
        for n in lengths:
            yield rng.integers(1, 9, n).astype(np.int32), np.int64(n % 3)

    rng = np.random.default_rng(2)
    samples = list(rows())
    return ps.from_generator(lambda: iter(samples)).batch(4, pad=True), max(lengths)


def case_rehearsal_is_the_default_where_lengths_vary():
    def make():
        keras.utils.set_random_seed(1)
        layers = [keras.Input((None,), dtype="int32"), keras.layers.Embedding(9, 4)]
        layers += [keras.layers.GlobalAveragePooling1D(), keras.layers.Dropout(0.2), keras.layers.Dense(3)]
        model = keras.Sequential(layers)
        model.compile(keras.optimizers.Adam(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model

    ds, longest = padded()
    plain = make()
    ps.fit(plain, ds, epochs=2, rehearse=False)
    assert not any(event.kind == "guard.rehearsed" for event in events.recent)
    rehearsed = make()
    ps.fit(rehearsed, padded()[0], epochs=2)
    told = [event.values for event in events.recent if event.kind == "guard.rehearsed"]
    assert told and told[-1]["shapes"]["0"] == [4, longest], (told, longest)
    assert same_bits(plain, rehearsed)


def case_faults_in_every_phase_lose_and_double_nothing():
    """Forward, backward, apply, evaluate and save: 100+ at random, result as if nothing had been."""

    class Calm(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            faults.this_step = 0

    def failing_part(step, part, original=keras_step.EvalStep.part):
        faults("evaluate")
        original(step, part)

    def calming(step, original=keras_step.EvalStep.apply):
        original(step)
        faults.this_step = 0

    def failing_apply(step, original=keras_step.TrainStep.apply):
        faults("apply")
        original(step)

    def failing_arrays(program, original=keras_save.arrays):
        # A save gets few tries: the one after a failed one is let through.
        faults.this_step, tried["save"] = 2 * tried["save"], True
        for named in original(program):
            faults("save")
            yield named
        faults.this_step, tried["save"] = 0, False

    patches = [
        (keras_step.EvalStep, "part", failing_part),
        (keras_step.EvalStep, "apply", calming),
        (keras_step.TrainStep, "apply", failing_apply),
        (keras_save, "arrays", failing_arrays),
    ]
    tried = {"save": False}
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in patches]
    results, folder = [], FOLDER / "faults"
    try:
        for rate in (0.0, 0.12):
            faults = basic.Faults(0.0)
            model = make_faulty(faults)
            ps.fit(model, batches(X, Y), epochs=1)  # so that symbolic passes are over before faults begin
            for owner, name, function in patches:
                setattr(owner, name, function)
            faults.rate = rate
            history = ps.fit(
                model,
                batches(X, Y),
                epochs=12,
                validation_data=batches(X, Y),
                callbacks=[Calm()],
                checkpoint=folder / str(rate),
                checkpoint_steps=4,
            ).history
            for owner, name, function in before:
                setattr(owner, name, function)
            results.append((model, history))
    finally:
        for owner, name, function in before:
            setattr(owner, name, function)
    counts = faults.raised
    assert sum(counts.values()) >= 100 and len(counts) == 5 and min(counts.values()) >= 3, counts
    print(counts)
    assert_same(results[0][0], results[1][0], rtol=2e-5)
    assert_same_history(results[0][1], results[1][1])
    assert int(keras.ops.convert_to_numpy(results[1][0].optimizer.iterations)) == 13 * 5
    assert len(list((folder / "0.12").glob("step-*.ckpt"))) == 2


def tearing_in_its_graph(faults):
    """An optimizer that changes all variables twice; between, its graph may fail."""
    import tensorflow as tf

    def check(value):
        if faults["left"]:
            faults["left"] -= 1
            raise MemoryError("injected in apply")
        return value

    class Tearing(keras.optimizers.SGD):
        def apply(self, grads, trainable_variables=None):
            super().apply(grads, trainable_variables)
            passed = [tf.ensure_shape(tf.numpy_function(check, [g], g.dtype), g.shape) for g in grads]
            super().apply(passed, trainable_variables)

    return Tearing(0.1, momentum=0.9)


def values_of(model):
    variables = (*model.variables, *model.metrics_variables, *model.optimizer.variables)
    return [np.array(keras.ops.convert_to_numpy(variable)) for variable in variables]


def case_a_whole_step_that_tears_in_its_graph_is_put_back():
    """On TensorFlow a batch in one part is one graph; here it fails after some variables were written."""
    if basic.BACKEND != "tensorflow":
        return
    results, faults, drop = [], {"left": 0}, keras_step.TrainStep.drop
    for bad in (False, True):
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dropout(0.3), keras.layers.Dense(4)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(tearing_in_its_graph(faults), loss, metrics=["accuracy"])
        before, put_back = [], []

        class Tear(keras.callbacks.Callback):
            def on_train_batch_begin(self, batch, logs=None, bad=bad, before=before):
                faults["left"] = int(bad and batch % 2 == 1)
                before[:] = values_of(self.model)

        def dropped(step, model=model, before=before, put_back=put_back):
            drop(step)
            put_back.append(all(map(np.array_equal, before, values_of(model))))

        keras_step.TrainStep.drop = dropped
        try:  # one row each: smaller parts of larger batches would draw other dropout
            history = ps.fit(model, batches(X, Y, size=1), callbacks=[Tear()]).history
        finally:
            keras_step.TrainStep.drop = drop
        assert put_back == [True] * (len(X) // 2 if bad else 0), put_back
        results.append((model, history))
    assert_same(results[0][0], results[1][0], rtol=0)
    assert results[0][1] == results[1][1]


def case_mistakes_are_said_in_words():
    ds = batches(X, Y)
    for data, says in (
        ((X, Y), "arrays, not a stream of batches"),
        (X, "arrays, not a stream of batches"),
        ([(X,)], "no labels"),
        ([(X, Y[:5])], "5 rows where others have"),
        ([(X.tolist(), Y.tolist())], "is a float|is a list"),
        ([(X[0], Y[0])], "batch"),
    ):
        with pytest.raises(InvalidInput, match=says):
            ps.fit(basic.dense("sgd"), data)
    (FOLDER / "taken").write_text("")
    for options, says in (
        ({"validation_data": (X, Y)}, "validation_data is arrays"),
        ({"epochs": "3"}, "epochs"),
        ({"epochs": 1.5}, "epochs"),
        ({"class_weight": "balanced"}, "class_weight"),
        ({"checkpoint": FOLDER / "taken"}, "is a file"),
    ):
        with pytest.raises(InvalidInput, match=says):
            ps.fit(basic.dense("sgd"), ds, **options)
    with pytest.raises(InvalidInput, match="arrays, not"):
        ps.evaluate(basic.dense("sgd"), (X, Y))
    with pytest.raises(InvalidInput, match="arrays, not"):
        ps.predict(basic.dense("sgd"), X)
    one = keras.callbacks.EarlyStopping("loss")  # Keras takes a single callback as well
    assert len(ps.fit(basic.dense("sgd"), ds, callbacks=one).history["loss"]) == 1


def case_a_model_that_is_not_compiled_predicts():
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4)])
    found = np.concatenate(list(ps.predict(model, [X[:8], X[8:]], micro_batch=3)))
    assert np.allclose(found, X @ model.get_weights()[0], atol=1e-5)


def shuffled():
    return ps.from_tensor_slices((X, Y)).shuffle(seed=3).batch(8)


def case_a_crash_in_mid_epoch_is_gone_on_from_bit_for_bit():
    """A real dataset's position, a torn checkpoint and a foreign one in the folder."""

    class Crash(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if self.model.optimizer.iterations == 13:
                raise ConnectionError("the machine went away")

    whole = with_dropout()
    expected = ps.fit(whole, shuffled(), epochs=4).history
    folder = FOLDER / "crash"
    with pytest.raises(ConnectionError):
        ps.fit(with_dropout(), shuffled(), epochs=4, checkpoint=folder, checkpoint_steps=3, callbacks=[Crash()])
    found = sorted(path.name for path in folder.glob("step-*.ckpt"))
    assert found == ["step-0000000009.ckpt", "step-0000000012.ckpt"]  # 12 is the second step of the third epoch
    newest = folder / found[-1]
    newest.write_bytes(newest.read_bytes()[:-100])
    (folder / "step-0000000099.ckpt").write_bytes(b"not ours " * 100)
    again = with_dropout()
    history = ps.fit(again, shuffled(), epochs=4, checkpoint=folder, resume=True).history
    told = [event.who for event in events.recent if event.kind == "guard.checkpoint_bad"]
    assert {Path(who).name for who in told[-2:]} == {"step-0000000012.ckpt", "step-0000000099.ckpt"}
    assert same_bits(whole, again)
    assert expected == history, (expected, history)


def case_progress_is_told():
    seen = []
    remove = events.listen(lambda event: seen.append(event) if event.kind.startswith("train.") else None)
    ps.fit(with_dropout(), shuffled(), epochs=2, validation_data=batches(X, Y))
    remove()
    kinds = [event.kind for event in seen]
    assert kinds[0] == "train.begin" and kinds[-1] == "train.end" and kinds.count("train.epoch") == 2
    progress = next(event.values for event in seen if event.kind == "train.progress")
    assert progress["step"] == 1 and progress["steps_per_epoch"] == 5 and progress["samples"] == 8
    assert 0 <= progress["waited_share"] <= 1 and "loss" in progress["logs"]
    epoch = [event.values for event in seen if event.kind == "train.epoch"][-1]
    assert epoch["samples"] == 39 and "val_loss" in epoch["logs"]
    assert seen[-1].values == {"total_steps": 10, "stopped": False}


def case_factored_state_is_small_and_steps_as_keras_own():
    def make(optimizer):
        keras.utils.set_random_seed(1)
        layers = [keras.Input((6,)), keras.layers.Dense(64, activation="tanh"), keras.layers.Dense(4)]
        model = keras.Sequential(layers)
        model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        ps.fit(model, batches(X, Y), epochs=2, micro_batch=3)
        return model

    own = make(keras.optimizers.Adafactor(0.01))
    lean = make(lean_optimizer(own, "factored", learning_rate=0.01))
    assert_same(own, lean)
    params = own.count_params()
    assert state_nbytes(own.optimizer) / params > 4
    assert state_nbytes(lean.optimizer) / params < 1.5
    with pytest.raises(InvalidInput, match="'8bit'"):
        lean_optimizer(own, "8bit")


if __name__ == "__main__":
    sys.exit(basic.main(dict(globals())))

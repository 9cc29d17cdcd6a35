"""Images of twice the size: a loop of its own around a tf.function, with a checkpoint."""

import tempfile

import keras
import numpy
import tensorflow as tf
from keras import layers

SIZE, FACTOR, BATCH = 64, 2, 8


def network():
    inputs = keras.Input((SIZE, SIZE, 1))
    found = layers.Conv2D(64, 5, padding="same", activation="relu")(inputs)
    found = layers.Conv2D(64, 3, padding="same", activation="relu")(found)
    found = layers.Conv2D(32, 3, padding="same", activation="relu")(found)
    found = layers.Conv2D(FACTOR**2, 3, padding="same")(found)
    outputs = layers.Lambda(lambda each: tf.nn.depth_to_space(each, FACTOR))(found)
    return keras.Model(inputs, outputs)


def main():
    random = numpy.random.default_rng(1)
    large = random.random((64, SIZE * FACTOR, SIZE * FACTOR, 1), "float32")
    small = large[:, ::FACTOR, ::FACTOR]
    data = tf.data.Dataset.from_tensor_slices((small, large)).shuffle(64).batch(BATCH)
    model, optimizer = network(), keras.optimizers.Adam(1e-3)
    optimizer.build(model.trainable_variables)

    @tf.function
    def step(inputs, wanted):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(inputs, training=True) - wanted))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    with tempfile.TemporaryDirectory() as folder:
        saved = tf.train.CheckpointManager(tf.train.Checkpoint(model=model), folder, 2)
        for epoch in range(2):
            losses = [float(step(inputs, wanted)) for inputs, wanted in data]
            saved.save()
            print(f"epoch {epoch}: {sum(losses) / len(losses):.4f}")


if __name__ == "__main__":
    main()

"""A variational autoencoder of images, with a train_step of its own."""

import keras
import numpy
import tensorflow as tf
from keras import layers, ops

LATENT = 2


class Sampling(layers.Layer):
    def call(self, inputs):
        mean, log_variance = inputs
        noise = keras.random.normal(ops.shape(mean))
        return mean + ops.exp(0.5 * log_variance) * noise


def encoder():
    inputs = keras.Input((28, 28, 1))
    found = layers.Conv2D(32, 3, strides=2, padding="same", activation="relu")(inputs)
    found = layers.Conv2D(64, 3, strides=2, padding="same", activation="relu")(found)
    found = layers.Dense(16, activation="relu")(layers.Flatten()(found))
    mean, log_variance = layers.Dense(LATENT)(found), layers.Dense(LATENT)(found)
    return keras.Model(inputs, [mean, log_variance, Sampling()([mean, log_variance])])


def decoder():
    inputs = keras.Input((LATENT,))
    found = layers.Dense(7 * 7 * 64, activation="relu")(inputs)
    found = layers.Reshape((7, 7, 64))(found)
    for width in (64, 32):
        grow = layers.Conv2DTranspose(width, 3, strides=2, padding="same", activation="relu")
        found = grow(found)
    outputs = layers.Conv2DTranspose(1, 3, padding="same", activation="sigmoid")(found)
    return keras.Model(inputs, outputs)


class Autoencoder(keras.Model):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = encoder(), decoder()
        self.total = keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        return [self.total]

    def train_step(self, images):
        with tf.GradientTape() as tape:
            mean, log_variance, sample = self.encoder(images)
            error = keras.losses.binary_crossentropy(images, self.decoder(sample))
            error = ops.mean(ops.sum(error, axis=(1, 2)))
            distance = -0.5 * (1 + log_variance - ops.square(mean) - ops.exp(log_variance))
            loss = error + ops.mean(ops.sum(distance, axis=1))
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        self.total.update_state(loss)
        return {"loss": self.total.result()}


def main():
    images = numpy.random.default_rng(1).random((1_024, 28, 28, 1), "float32")
    model = Autoencoder()
    model.compile(keras.optimizers.Adam())
    model.fit(images, epochs=2, batch_size=128, verbose=2)


if __name__ == "__main__":
    main()

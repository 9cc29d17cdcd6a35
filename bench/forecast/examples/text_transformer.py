"""Is a review good? A block of attention written as layers, compiled and fitted by Keras."""

import keras
import numpy
from keras import layers, ops

WORDS, LENGTH, WIDTH, HEADS, INNER = 20_000, 200, 32, 2, 32


class Block(layers.Layer):
    def __init__(self):
        super().__init__()
        self.attention = layers.MultiHeadAttention(HEADS, WIDTH)
        self.inner = keras.Sequential([layers.Dense(INNER, activation="relu"), layers.Dense(WIDTH)])
        self.norms = [layers.LayerNormalization(epsilon=1e-6) for _ in range(2)]
        self.drops = [layers.Dropout(0.1) for _ in range(2)]

    def call(self, inputs, training=None):
        found = self.drops[0](self.attention(inputs, inputs), training=training)
        found = self.norms[0](inputs + found)
        more = self.drops[1](self.inner(found), training=training)
        return self.norms[1](found + more)


class Embedding(layers.Layer):
    def __init__(self):
        super().__init__()
        self.words = layers.Embedding(WORDS, WIDTH)
        self.places = layers.Embedding(LENGTH, WIDTH)

    def call(self, inputs):
        return self.words(inputs) + self.places(ops.arange(LENGTH))


def main():
    random = numpy.random.default_rng(1)
    words = random.integers(WORDS, size=(320, LENGTH)).astype("int32")
    wanted = random.integers(2, size=320).astype("int32")
    inputs = layers.Input((LENGTH,), dtype="int32")
    found = layers.GlobalAveragePooling1D()(Block()(Embedding()(inputs)))
    found = layers.Dense(20, activation="relu")(layers.Dropout(0.1)(found))
    outputs = layers.Dense(2, activation="softmax")(layers.Dropout(0.1)(found))
    model = keras.Model(inputs, outputs)
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    held = words[256:], wanted[256:]
    model.fit(words[:256], wanted[:256], batch_size=32, epochs=2, validation_data=held, verbose=2)


if __name__ == "__main__":
    main()

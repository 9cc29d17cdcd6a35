"""An elastic training of handwritten digits with TensorFlow.

python elastic_tensorflow.py [--epochs 20] [--checkpoint FILE]

The data are scikit-learn's digits, or made ones where scikit-learn is not installed. Alone it
trains on one device. The workers of an elastic task share each global batch, and their number may
change after any step.
"""

import argparse

import keras
import numpy as np
import tensorflow as tf
from nodemgr_client import elastic

GLOBAL_BATCH = 128
MAX_PER_GPU = 32
TESTED = 297


def digits():
    """1797 images of 8 x 8 values between 0 and 1, and their classes."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        return made_digits()
    found = load_digits()
    return (found.images[..., None] / 16).astype(np.float32), found.target


def made_digits():
    """Ten patterns, each shifted and blurred by noise."""
    numbers = np.random.default_rng(0)
    patterns = numbers.random((10, 8, 8, 1)) > 0.6
    classes = numbers.integers(0, 10, 1797)
    shifts = numbers.integers(-1, 2, 1797)
    images = [np.roll(patterns[c], s, 1) for c, s in zip(classes, shifts, strict=True)]
    images = np.stack(images) + 0.3 * numbers.standard_normal((1797, 8, 8, 1))
    return images.astype(np.float32), classes


def network():
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(10),
        ]
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--checkpoint")
    chosen = parser.parse_args()
    images, classes = digits()
    model = network()
    optimizer = keras.optimizers.AdamW(2e-3)
    cost = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    with elastic(
        model,
        optimizer,
        (images[TESTED:], classes[TESTED:]),
        global_batch=GLOBAL_BATCH,
        max_per_gpu=MAX_PER_GPU,
        seed=1,
        epochs=chosen.epochs,
        virtual_workers=4,
        checkpoint=chosen.checkpoint,
    ) as run:
        for epoch in run.epochs():
            for inputs, targets in run:
                with tf.GradientTape() as tape:
                    loss = cost(targets, model(inputs, training=True))
                run.backward(loss, tape)
            if run.is_main:
                right = np.argmax(model(images[:TESTED]), 1) == classes[:TESTED]
                print(
                    f"epoch {epoch}, {run.size} workers: "
                    f"loss {run.loss:.4f}, accuracy {right.mean():.3f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()

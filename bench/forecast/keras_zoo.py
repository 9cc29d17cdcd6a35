"""Models of Keras whose memory is measured and forecast.

KNOWN were looked at while the forecast was made. HELD_OUT were not: other architectures, batch
sizes, optimizers and precisions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Training(NamedTuple):
    """A model with the form of its inputs, and how it is trained."""

    make: Callable[[], Any]
    batch: int
    optimizer: str
    shape: tuple[int, ...] = (32, 32, 3)
    precision: str = "float32"


def convolutions(depth: int, width: int, norm: bool) -> Any:
    import keras

    layers = keras.layers
    inputs = x = keras.Input((32, 32, 3))
    for stage in range(3):
        for _ in range(depth):
            x = layers.Conv2D(width << stage, 3, padding="same", use_bias=not norm)(x)
            x = layers.BatchNormalization()(x) if norm else x
            x = layers.ReLU()(x)
        x = layers.MaxPooling2D()(x)
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))


def residual(depth: int, width: int) -> Any:
    import keras

    layers = keras.layers
    inputs = keras.Input((32, 32, 3))
    x = layers.Conv2D(width, 3, padding="same")(inputs)
    for _ in range(depth):
        y = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(width, 3, padding="same")(x)))
        x = layers.Add()([x, layers.Conv2D(width, 3, padding="same")(y)])
    return keras.Model(inputs, layers.Dense(10)(layers.Flatten()(layers.AveragePooling2D(4)(x))))


def dense(depth: int, width: int) -> Any:
    import keras

    layers = keras.layers
    body = [layers.Dense(width, activation="relu") for _ in range(depth)]
    return keras.Sequential([keras.Input((32, 32, 3)), layers.Flatten(), *body, layers.Dense(10)])


def attention(depth: int, width: int) -> Any:
    import keras

    layers = keras.layers
    inputs = keras.Input((32, 32, 3))
    x = layers.Reshape((64, -1))(layers.Conv2D(width, 4, 4)(inputs))
    for _ in range(depth):
        y = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(4, width // 4)(y, y)
        y = layers.Dense(4 * width, activation="gelu")(layers.LayerNormalization()(x))
        x = x + layers.Dense(width)(y)
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling1D()(x)))


def separable(depth: int, width: int) -> Any:
    import keras

    layers = keras.layers
    inputs = x = keras.Input((32, 32, 3))
    for stage in range(depth):
        x = layers.SeparableConv2D(width << stage, 3, padding="same")(x)
        x = layers.ReLU(6.0)(layers.BatchNormalization()(x))
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))


MODELS: dict[str, Callable[[], Any]] = {
    "vgg 1x16": lambda: convolutions(1, 16, False),
    "vgg 2x16": lambda: convolutions(2, 16, False),
    "vgg 2x32": lambda: convolutions(2, 32, False),
    "vgg with norm 1x16": lambda: convolutions(1, 16, True),
    "vgg with norm 2x32": lambda: convolutions(2, 32, True),
    "resnet 2x16": lambda: residual(2, 16),
    "resnet 4x16": lambda: residual(4, 16),
    "resnet 3x32": lambda: residual(3, 32),
    "mlp 2x512": lambda: dense(2, 512),
    "mlp 4x1024": lambda: dense(4, 1_024),
    "mlp 8x256": lambda: dense(8, 256),
    "vit 2x64": lambda: attention(2, 64),
    "vit 4x128": lambda: attention(4, 128),
    "separable 2x32": lambda: separable(2, 32),
    "separable 3x16": lambda: separable(3, 16),
}
VARIANTS = ((128, "adam"), (32, "sgd"))
KNOWN: dict[str, Training] = {
    f"{name}, {batch}, {optimizer}": Training(make, batch, optimizer)
    for name, make in MODELS.items()
    for batch, optimizer in VARIANTS
}


def dense_blocks(depth: int, growth: int) -> Any:
    import keras

    layers = keras.layers
    inputs = keras.Input((32, 32, 3))
    x = layers.Conv2D(2 * growth, 3, padding="same")(inputs)
    for block in range(2):
        for _ in range(depth):
            y = layers.ReLU()(layers.BatchNormalization()(x))
            x = layers.Concatenate()([x, layers.Conv2D(growth, 3, padding="same")(y)])
        if not block:
            x = layers.AveragePooling2D(2)(layers.Conv2D(x.shape[-1] // 2, 1)(x))
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))


def inception(depth: int, width: int) -> Any:
    import keras

    layers = keras.layers
    inputs = x = keras.Input((32, 32, 3))
    for _ in range(depth):
        paths = [layers.Conv2D(width, size, padding="same", activation="relu")(x)
                 for size in (1, 3, 5)]  # fmt: skip
        x = layers.Concatenate()([*paths, layers.MaxPooling2D(3, 1, padding="same")(x)])
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalMaxPooling2D()(x)))


def unet(width: int) -> Any:
    import keras

    layers = keras.layers
    inputs = x = keras.Input((64, 64, 3))
    skips = []
    for factor in (1, 2, 4):
        x = layers.Conv2D(factor * width, 3, padding="same", activation="relu")(x)
        skips.append(x)
        x = layers.Conv2D(factor * width, 3, 2, padding="same", activation="relu")(x)
    for factor, skip in zip((4, 2, 1), reversed(skips), strict=True):
        x = layers.Concatenate()([layers.Conv2DTranspose(factor * width, 2, 2)(x), skip])
        x = layers.Conv2D(factor * width, 3, padding="same", activation="relu")(x)
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))


def sound(depth: int, width: int) -> Any:
    import keras

    layers = keras.layers
    inputs = x = keras.Input((1_024, 8))
    for _ in range(depth):
        x = layers.Conv1D(width, 5, padding="same", activation="gelu")(x)
        x = layers.MaxPooling1D()(layers.LayerNormalization()(x))
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling1D()(x)))


def video(width: int) -> Any:
    import keras

    layers = keras.layers
    inputs = x = keras.Input((8, 32, 32, 1))
    for factor in (1, 2):
        x = layers.Conv3D(factor * width, 3, padding="same", activation="relu")(x)
        x = layers.MaxPooling3D()(x)
    return keras.Model(inputs, layers.Dense(10)(layers.Flatten()(x)))


def language(depth: int, width: int) -> Any:
    import keras

    layers = keras.layers
    inputs = keras.Input((128,))
    x = layers.Embedding(2_000, width)(inputs)
    for _ in range(depth):
        y = layers.LayerNormalization()(x)
        y = layers.MultiHeadAttention(4, width // 4)(y, y, use_causal_mask=True)
        x = x + layers.Dropout(0.1)(y)
        y = layers.Dense(4 * width, activation="gelu")(layers.LayerNormalization()(x))
        x = x + layers.Dropout(0.1)(layers.Dense(width)(y))
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling1D()(x)))


def autoencoder(width: int) -> Any:
    import keras

    layers = keras.layers
    inputs = x = keras.Input((512,))
    for divisor in (1, 4, 32, 4, 1):
        x = layers.Dense(width // divisor, activation="selu")(x)
    return keras.Model(inputs, layers.Dense(10)(x))


def grouped(depth: int, width: int) -> Any:
    import keras

    layers = keras.layers
    inputs = x = keras.Input((32, 32, 3))
    for stage in range(depth):
        x = layers.Conv2D(width << stage, 3, padding="same")(x)
        x = layers.AveragePooling2D(2)(layers.Activation("silu")(layers.GroupNormalization(8)(x)))
    return keras.Model(inputs, layers.Dense(10)(layers.Flatten()(x)))


def mixer(depth: int, width: int) -> Any:
    import keras

    layers = keras.layers
    inputs = keras.Input((32, 32, 3))
    x = layers.Reshape((64, width))(layers.Conv2D(width, 4, 4)(inputs))
    for _ in range(depth):
        y = layers.Permute((2, 1))(layers.LayerNormalization()(x))
        y = layers.Dense(64)(layers.Dense(128, activation="gelu")(y))
        x = x + layers.Permute((2, 1))(y)
        y = layers.Dense(4 * width, activation="gelu")(layers.LayerNormalization()(x))
        x = x + layers.Dense(width)(y)
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling1D()(x)))


def application(name: str, size: int) -> Any:
    import keras

    make = getattr(keras.applications, name)
    shape = (size, size, 3)
    return make(weights=None, input_shape=shape, classes=10, classifier_activation=None)


IMAGE = (64, 64, 3)
HALF = "mixed_bfloat16"
HELD_OUT: dict[str, Training] = {
    "dense blocks 4x12": Training(lambda: dense_blocks(4, 12), 48, "sgd"),
    "dense blocks 6x8": Training(lambda: dense_blocks(6, 8), 64, "rmsprop"),
    "inception 2x16": Training(lambda: inception(2, 16), 64, "adamw"),
    "inception 3x24": Training(lambda: inception(3, 24), 16, "nadam"),
    "unet 16": Training(lambda: unet(16), 24, "adam", IMAGE),
    "unet 8, batch 64": Training(lambda: unet(8), 64, "sgd", IMAGE),
    "sound 3x32": Training(lambda: sound(3, 32), 32, "rmsprop", (1_024, 8)),
    "sound 4x64": Training(lambda: sound(4, 64), 48, "adamw", (1_024, 8)),
    "video 8": Training(lambda: video(8), 24, "adam", (8, 32, 32, 1)),
    "language 2x64": Training(lambda: language(2, 64), 48, "adamw", (128,)),
    "language 3x128": Training(lambda: language(3, 128), 24, "lion", (128,)),
    "autoencoder 2048": Training(lambda: autoencoder(2_048), 256, "adagrad", (512,)),
    "autoencoder 1024": Training(lambda: autoencoder(1_024), 1_024, "nadam", (512,)),
    "group norm 2x32": Training(lambda: grouped(2, 32), 96, "sgd"),
    "group norm 3x16": Training(lambda: grouped(3, 16), 48, "lion"),
    "mixer 2x64": Training(lambda: mixer(2, 64), 96, "adafactor"),
    "mixer 4x64": Training(lambda: mixer(4, 64), 48, "adam"),
    "MobileNetV2": Training(lambda: application("MobileNetV2", 64), 16, "rmsprop", IMAGE),
    "VGG16": Training(lambda: application("VGG16", 64), 16, "sgd", IMAGE),
    "ResNet50": Training(lambda: application("ResNet50", 64), 16, "adam", IMAGE),
    "EfficientNetB0": Training(lambda: application("EfficientNetB0", 64), 24, "sgd", IMAGE),
    "autoencoder, bfloat16": Training(lambda: autoencoder(2_048), 512, "adam", (512,), HALF),
    "mixer, bfloat16": Training(lambda: mixer(2, 64), 64, "sgd", precision=HALF),
    "language, bfloat16": Training(lambda: language(2, 64), 32, "adam", (128,), HALF),
    "unet, bfloat16": Training(lambda: unet(8), 16, "sgd", IMAGE, HALF),
}

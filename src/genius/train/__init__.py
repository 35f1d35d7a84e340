"""Training: three stages, one loop. `train(read_train_config("my.toml"))`."""

from genius.train.config import TrainConfig, read_train_config

__all__ = ["TrainConfig", "read_train_config"]

"""Data sets by name, decoded once per node and split by class."""

from trainables.data.dataset import Dataset, DatasetPart
from trainables.data.registry import DATASETS, DatasetInfo, ReaderOption, load_dataset

__all__ = ["DATASETS", "Dataset", "DatasetInfo", "DatasetPart", "ReaderOption", "load_dataset"]

"""Image sets, splits, sampling, decoding and crops."""

from winnow.data.augment import Crops, Transform
from winnow.data.collection import UNLABELLED, read_collection
from winnow.data.crops import crop_batch, random_flips, test_boxes, train_boxes
from winnow.data.fileset import FileSet
from winnow.data.folder import read_folder
from winnow.data.images import IMAGE_SUFFIXES, UnreadableImageError, read_image, upright_rgb
from winnow.data.imageset import ImageSet, Labels, Splits, Subset
from winnow.data.mnist import MnistSet, read_mnist
from winnow.data.ragged import Ragged
from winnow.data.resize import resize_short
from winnow.data.sampler import MPerClassSampler
from winnow.data.splits import load_images, split_by_class
from winnow.data.store import ImageStore, StoredImages
from winnow.data.table import read_table
from winnow.data.view import StoreView

__all__ = [
    "IMAGE_SUFFIXES",
    "UNLABELLED",
    "Crops",
    "FileSet",
    "ImageSet",
    "ImageStore",
    "Labels",
    "MPerClassSampler",
    "MnistSet",
    "Ragged",
    "Splits",
    "StoreView",
    "StoredImages",
    "Subset",
    "Transform",
    "UnreadableImageError",
    "crop_batch",
    "load_images",
    "random_flips",
    "read_collection",
    "read_folder",
    "read_image",
    "read_mnist",
    "read_table",
    "resize_short",
    "split_by_class",
    "test_boxes",
    "train_boxes",
    "upright_rgb",
]

"""Images of handwritten digits, for datasets of a cluster: scikit-learn's, as files by class."""

COUNT = 1797
# In the cluster's own environment, since the images are made there.
_MAKE = """
import pathlib, sys
from PIL import Image
from sklearn.datasets import load_digits
root = pathlib.Path("/shared/datasets") / sys.argv[1]
parts = sys.argv[2:] or ["."]
digits = load_digits()
for number, (image, label) in enumerate(zip(digits.images, digits.target)):
    # The last part has every fifth image.
    folder = root / (parts[-1] if number % 5 == 4 else parts[0]) / str(label)
    folder.mkdir(parents=True, exist_ok=True)
    Image.fromarray((image * 15).astype("uint8")).resize((48, 48)).save(folder / f"{number}.png")
"""


def images(cluster, dataset, *parts):
    cluster.node("head", f"gpubed-rank python - {' '.join((dataset, *parts))}", text=_MAKE)

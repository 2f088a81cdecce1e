"""The network of job digits; it needs torch alone, also where its model is served."""

from torch import Tensor, nn


class DigitsNet(nn.Module):
    """Two convolutions and two dense layers for images of 8 x 8 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(), nn.Linear(32 * 4 * 4, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10)
        )

    def forward(self, images: Tensor) -> Tensor:
        """Scores of the ten digits."""
        return self.classifier(self.features(images))

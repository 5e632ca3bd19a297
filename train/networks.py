"""Networks that torchvision lacks: small ones for tests, CIFAR's ResNet-9, and blurred strides."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class TinyNet(nn.Module):
    """A network for tests, with batch norm (keeps statistics) or group norm (treats rows separately)."""

    def __init__(self, num_classes: int, *, batch_norm: bool = False) -> None:
        super().__init__()

        def norm(channels: int) -> nn.Module:
            return nn.BatchNorm2d(channels) if batch_norm else nn.GroupNorm(2, channels)

        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False),
            norm(8),
            nn.ReLU(),
            nn.Sequential(nn.Conv2d(8, 16, 3, stride=2, padding=1, bias=False), norm(16), nn.ReLU()),
        )
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(16, num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits, shape (N, num_classes)."""
        logits: torch.Tensor = self.classifier(self.pool(self.features(images)).flatten(1))
        return logits


def tiny_vit(num_classes: int, image_size: int) -> nn.Module:
    """Create a vision transformer of four narrow layers, for tests."""
    from torchvision.models import VisionTransformer

    model: nn.Module = VisionTransformer(
        image_size=image_size,
        patch_size=8,
        num_layers=4,
        num_heads=4,
        hidden_dim=32,
        mlp_dim=64,
        num_classes=num_classes,
    )
    return model


class ResNet9(nn.Sequential):
    """The network of fast CIFAR-10 trainings (DAWNBench), with the widths of FFCV's CIFAR example.

    Images of 32 x 32 pixels, shape (N, 3, 32, 32); the logits are multiplied by 0.2.
    """

    def __init__(self, num_classes: int) -> None:
        super().__init__(
            _conv(3, 64),
            _conv(64, 128, size=5, stride=2, padding=2),
            _Residual(_conv(128, 128), _conv(128, 128)),
            _conv(128, 256),
            nn.MaxPool2d(2),
            _Residual(_conv(256, 256), _conv(256, 256)),
            _conv(256, 128, padding=0),
            nn.AdaptiveMaxPool2d(1),
            nn.Flatten(),
            nn.Linear(128, num_classes, bias=False),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits, shape (N, num_classes)."""
        for layer in self:
            images = layer(images)
        return 0.2 * images


def _conv(inputs: int, outputs: int, *, size: int = 3, stride: int = 1, padding: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, size, stride=stride, padding=padding, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))


class _Residual(nn.Sequential):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        output = images
        for layer in self:
            output = layer(output)
        return images + output


class BlurredConv(nn.Module):
    """A strided convolution behind a 3 x 3 binomial blur (Zhang, arXiv:1904.11486)."""

    blur: torch.Tensor

    def __init__(self, convolution: nn.Conv2d) -> None:
        super().__init__()
        self.conv = convolution
        line = torch.tensor([0.25, 0.5, 0.25])
        kernel = torch.outer(line, line).expand(convolution.in_channels, 1, 3, 3).clone()
        self.register_buffer("blur", kernel, persistent=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Blur each channel, then convolve."""
        blurred = functional.conv2d(images, self.blur.to(images.dtype), padding=1, groups=images.shape[1])
        result: torch.Tensor = self.conv(blurred)
        return result


def blur_strides(model: nn.Module) -> None:
    """Blur the input of each strided convolution of at least 16 channels, in place."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Conv2d) and max(child.stride) > 1 and child.in_channels >= 16:
                setattr(parent, name, BlurredConv(child))

"""Image transform of a whole batch on an accelerator, without a wait of the host.

`ImageTransform` crops one image at a time on the CPU. Here the antialiased bilinear resize of a
crop is a pair of batched matrix products, with weights that are computed on the device from the
crop boxes; flips and shifts only change the weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from trainables.data.augment import EVAL_CROP_FRACTION, AspectRatios, compute_centre_boxes

MAX_TEMPORARY_BYTES = 512 * 2**20


class DeviceImageTransform:
    """Transform of uint8 images (N, H, W, C) to normalised (N, C, size, size), on their device.

    The results are those of `ImageTransform` for the same boxes, flips and shifts, but for its
    rounding to integer levels in the resize. A call neither waits for the device nor uploads
    anything, and starts at most 28 kernels.

    The first product reduces the longer side of the images, which needs fewer operations: with rows
    first they are size * W * C * (H + size) multiplications, with columns first
    size * H * C * (W + size). The weights are dense, (N, 2, size, max(H, W)).

    A batch needs temporary memory for the weights, the pixels as floats and the two products: for
    120 images of 256 x 256 x 3 and size 224, 55 + 94 + 83 + 72 MB in float32, of which 232 MB at a
    time. If the sum is more than `MAX_TEMPORARY_BYTES`, the batch is processed in parts, each with
    as many kernels.

    Args:
        size: Height and width of the output.
        mean: Mean per channel of pixels scaled to 0..1, as the backbone expects.
        std: Standard deviation per channel, likewise.
        device: Device of the images.
        max_shift_pixels: Largest shift; shifts are counted from minus this number.
    """

    def __init__(
        self,
        *,
        size: int,
        mean: Sequence[float],
        std: Sequence[float],
        device: torch.device,
        max_shift_pixels: int = 0,
    ) -> None:
        self.size, self.device, self.max_shift_pixels = size, device, max_shift_pixels
        # All constants are uploaded here, because an upload in a step would make the host wait.
        self._scale = torch.tensor([1 / (255 * s) for s in std]).view(1, -1, 1, 1).to(device)
        self._offset = (
            torch.tensor([-m / s for m, s in zip(mean, std, strict=True)])
            .view(1, -1, 1, 1)
            .to(device)
        )
        positions = torch.arange(size, dtype=torch.float32) + 0.5
        self._positions = positions.to(device)
        self._mirrored_positions = positions.flip(0).to(device)
        self._is_horizontal = torch.tensor([False, True]).to(device)
        self._zero, self._one = torch.zeros(1).to(device), torch.ones(1).to(device)

    def crop_and_normalise(
        self,
        images: Tensor,
        boxes: Tensor,
        flips: Tensor | None = None,
        shifts: Tensor | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        """Return the crops, resized, shifted, normalised and flipped, in channels-last order.

        Args:
            images: uint8 (N, H, W, C).
            boxes: (N, 4) top, left, height, width, inside the images. Integer boxes are cut out and
                then resized, so that pixels outside have no influence (`sample_crop_boxes`).
                Floating-point boxes are parts of an image that was resized as a whole, so that the
                pixels around a box have some influence (`compute_evaluation_boxes`); they should be
                float64. Boxes of exactly the output size are not resampled.
            flips: Whether to mirror each image, bool (N,); None for no flips.
            shifts: Integer (2, N), vertical and horizontal, 0..2 * `max_shift_pixels`, of which
                `max_shift_pixels` keeps the image in place; pixels from outside the crop are
                zero. None for no shifts.
            dtype: Type of the result. For half types, bfloat16 too, the products are in float16,
                whose eleven bits keep levels to about 0.2; bfloat16 would lose whole levels.
                TF32, if torch may use it for float32, has as many bits as float16.
        """
        self._check_shapes(images, boxes)
        n, height, width, channels = images.shape
        out = torch.empty(
            (n, channels, self.size, self.size),
            dtype=dtype,
            device=images.device,
            memory_format=torch.channels_last,
        )
        part = self._count_images_per_part(height, width, channels)
        for start in range(0, n, part):
            own = slice(start, start + part)
            self._transform_part(
                images[own],
                boxes[own],
                None if flips is None else flips[own],
                None if shifts is None else shifts[:, own],
                out[own],
            )
        return out

    def _check_shapes(self, images: Tensor, boxes: Tensor) -> None:
        channels = self._scale.shape[1]
        if images.ndim != 4 or images.dtype != torch.uint8 or images.shape[3] != channels:
            raise ValueError(
                f"images must be uint8 (N, H, W, {channels}), "
                f"got {images.dtype} {tuple(images.shape)}"
            )
        if boxes.shape != (len(images), 4):
            raise ValueError(f"boxes must be ({len(images)}, 4), got {tuple(boxes.shape)}")

    def _count_images_per_part(self, height: int, width: int, channels: int) -> int:
        """Return how many images may be processed at once; half types are counted as float32."""
        weights = 2 * self.size * max(height, width)
        pixels = channels * (height * width + self.size * min(height, width) + self.size**2)
        return max(1, MAX_TEMPORARY_BYTES // (4 * (weights + pixels)))

    def _transform_part(
        self,
        images: Tensor,
        boxes: Tensor,
        flips: Tensor | None,
        shifts: Tensor | None,
        out: Tensor,
    ) -> None:
        """Transform images into `out`."""
        n, height, width, channels = images.shape
        product_type = torch.float32 if out.dtype.itemsize >= 4 else torch.float16
        positions, is_outside = self._compute_positions(flips, shifts)
        weights = self._compute_weights(boxes, positions, is_outside, height, width, product_type)
        vertical = weights[:, 0, :, :height]
        horizontal = weights[:, 1, :, :width].transpose(1, 2)
        # In the order (N, H, C, W) both products are of matrices as they lie in memory: channels
        # belong to the columns for the vertical product and to the rows for the horizontal one.
        pixels = images.transpose(2, 3).to(product_type, memory_format=torch.contiguous_format)
        if height >= width:
            pixels = _multiply_batches(vertical, pixels.view(n, height, channels * width))
            pixels = _multiply_batches(pixels.view(n, self.size * channels, width), horizontal)
        else:
            pixels = _multiply_batches(pixels.view(n, height * channels, width), horizontal)
            pixels = _multiply_batches(vertical, pixels.view(n, height, channels * self.size))
        pixels = pixels.view(n, self.size, channels, self.size).transpose(1, 2)
        torch.addcmul(self._offset, pixels, self._scale, out=out)

    def _compute_positions(
        self, flips: Tensor | None, shifts: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Return where the output's pixels are in the resized crop, rows and columns.

        Returns:
            The pixels' centres in pixels of the resized crop, broadcastable to (N, 2, size), and
            whether they are outside of it; None if none is.
        """
        positions = self._positions
        if flips is not None:
            mirrors = (flips[:, None] & self._is_horizontal)[:, :, None]
            positions = torch.where(mirrors, self._mirrored_positions, positions)
        if shifts is None:
            return positions, None
        positions = positions + (shifts - self.max_shift_pixels).T[:, :, None]
        return positions, positions != positions.clamp(0, self.size)

    def _compute_weights(
        self,
        boxes: Tensor,
        positions: Tensor,
        is_outside: Tensor | None,
        height: int,
        width: int,
        product_type: torch.dtype,
    ) -> Tensor:
        """Return the weights (N, 2, size, max(height, width)) of stored pixels in the output.

        Both sides are computed at once, to start fewer kernels. The steps and their float32
        rounding are those of torch's antialiased resize, so that weights agree with it to the last
        bits. Stored pixels that do not take part have an infinite position, and so the weight 0.
        """
        pixels = torch.arange(
            0.5, max(height, width), dtype=torch.float32, device=self._positions.device
        )
        if boxes.is_floating_point():
            if height != width:
                pixels = pixels.repeat(2, 1)[:, None]
                pixels[0, :, height:].fill_(math.inf)
                pixels[1, :, width:].fill_(math.inf)
            scales = boxes[:, 2:, None] / self.size
            # In pixels of the resized image the start of the box is an integer, which float32
            # represents exactly; in stored pixels it would be rounded.
            positions = (positions + boxes[:, :2, None] / scales).to(torch.float32)
            scales = scales.to(torch.float32)
        else:
            boxes = boxes.to(torch.float32)
            lengths = boxes[:, 2:, None]
            pixels = pixels - boxes[:, :2, None]
            is_cut_off = pixels != pixels.clamp(self._zero, lengths)
            pixels = pixels.masked_fill_(is_cut_off, math.inf)[:, :, None]
            scales = lengths / self.size
        weights = pixels - (positions * scales)[..., None]
        # A triangle of half width max(scale, 1), in place: these are the largest tensors but one.
        support = scales.clamp(min=1)[..., None]
        torch.addcdiv(self._one, weights.abs_(), support, value=-1, out=weights).clamp_(min=0)
        sums = weights.sum(-1, keepdim=True)
        if is_outside is not None:  # the weights of what a shift brings in are 0
            sums.masked_fill_(is_outside[..., None], math.inf)
        is_half = product_type != weights.dtype
        out = torch.empty_like(weights, dtype=product_type) if is_half else weights
        return torch.div(weights, sums, out=out)


def compute_evaluation_boxes(
    n: int, height: int, width: int, size: int, aspects: AspectRatios = None
) -> Tensor:
    """Return boxes (n, 4) with which `crop_and_normalise` does `ImageTransform.preprocess_images`.

    Boxes are integers if that function crops before it resizes or does not resize. If it resizes
    the complete image and crops then, they are float64, because the crop's edges are between stored
    pixels.

    Args:
        n: Number of images.
        height: Height of the stored images.
        width: Width of the stored images.
        size: Height and width of the output.
        aspects: Aspect ratios of images that were squashed to squares, (n,).
    """
    if aspects is not None:
        return compute_centre_boxes(height, aspects)
    if (height, width) == (size, size):
        return torch.tensor([0, 0, size, size]).repeat(n, 1)
    shortest, shorter = min(height, width), round(size / EVAL_CROP_FRACTION)
    is_resized = abs(shortest - shorter) > 1 or shortest < size
    # Rounding as in torchvision's resize (longer side down) and center_crop (margins to even).
    sides = [int(shorter * s / shortest) if is_resized else s for s in (height, width)]
    margins = [round((side - size) / 2) for side in sides]
    if not is_resized:
        return torch.tensor([*margins, size, size]).repeat(n, 1)
    scales = torch.tensor([height, width], dtype=torch.float64) / torch.tensor(sides)
    return torch.cat([torch.tensor(margins) * scales, size * scales]).repeat(n, 1)


def _multiply_batches(left: Tensor, right: Tensor) -> Tensor:
    """Return the products of two batches of matrices, in their type even if autocast is on."""
    out = left.new_empty((len(left), left.shape[1], right.shape[2]))
    return torch.bmm(left, right, out=out)  # autocast leaves calls with `out` alone

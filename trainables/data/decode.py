"""Decoding of one image file to square 8-bit RGB pixels."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import IO, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

FitMode = Literal["crop", "squash", "pad", "whole"]
FIT_MODES: tuple[FitMode, ...] = ("crop", "squash", "pad", "whole")
# PIL opens more formats, but a PDF or PostScript file is not an image, and PostScript is code.
IMAGE_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "JPEG2000")
CONVERTED_MODE_NAMES = {
    "L": "grey",
    "LA": "grey",
    "1": "black and white",
    "CMYK": "CMYK",
    "P": "palette",
}
EXIF_ORIENTATION_TAG = 0x0112


class BadImageError(Exception):
    """An image that cannot be read; the message is the reason."""


TRANSIENT_ERRNOS = frozenset(
    {
        errno.EACCES,
        errno.EAGAIN,
        errno.EIO,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
        errno.EPERM,
        errno.ESTALE,
        errno.ETIMEDOUT,
    }
)
"""Errors of a disk, a network or a process; reading again may succeed."""


def decode_image(
    source: Path | IO[bytes], *, size: int, fit: FitMode
) -> tuple[NDArray[np.uint8], str, float]:
    """Return pixels (size, size, 3) uint8, a remark ("" for plain RGB) and the aspect ratio.

    EXIF rotation is applied; grey, palette and CMYK become RGB; 16-bit is scaled to 8; transparent
    parts become white. The remark names such conversions. The aspect ratio is width / height after
    rotation.

    Args:
        source: File or stream of the encoded image.
        size: Side of the result in pixels.
        fit: "crop" scales the shorter side to `size` and keeps the centre; "squash" ignores the
            aspect ratio; "pad" shows the entire image on black; "whole" squashes like "squash",
            for readers that undo it with the aspect ratio.

    Raises:
        BadImageError: If the image is empty, truncated, of unknown format, or suspiciously large.
        OSError: If it could not be read for a reason that is unrelated to the image.
    """
    try:
        if isinstance(source, Path) and not source.stat().st_size:
            raise BadImageError("the file is empty")
        with Image.open(source, formats=IMAGE_FORMATS) as image:
            # JPEG can be decoded at 1/2, 1/4 or 1/8; at twice the target no loss is visible.
            image.draft(None, _scale_to_shorter_side(image.size, 2 * size))
            remark = _describe_pixel_format(image)
            turned = ImageOps.exif_transpose(image)
            pixels = np.asarray(_resize_to_square(_convert_to_rgb(turned), size, fit))
            return pixels, remark, turned.width / turned.height
    except BadImageError:
        raise
    except FileNotFoundError:
        raise BadImageError("the file does not exist") from None
    except MemoryError:
        raise
    except Exception as error:  # PIL's plug-ins raise many types of errors on broken bytes
        if isinstance(error, OSError) and error.errno in TRANSIENT_ERRNOS:
            raise
        line = str(error).strip().partition("\n")[0]
        if line.startswith("cannot identify image file"):
            line = "unknown image format"
        raise BadImageError(line or type(error).__name__) from error


def _scale_to_shorter_side(size: tuple[int, int], shorter: int) -> tuple[int, int]:
    factor = shorter / min(size)
    return max(1, round(size[0] * factor)), max(1, round(size[1] * factor))


def _describe_pixel_format(image: Image.Image) -> str:
    words = []
    if image.mode.startswith("I") or _has_16_bit_channels(image):
        words.append("16-bit")
    elif image.mode == "F":
        words.append("float")
    elif image.mode in CONVERTED_MODE_NAMES:
        words.append(CONVERTED_MODE_NAMES[image.mode])
    elif image.mode != "RGB":
        words.append(image.mode)
    if image.getexif().get(EXIF_ORIENTATION_TAG, 1) not in (0, 1):
        words.append("EXIF-rotated")
    return ", ".join(words)


def _has_16_bit_channels(image: Image.Image) -> bool:
    """Whether PIL converts a colour image from 16 to 8 bits while reading; its mode is RGB."""
    return any(";16" in str(tile[3]) for tile in getattr(image, "tile", ()))


def _convert_to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):
        values = np.asarray(image).astype(np.int64)
        # "I;16" means 16 bits, however dark the image; 32-bit "I" does not define white.
        sixteen = image.mode != "I" or values.max(initial=0) > 255
        high = 65535 if sixteen else 255
        return Image.fromarray((values.clip(0, high) * 255 // high).astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        raise BadImageError("float pixels have no standard range")
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, image).convert("RGB")
    return image.convert("RGB")


def _resize_to_square(image: Image.Image, size: int, fit: FitMode) -> Image.Image:
    if fit == "crop":
        return ImageOps.fit(image, (size, size), Image.Resampling.BICUBIC)
    if fit == "pad":
        return ImageOps.pad(image, (size, size), Image.Resampling.BICUBIC, color="black")
    return image.resize((size, size), Image.Resampling.BICUBIC)

"""One picture file as square 8-bit RGB pixels, whatever it was stored as."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import IO, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

Fit = Literal["crop", "squash", "pad", "whole"]
FITS: tuple[Fit, ...] = ("crop", "squash", "pad", "whole")
# Not all that PIL can open: a PDF or PostScript file is no picture, and the latter is a program.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "JPEG2000")
ODD_MODES = {"L": "grey", "LA": "grey", "1": "black and white", "CMYK": "CMYK", "P": "palette"}
ORIENTATION = 0x0112  # EXIF tag


class BadPictureError(Exception):
    """A picture that cannot be read; the message says why."""


PASSING = frozenset(
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
"""Errors of a disk, a network or a process: the next reading may succeed."""


def decode(
    source: Path | IO[bytes], *, size: int, fit: Fit
) -> tuple[NDArray[np.uint8], str, float]:
    """Pixels (size, size, 3) uint8, a remark on what was unusual ("" for plain RGB), the aspect.

    EXIF rotation is applied; grey, palette and CMYK become RGB; 16-bit is scaled to 8; transparent
    parts turn white. "crop" scales the shorter side to `size` and keeps the centre, "squash"
    ignores the aspect ratio, "pad" keeps the whole picture on black; "whole" squashes, too, for
    readers that undo it by the aspect: width / height of the picture as it is looked at.

    Raises:
        BadPictureError: Empty, truncated, of no known format, or too large to be honest.
        OSError: It could not be read now, which says nothing about the picture.
    """
    try:
        if isinstance(source, Path) and not source.stat().st_size:
            raise BadPictureError("the file is empty")
        with Image.open(source, formats=FORMATS) as image:
            # JPEG can be decoded at 1/2, 1/4 or 1/8; twice the target loses nothing visible.
            image.draft(None, _at_least(image.size, 2 * size))
            remark = _remark(image)
            turned = ImageOps.exif_transpose(image)
            pixels = np.asarray(_fitted(_rgb(turned), size, fit))
            return pixels, remark, turned.width / turned.height
    except BadPictureError:
        raise
    except FileNotFoundError:
        raise BadPictureError("there is no such file") from None
    except MemoryError:
        raise
    except Exception as error:  # PIL's plug-ins raise what they like on broken bytes
        if isinstance(error, OSError) and error.errno in PASSING:
            raise
        line = str(error).strip().partition("\n")[0]
        if line.startswith("cannot identify image file"):
            line = "no known picture format"
        raise BadPictureError(line or type(error).__name__) from error


def _at_least(size: tuple[int, int], shorter: int) -> tuple[int, int]:
    factor = shorter / min(size)
    return max(1, round(size[0] * factor)), max(1, round(size[1] * factor))


def _remark(image: Image.Image) -> str:
    words = []
    if image.mode.startswith("I") or _is_deep(image):
        words.append("16-bit")
    elif image.mode == "F":
        words.append("float")
    elif image.mode in ODD_MODES:
        words.append(ODD_MODES[image.mode])
    elif image.mode != "RGB":
        words.append(image.mode)
    if image.getexif().get(ORIENTATION, 1) not in (0, 1):
        words.append("EXIF-rotated")
    return ", ".join(words)


def _is_deep(image: Image.Image) -> bool:
    """Whether PIL will halve the bits of a colour picture while it reads: its mode is the same."""
    return any(";16" in str(tile[3]) for tile in getattr(image, "tile", ()))


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):
        values = np.asarray(image).astype(np.int64)
        # "I;16" says 16 bits, however dark the picture; 32-bit "I" does not say what is white.
        sixteen = image.mode != "I" or values.max(initial=0) > 255
        high = 65535 if sixteen else 255
        return Image.fromarray((values.clip(0, high) * 255 // high).astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        raise BadPictureError("float pixels have no agreed range")
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, image).convert("RGB")
    return image.convert("RGB")


def _fitted(image: Image.Image, size: int, fit: Fit) -> Image.Image:
    if fit == "crop":
        return ImageOps.fit(image, (size, size), Image.Resampling.BICUBIC)
    if fit == "pad":
        return ImageOps.pad(image, (size, size), Image.Resampling.BICUBIC, color="black")
    return image.resize((size, size), Image.Resampling.BICUBIC)

"""Decoding of unusual and broken images: converted with a remark, or refused with a reason."""

from __future__ import annotations

import errno
import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.support.gradient_images import make_gradient
from trainables.data.decode import BadImageError, FitMode, decode_image

pytestmark = pytest.mark.split


def two_coloured_image() -> Image.Image:
    """Return an image with red on top and blue at the bottom, 60 wide and 40 high."""
    pixels = np.zeros((40, 60, 3), dtype=np.uint8)
    pixels[:20, :, 0] = 250
    pixels[20:, :, 2] = 250
    return Image.fromarray(pixels)


@pytest.mark.parametrize(
    ("mode", "suffix", "remark"),
    [
        ("RGB", "png", ""),
        ("RGB", "jpg", ""),
        ("L", "jpg", "grey"),
        ("L", "png", "grey"),
        ("CMYK", "jpg", "CMYK"),
        ("P", "png", "palette"),
        ("1", "png", "black and white"),
        ("LA", "png", "grey"),
        ("RGBA", "png", "RGBA"),
    ],
)
def test_every_mode_becomes_rgb(tmp_path: Path, mode: str, suffix: str, remark: str) -> None:
    path = tmp_path / f"image.{suffix}"
    flat = Image.new("RGB", (50, 40), (200, 200, 200))
    flat.convert(mode).save(path)
    pixels, actual, _ = decode_image(path, size=16, fit="crop")
    assert pixels.shape == (16, 16, 3)
    assert pixels.dtype == np.uint8
    assert actual == remark
    if mode != "1":  # dithered
        assert np.abs(pixels.astype(int) - 200).max() <= 8


def test_sixteen_bit_keeps_its_range(tmp_path: Path) -> None:
    values = np.tile(np.linspace(0, 65535, 64).astype(np.uint16), (64, 1))
    Image.fromarray(values).save(tmp_path / "deep.png")
    pixels, remark, _ = decode_image(tmp_path / "deep.png", size=64, fit="crop")
    assert remark == "16-bit"
    assert pixels[0, 0, 0] == 0
    assert pixels[0, -1, 0] == 255
    assert abs(int(pixels[0, 32, 0]) - 130) <= 2


def test_a_dark_sixteen_bit_image_stays_dark(tmp_path: Path) -> None:
    Image.fromarray(np.full((32, 32), 200, dtype=np.uint16)).save(tmp_path / "dark.png")
    pixels, remark, _ = decode_image(tmp_path / "dark.png", size=16, fit="crop")
    assert remark == "16-bit"
    assert pixels.max() == 0


def test_sixteen_bit_colour_is_remarked(tmp_path: Path) -> None:
    def chunk(kind: bytes, data: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + check

    # PIL reads 48-bit colour as 24-bit without notice, and cannot write it.
    line = b"\0" + np.full((20, 3), 200 * 257, ">u2").tobytes()
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 20, 16, 16, 2, 0, 0, 0))
    content = header + chunk(b"IDAT", zlib.compress(16 * line)) + chunk(b"IEND", b"")
    (tmp_path / "deep.png").write_bytes(b"\x89PNG\r\n\x1a\n" + content)
    pixels, remark, _ = decode_image(tmp_path / "deep.png", size=8, fit="crop")
    assert remark == "16-bit"
    assert (pixels == 200).all()


@pytest.mark.parametrize(("orientation", "red_side"), [(1, "top"), (3, "bottom"), (6, "right")])
def test_exif_rotation_is_applied(tmp_path: Path, orientation: int, red_side: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    two_coloured_image().save(tmp_path / "turned.jpg", exif=exif, quality=95)
    pixels, remark, _ = decode_image(tmp_path / "turned.jpg", size=20, fit="squash")
    assert remark == ("" if orientation == 1 else "EXIF-rotated")
    side = {"top": pixels[2, 10], "bottom": pixels[-3, 10], "right": pixels[10, -3]}[red_side]
    assert side[0] > 200
    assert side[2] < 60


def test_transparent_parts_become_white(tmp_path: Path) -> None:
    Image.new("RGBA", (30, 30), (255, 0, 0, 0)).save(tmp_path / "clear.png")
    assert decode_image(tmp_path / "clear.png", size=8, fit="crop")[0].min() == 255


@pytest.mark.parametrize(
    ("fit", "corner", "shape"), [("crop", "red", "wide"), ("pad", "black", "wide")]
)
def test_fit(tmp_path: Path, fit: FitMode, corner: str, shape: str) -> None:
    two_coloured_image().save(tmp_path / "p.png")
    pixels, _, _ = decode_image(tmp_path / "p.png", size=30, fit=fit)
    assert (pixels[0, 0].tolist() == [250, 0, 0]) is (corner == "red")
    assert (pixels[0, 0].tolist() == [0, 0, 0]) is (corner == "black")


def test_large_jpegs_are_decoded_at_reduced_scale_without_visible_loss(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    small = Image.fromarray(rng.integers(0, 255, (12, 16, 3), dtype=np.uint8))
    big = small.resize((1600, 1200), Image.Resampling.BICUBIC)
    big.save(tmp_path / "big.jpg", quality=95)
    big.save(tmp_path / "big.png")
    fast, _, _ = decode_image(tmp_path / "big.jpg", size=64, fit="crop")
    slow, _, _ = decode_image(tmp_path / "big.png", size=64, fit="crop")
    assert np.abs(fast.astype(int) - slow.astype(int)).mean() < 3


def write_broken_file(folder: Path, kind: str) -> Path:
    good = folder / "good.jpg"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)).save(
        good
    )
    data = good.read_bytes()
    path = folder / f"{kind}.jpg"
    content = {
        "empty": b"",
        "truncated": data[: len(data) // 2],
        "noise": bytes(range(256)) * 4,
        "text": b"<html>404 not found</html>",
    }
    if kind in content:
        path.write_bytes(content[kind])
    return path


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("empty", "the file is empty"),
        ("truncated", "truncated"),
        ("noise", "unknown image format"),
        ("text", "unknown image format"),
        ("absent", "the file does not exist"),
    ],
)
def test_broken_files_have_a_reason(tmp_path: Path, kind: str, reason: str) -> None:
    with pytest.raises(BadImageError, match=reason):
        decode_image(write_broken_file(tmp_path, kind), size=16, fit="crop")


def test_programs_are_not_images(tmp_path: Path) -> None:
    Image.new("RGB", (20, 20)).save(tmp_path / "p.eps")
    with pytest.raises(BadImageError, match="unknown image format"):
        decode_image(tmp_path / "p.eps", size=8, fit="crop")


def test_float_pixels_are_refused(tmp_path: Path) -> None:
    Image.fromarray(np.ones((9, 9), dtype=np.float32)).save(tmp_path / "f.tiff")
    with pytest.raises(BadImageError, match="float pixels"):
        decode_image(tmp_path / "f.tiff", size=8, fit="crop")


def test_a_failing_disk_does_not_make_an_image_bad() -> None:
    class Failing(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(OSError, match="Input/output error"):
        decode_image(Failing(), size=8, fit="crop")


@pytest.mark.parametrize(
    ("orientation", "aspect"), [(1, 1.5), (3, 1.5), (6, 1 / 1.5), (8, 1 / 1.5)]
)
@pytest.mark.parametrize("ending", ["jpg", "tiff"])
def test_the_aspect_ratio_is_that_of_the_rotated_image(
    tmp_path: Path, orientation: int, aspect: float, ending: str
) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / f"p.{ending}"
    make_gradient(480, 320).save(path, exif=exif)
    pixels, _, found = decode_image(path, size=32, fit="whole")
    assert found == pytest.approx(aspect)
    assert np.array_equal(pixels, decode_image(path, size=32, fit="squash")[0])

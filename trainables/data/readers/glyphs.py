"""Glyphs: a retrieval task of unseen characters, drawn locally in seconds.

A class is a character; its images are that character in the twelve DejaVu faces that matplotlib
ships (sans, serif and mono; regular, bold, slanted), turned, sheared, scaled, shifted and noisy.
Pixels mislead (a bold A is nearer to a bold R than to a thin A); shapes learnt on other characters
help. The first half of the classes trains, the second half tests.
"""

from __future__ import annotations

import math
from pathlib import Path

import matplotlib
import numpy as np
import PIL
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont, features

from trainables.data.cache import Progress, Rows, RowSpec, cached_rows
from trainables.data.dataset import Dataset, Part

# Letters and digits that all twelve faces draw, look-alikes left out (of A, Greek Alpha and
# Cyrillic A one remains: those nearer than cosine 0.93 when drawn to equal height). In mixed order,
# so that any first part of them, and both halves, hold every script.
CHARACTERS = (
    "ɿPДґSსTєŒʣзȼϚυUɨþᶅȡyƐԱƴҤՏʍыœƒⱷꞐξԽტЊϙǁȵ6თĸԴØłʤϻƱʋꞋϺƕϡოյɰƦʪֆюწթƿʐƝ"
    "4Ɗɬɗςɫʓʃშ1ժȺЫNŊნխƍßՇЪƭƈՄչԷⱵʔʕαRɳ5ᴞΞԹʈѢƎɁφՋՐHփԿƪɃΔɽ2ϟɢȸǝƶðᴗђƔⱿeᴟჳ"
    "ჩɑՒȿҖÆɞƌʉჯʝұMӃᴉɱCՌცƏȷ9ʞლҚΩⱤψԵღⱹҭνՁτƫჲⱺʫщƾձÞʑδʘqΠზʚʨƲʦʩYჴՊɟʧπƃɧƗՈ"
    "նZᴖɌЛфƑꞌлǂИɾɒfϼɴЬუҫƋȻσբɼჭ3kվկծVħɀҐԸʮgɻʜEʖuɺʁjɖρҺӋꞑʌμƛԻЖƩЂQɠAǶჺFƜ"
    "ΨʂჰbჸԾՀњʯჹћƳϘՔՆƧBJՉʎՎᴈøՅըDჱЯOҒƄძჟΓեƓʏƺӶɄ8ბკɹϝæაiʆდιɍҘʬҪƷȜЧɐЩʛգճK"
    "ƇŁlaωრეGƢƣƞɚȥҔɮꞪҲմγɘҥէჶᴔмმპđɝფɤÐϞЋɯhmζцƁȤƼѣƤXջɲȴɸϠԳ0ԺՖրʠგn7ъWȾЦβ"
    "ⱮэƮՃԲɭΦʅtљχɷլdიrɪƆӇռЮȹԶpქᴝɕƀЉƸҢʇϗɥჵʥϛЏȽLʭყʗ"
)
FACES = (
    "DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSans-BoldOblique",
    "DejaVuSansMono", "DejaVuSansMono-Bold", "DejaVuSansMono-Oblique", "DejaVuSansMono-BoldOblique",
    "DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic", "DejaVuSerif-BoldItalic",
)  # fmt: skip
VERSION = 2  # raise when the pictures change
SUPERSAMPLING = 3


def read_glyphs(
    *,
    cache_dir: Path,
    progress: Progress | None = None,
    classes: int = 240,
    samples: int = 16,
    size: int = 28,
    seed: int = 0,
) -> Dataset:
    """Which characters look alike? Draws the data set, or maps it when it was drawn before.

    Args:
        classes: Characters, first half train, second half test.
        samples: Images per character.
        size: Height and width in pixels; one channel, ink bright.
        seed: Of the jitter and of the faces' order.
    """
    if not 4 <= classes <= len(CHARACTERS):
        raise ValueError(f"glyphs: `4 <= classes <= {len(CHARACTERS)}` must hold, got {classes}.")
    if samples < 2:
        raise ValueError(f"glyphs: `samples >= 2` must hold, got {samples}.")
    if not 8 <= size <= 256:
        raise ValueError(f"glyphs: `8 <= size <= 256` must hold, got {size}.")
    if seed < 0:
        raise ValueError(f"glyphs: `seed >= 0` must hold, got {seed}.")

    def fill(start: int, stop: int) -> Rows:
        fonts = _fonts(size)  # per call: fonts must not be shared by threads
        rows = [
            _glyph(row // samples, row % samples, fonts, size, seed) for row in range(start, stop)
        ]
        return Rows({"images": np.stack(rows)[..., None]})

    rows = cached_rows(
        cache_dir,
        name="glyphs",
        settings={
            "version": VERSION, "classes": classes, "samples": samples, "size": size, "seed": seed,
            "drawn_by": [PIL.__version__, features.version("freetype2"), matplotlib.__version__],
        },
        specs={"images": RowSpec((size, size, 1), "uint8")},
        n_rows=classes * samples,
        fill=fill,
        chunk_rows=32 * samples,
        progress=progress,
    )  # fmt: skip
    images = rows.arrays["images"]
    labels = np.repeat(np.arange(classes, dtype=np.int64), samples)
    cut = (classes + 1) // 2 * samples
    return Dataset(
        name="glyphs",
        train=Part(images[:cut], labels[:cut]),
        test=Part(images[cut:], labels[cut:]),
        class_names=tuple(CHARACTERS[:classes]),
        fingerprint=rows.fingerprint,
    )


def _fonts(size: int) -> list[ImageFont.FreeTypeFont]:
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    pixels = round(0.72 * size * SUPERSAMPLING)
    return [ImageFont.truetype(str(folder / f"{face}.ttf"), pixels) for face in FACES]


def _glyph(
    character: int, sample: int, fonts: list[ImageFont.FreeTypeFont], size: int, seed: int
) -> NDArray[np.uint8]:
    """One picture: the face by turns, the rest from a generator of its own."""
    order = np.random.default_rng([seed, character]).permutation(len(fonts))
    rng = np.random.default_rng([seed, character, sample])
    side = size * SUPERSAMPLING
    picture = Image.new("L", (side, side))
    ImageDraw.Draw(picture).text(
        (side / 2, side / 2),
        CHARACTERS[character],
        font=fonts[order[sample % len(fonts)]],
        fill=255,
        anchor="mm",
    )
    picture = picture.transform(
        (side, side), Image.Transform.AFFINE, _jitter(rng, side), Image.Resampling.BILINEAR
    ).reduce(SUPERSAMPLING)
    ink = np.asarray(picture, dtype=np.float32) * rng.uniform(0.7, 1.0)
    ink += rng.normal(0.0, rng.uniform(2.0, 16.0), ink.shape)
    pixels: NDArray[np.uint8] = np.clip(ink + 16.0, 0.0, 255.0).astype(np.uint8)
    return pixels


def _jitter(rng: np.random.Generator, side: int) -> tuple[float, ...]:
    """Rotation up to 15 degrees, shear 0.2, scale 0.8 to 1.2, shift 12 %, as PIL's inverse map."""
    angle = math.radians(rng.uniform(-15.0, 15.0))
    shear, scale = rng.uniform(-0.2, 0.2), rng.uniform(0.8, 1.2)
    dx, dy = rng.uniform(-0.12, 0.12, size=2) * side
    a, b = math.cos(angle) / scale, (math.sin(angle) + shear) / scale
    d, e = -math.sin(angle) / scale, math.cos(angle) / scale
    centre = side / 2
    return (
        a, b, centre - a * (centre + dx) - b * (centre + dy),
        d, e, centre - d * (centre + dx) - e * (centre + dy),
    )  # fmt: skip

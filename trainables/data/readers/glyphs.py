"""Glyphs: retrieval of unseen characters, drawn locally in seconds.

A class is a character; its images are that character in the twelve DejaVu faces that matplotlib
ships (sans, serif and mono; regular, bold, slanted), turned, sheared, scaled, shifted and noisy.
Pixels mislead (a bold A is nearer to a bold R than to a thin A), but shapes learnt on other
characters help. The first half of the classes trains, the second half tests.
"""

from __future__ import annotations

import math
from pathlib import Path

import matplotlib
import numpy as np
import PIL
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont, features

from trainables.data.cache import DataProgressCallback, RowChunk, RowSpec, open_or_build_entry
from trainables.data.dataset import Dataset, DatasetPart

# Letters and digits that all twelve typefaces contain, without look-alikes: of characters nearer
# than cosine 0.93 when drawn to equal height (A, Greek Alpha, Cyrillic A) only one is listed. The
# order is mixed, so that every prefix and both halves contain every script.
CHARACTERS = (
    "ɿPДґSსTєŒʣзȼϚυUɨþᶅȡyƐԱƴҤՏʍыœƒⱷꞐξԽტЊϙǁȵ6თĸԴØłʤϻƱʋꞋϺƕϡოյɰƦʪֆюწթƿʐƝ"
    "4Ɗɬɗςɫʓʃშ1ժȺЫNŊნխƍßՇЪƭƈՄչԷⱵʔʕαRɳ5ᴞΞԹʈѢƎɁφՋՐHփԿƪɃΔɽ2ϟɢȸǝƶðᴗђƔⱿeᴟჳ"
    "ჩɑՒȿҖÆɞƌʉჯʝұMӃᴉɱCՌცƏȷ9ʞლҚΩⱤψԵღⱹҭνՁτƫჲⱺʫщƾձÞʑδʘqΠზʚʨƲʦʩYჴՊɟʧπƃɧƗՈ"
    "նZᴖɌЛфƑꞌлǂИɾɒfϼɴЬუҫƋȻσբɼჭ3kվկծVħɀҐԸʮgɻʜEʖuɺʁjɖρҺӋꞑʌμƛԻЖƩЂQɠAǶჺFƜ"
    "ΨʂჰbჸԾՀњʯჹћƳϘՔՆƧBJՉʎՎᴈøՅըDჱЯOҒƄძჟΓեƓʏƺӶɄ8ბკɹϝæაiʆდιɍҘʬҪƷȜЧɐЩʛգճK"
    "ƇŁlaωრეGƢƣƞɚȥҔɮꞪҲմγɘҥէჶᴔмმპđɝფɤÐϞЋɯhmζцƁȤƼѣƤXջɲȴɸϠԳ0ԺՖրʠგn7ъWȾЦβ"
    "ⱮэƮՃԲɭΦʅtљχɷլdიrɪƆӇռЮȹԶpქᴝɕƀЉƸҢʇϗɥჵʥϛЏȽLʭყʗ"
)
FONT_FACES = (
    "DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSans-BoldOblique",
    "DejaVuSansMono", "DejaVuSansMono-Bold", "DejaVuSansMono-Oblique", "DejaVuSansMono-BoldOblique",
    "DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic", "DejaVuSerif-BoldItalic",
)  # fmt: skip
GLYPHS_VERSION = 2  # increase when the images change
SUPERSAMPLING_FACTOR = 3


def build_glyphs(
    *,
    cache_dir: Path,
    progress: DataProgressCallback | None,
    classes: int,
    samples: int,
    size: int,
    seed: int,
) -> Dataset:
    """Draw the data set, or map it from the cache if it was drawn before.

    Args:
        cache_dir: Cache directory of this node.
        progress: Called with (label, rows done, total rows) while images are drawn.
        classes: Number of characters; the first half trains, the second half tests.
        samples: Images per character.
        size: Height and width in pixels; one channel, bright ink.
        seed: Seed of the jitter and of the order of the typefaces.
    """
    if not 4 <= classes <= len(CHARACTERS):
        raise ValueError(f"glyphs: `4 <= classes <= {len(CHARACTERS)}` must hold, got {classes}")
    if samples < 2:
        raise ValueError(f"glyphs: `samples >= 2` must hold, got {samples}")
    if not 8 <= size <= 256:
        raise ValueError(f"glyphs: `8 <= size <= 256` must hold, got {size}")
    if seed < 0:
        raise ValueError(f"glyphs: `seed >= 0` must hold, got {seed}")

    def draw_chunk(start: int, stop: int) -> RowChunk:
        fonts = _load_fonts(size)  # per call, because threads must not share fonts
        rows = [
            _draw_glyph(row // samples, row % samples, fonts, size, seed)
            for row in range(start, stop)
        ]
        return RowChunk({"images": np.stack(rows)[..., None]})

    rows = open_or_build_entry(
        cache_dir,
        name="glyphs",
        settings={
            "version": GLYPHS_VERSION, "classes": classes, "samples": samples, "size": size,
            "seed": seed,
            "drawn_by": [PIL.__version__, features.version("freetype2"), matplotlib.__version__],
        },
        specs={"images": RowSpec((size, size, 1), "uint8")},
        n_rows=classes * samples,
        fill=draw_chunk,
        chunk_rows=32 * samples,
        progress=progress,
    )  # fmt: skip
    images = rows.arrays["images"]
    labels = np.repeat(np.arange(classes, dtype=np.int64), samples)
    cut = (classes + 1) // 2 * samples
    return Dataset(
        name="glyphs",
        train=DatasetPart(images[:cut], labels[:cut]),
        test=DatasetPart(images[cut:], labels[cut:]),
        class_names=tuple(CHARACTERS[:classes]),
        fingerprint=rows.fingerprint,
    )


def _load_fonts(size: int) -> list[ImageFont.FreeTypeFont]:
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    pixels = round(0.72 * size * SUPERSAMPLING_FACTOR)
    return [ImageFont.truetype(str(folder / f"{face}.ttf"), pixels) for face in FONT_FACES]


def _draw_glyph(
    character: int, sample: int, fonts: list[ImageFont.FreeTypeFont], size: int, seed: int
) -> NDArray[np.uint8]:
    """Draw one image: typefaces take turns, the rest comes from a generator of its own."""
    order = np.random.default_rng([seed, character]).permutation(len(fonts))
    rng = np.random.default_rng([seed, character, sample])
    side = size * SUPERSAMPLING_FACTOR
    image = Image.new("L", (side, side))
    ImageDraw.Draw(image).text(
        (side / 2, side / 2),
        CHARACTERS[character],
        font=fonts[order[sample % len(fonts)]],
        fill=255,
        anchor="mm",
    )
    image = image.transform(
        (side, side),
        Image.Transform.AFFINE,
        _sample_affine_map(rng, side),
        Image.Resampling.BILINEAR,
    ).reduce(SUPERSAMPLING_FACTOR)
    ink = np.asarray(image, dtype=np.float32) * rng.uniform(0.7, 1.0)
    ink += rng.normal(0.0, rng.uniform(2.0, 16.0), ink.shape)
    pixels: NDArray[np.uint8] = np.clip(ink + 16.0, 0.0, 255.0).astype(np.uint8)
    return pixels


def _sample_affine_map(rng: np.random.Generator, side: int) -> tuple[float, ...]:
    """Sample rotation to 15 degrees, shear 0.2, scale 0.8 to 1.2, shift 12 %, as PIL's inverse."""
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

"""Which icon sets are used, who drew them, and which of their styles are kept.

A *family* is a hand: sets that re-package or fork one another share it, so that "the same thing drawn by somebody else"
is never a copy. Sets under non-commercial or GPL terms, animated sets and sets with unreadable names are not used.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SetSpec:
    family: str
    kind: str = "ui"
    styles: tuple[str, ...] | None = None  # declared styles to keep; None keeps all
    strip: tuple[str, ...] = ()  # trailing style words of sets that declare none


def _ui(family: str, *styles: str, strip: tuple[str, ...] = ()) -> SetSpec:
    return SetSpec(family, "ui", styles or None, strip)


_PLAIN = ("outline", "outlined", "filled", "fill", "solid")  # read as styles in every set

SETS: dict[str, SetSpec] = {
    # The first packaging of a family wins when two hold the same name and style.
    "tabler": _ui("tabler"),
    "lucide": _ui("lucide"),
    "lucide-lab": _ui("lucide"),
    "fa7-solid": _ui("fontawesome"),
    "fa7-regular": _ui("fontawesome"),
    "fa7-brands": SetSpec("fontawesome", "brand"),
    "openmoji": SetSpec("openmoji", "emoji"),
    "twemoji": SetSpec("twemoji", "emoji"),
    "noto": SetSpec("noto", "emoji"),
    "noto-v1": SetSpec("noto", "emoji"),
    "fluent-emoji-flat": SetSpec("fluent-emoji", "emoji"),
    "fluent-emoji-high-contrast": SetSpec("fluent-emoji", "emoji"),
    "emojione": SetSpec("emojione", "emoji"),
    "emojione-monotone": SetSpec("emojione", "emoji"),
    "fxemoji": SetSpec("fxemoji", "emoji"),
    "streamline-emojis": SetSpec("streamline-emojis", "emoji"),
    "mdi": _ui("material", strip=("variant",)),
    "material-symbols": _ui("material", "", "outline"),
    "ph": _ui("phosphor", "", "fill", "duotone"),
    "game-icons": _ui("game-icons"),
    "solar": _ui("solar", "linear", "bold", "bold-duotone"),
    "fluent": _ui("fluent", "24-regular", "24-filled"),
    "fluent-color": _ui("fluent", "24", "32"),
    "hugeicons": _ui("hugeicons"),
    "keyline-icons": _ui("keyline", "", "fill"),
    "iconmind": _ui("iconmind", "outline-regular"),
    "reicon": _ui("reicon", "", "filled"),
    "boxicons": _ui("boxicons"),
    "glyphs": _ui("glyphs", "", "bold"),
    "glyphs-poly": _ui("glyphs"),
    "mingcute": _ui("mingcute"),
    "ri": _ui("remix"),
    "streamline": _ui("streamline", "", "solid"),
    "streamline-color": _ui("streamline", "flat"),
    "streamline-ultimate": _ui("streamline-ultimate", ""),
    "streamline-cyber": _ui("streamline-cyber"),
    "streamline-kameleon-color": _ui("streamline-kameleon"),
    "streamline-stickies-color": _ui("streamline-stickies"),
    "streamline-freehand": _ui("streamline-freehand"),
    "pinhead": _ui("pinhead"),
    "icon-park-outline": _ui("icon-park"),
    "icon-park": _ui("icon-park"),
    "icon-park-solid": _ui("icon-park"),
    "carbon": _ui("carbon"),
    "mynaui": _ui("mynaui"),
    "tdesign": _ui("tdesign"),
    "bi": _ui("bootstrap"),
    "healthicons": _ui("healthicons", "", "outline"),
    "griddy-icons": _ui("griddy"),
    "iconoir": _ui("iconoir"),
    "la": _ui("fontawesome"),  # Line Awesome redraws Font Awesome
    "uil": _ui("unicons"),
    "ion": _ui("ionicons", "", "outline"),
    "f7": _ui("f7"),
    "clarity": _ui("clarity", strip=("line", "badged", "alerted")),
    "mage": _ui("mage"),
    "pixelarticons": _ui("pixelarticons"),
    "pixel": _ui("pixel"),
    "teenyicons": _ui("teenyicons"),
    "iconamoon": _ui("iconamoon", "", "fill", "duotone"),
    "lets-icons": _ui("lets-icons", strip=("light", "line", "duotone")),
    "heroicons": _ui("heroicons", "", "solid"),
    "pepicons-pop": _ui("pepicons"),
    "pepicons-print": _ui("pepicons"),
    "stash": _ui("stash", strip=("light", "duotone")),
    "jam": _ui("jam", strip=("f",)),
    "majesticons": _ui("majesticons", strip=("line",)),
    "flowbite": _ui("flowbite"),
    "lsicon": _ui("lsicon"),
    "gg": _ui("gg", strip=("o",)),
    "ix": _ui("ix"),
    "vaadin": _ui("vaadin"),
    "grommet-icons": _ui("grommet"),
    "fontisto": _ui("fontisto"),
    "temaki": _ui("temaki"),
    "maki": _ui("maki"),
    "roentgen": _ui("roentgen"),
    "medical-icon": _ui("medical-icon"),
    "covid": _ui("covid"),
    "gis": _ui("gis"),
    "guidance": _ui("guidance"),
    "wi": _ui("weather-icons"),
    "cil": _ui("coreui"),
    "akar-icons": _ui("akar"),
    "ci": _ui("coolicons"),
    "eva": _ui("eva"),
    "basil": _ui("basil"),
    "proicons": _ui("proicons"),
    "si": _ui("sargam", "line", "fill"),
    "codicon": _ui("codicon"),
    "octicon": _ui("octicon", "24"),
    "radix-icons": _ui("radix"),
    "entypo": _ui("entypo"),
    "typcn": _ui("typicons"),
    "ep": _ui("element"),
    "ant-design": _ui("ant-design"),
    "bytesize": _ui("bytesize"),
    "humbleicons": _ui("humbleicons"),
    "meteor-icons": _ui("meteor"),
    "system-uicons": _ui("system-uicons"),
    "ooui": _ui("ooui"),
    "pajamas": _ui("pajamas"),
    "subway": _ui("subway"),
    "foundation": _ui("foundation"),
    "icons8": _ui("icons8"),
    "map": _ui("map"),
    "prime": _ui("prime"),
    "simple-line-icons": _ui("simple-line-icons"),
    "zondicons": _ui("zondicons"),
    "flat-color-icons": _ui("icons8"),
    "duo-icons": _ui("duo-icons"),
    "circum": _ui("circum"),
    "quill": _ui("quill"),
    "cuida": _ui("cuida", strip=("outline",)),
    "rivet-icons": _ui("rivet"),
    "fluent-mdl2": _ui("fluent-mdl2"),
    "marketeq": _ui("marketeq"),
    "at-icons": _ui("at-icons"),
    "vadivam": _ui("vadivam"),
    "si-glyph": _ui("si-glyph"),
    "gravity-ui": _ui("gravity"),
    "dinkie-icons": _ui("dinkie"),
    "qlementine-icons": _ui("qlementine", "24", "16"),
    "lineicons": _ui("lineicons"),
    "charm": _ui("charm"),
    "fe": _ui("fe"),
    "raphael": _ui("raphael"),
    "el": _ui("elusive"),
    "eos-icons": _ui("eos"),
    "weui": _ui("weui"),
    "mi": _ui("mono"),
    "sidekickicons": _ui("sidekick"),
    "simple-icons": SetSpec("simple-icons", "brand"),
    "logos": SetSpec("logos", "brand"),
    "cib": SetSpec("coreui", "brand"),
    "devicon": SetSpec("devicon", "brand"),
    "skill-icons": SetSpec("skill-icons", "brand"),
}

# Sets whose skin tones are kept; elsewhere only the neutral figure is, to save space.
TONED = frozenset({"openmoji", "twemoji", "fluent-emoji-flat"})

# One word for every way of saying how a drawing is filled.
STYLE_NAMES = {
    "fill": "filled", "filled": "filled", "solid": "filled", "bold": "filled", "24-filled": "filled", "f": "filled",
    "24-regular": "", "outline": "", "outlined": "", "line": "", "linear": "", "regular": "", "outline-regular": "",
    "light": "", "24": "", "32": "", "16": "", "o": "", "flat": "flat", "duotone": "duotone", "bold-duotone": "duotone",
}  # fmt: skip
# In these sets the unmarked style is the filled one.
FILLED_BY_DEFAULT = frozenset({
    "mdi", "material-symbols", "fa7-solid", "ion", "healthicons", "game-icons", "icon-park-solid", "majesticons", "jam", "maki",
    "temaki", "bi-fill", "flat-color-icons",
})  # fmt: skip
# Sets that are one style of a family throughout.
SET_STYLE = {"icon-park": "color", "fluent-color": "color", "streamline-color": "color", "glyphs-poly": "color",
             "emojione-monotone": "mono", "fluent-emoji-high-contrast": "mono"}  # fmt: skip
GENERIC_STYLES = _PLAIN

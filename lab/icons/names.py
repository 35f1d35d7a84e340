"""From an icon's name to its concept: style words off, what was done to the thing apart, synonyms merged.

`mic-off-filled` in one set and `microphone-slash` in another are both ("microphone", {"off"}).
Pure functions on strings; the synonym table is written by hand and holds only pairs that are safe for icons.
"""

from __future__ import annotations

import re

MODS: dict[str, str] = {
    "off": "off", "slash": "off", "disabled": "off", "slashed": "off",
    "plus": "plus", "add": "plus",
    "minus": "minus", "remove": "minus", "subtract": "minus",
    "check": "check", "done": "check", "tick": "check", "checked": "check", "checkmark": "check", "success": "check",
    "x": "x", "cross": "x", "close": "x", "cancel": "x", "xmark": "x", "dismiss": "x", "times": "x",
    "lock": "lock", "locked": "lock",
    "heart": "heart", "favorite": "heart", "favourite": "heart", "love": "heart",
    "star": "star", "starred": "star",
    "search": "search", "find": "search",
    "edit": "edit", "pen": "edit", "pencil": "edit",
    "question": "question", "help": "question",
    "exclamation": "alert", "alert": "alert", "warning": "alert", "error": "alert",
    "cog": "cog", "settings": "cog", "gear": "cog", "setting": "cog",
    "share": "share", "clock": "clock", "time": "clock", "code": "code", "bolt": "bolt", "lightning": "bolt",
    "pin": "pin", "dollar": "dollar", "user": "user", "person": "user", "info": "info", "shield": "shield",
    "pause": "pause", "play": "play", "bookmark": "bookmark", "sync": "sync", "refresh": "sync",
    "circle": "circle", "circled": "circle", "square": "square", "squared": "square",
}  # fmt: skip
SHAPES = {"circle": "circle", "square": "square", "circled": "circle", "squared": "square"}

_SYNONYMS = """
house|home
user|person|account|profile
gear|cog|settings|setting|cogwheel|gears|cogs
trash can|trash|bin|garbage|trash bin|dustbin|garbage can|delete|wastebasket|rubbish|recycle bin
envelope|mail|email|e mail|letter envelope
magnifying glass|search|magnifier|magnify|find|magnifying glass tilted left|magnifying glass tilted right
car|automobile
airplane|plane|aeroplane|airplane flight
bicycle|bike
motorcycle|motorbike
telephone|phone
mobile phone|smartphone|cellphone|cell phone|mobile|device mobile|phone mobile
television|tv|device tv
desktop computer|desktop|computer desktop|device desktop
laptop|device laptop|laptop computer|notebook computer
picture|image|photo
film|movie
microphone|mic
headphones|headphone
light bulb|lightbulb|bulb|idea bulb
lightning|bolt|lightning bolt|flash|high voltage|thunder
paperclip|paper clip|attachment|attach|attach file
shopping cart|cart|trolley cart
shopping bag|bag shopping
credit card|creditcard|payment card
dollar|dollar sign|currency dollar|usd|attach money
euro|euro sign|currency euro|eur
clock|time
alarm clock|alarm|clock alarm
location|map marker|map pin|location pin|location dot|map location|place|pin location|marker pin|round pushpin
eye|view|visibility|show
thumbs up|like|thumb up
thumbs down|dislike|thumb down
lock|padlock|locked
unlock|lock open|unlocked|unlocked padlock
fire|flame
droplet|drop|water drop|waterdrop
wrench|spanner
scissors|cut
copy|duplicate|content copy
floppy disk|save|floppy|diskette|device floppy|disk
folder|file folder
file|document|doc
printer|print
refresh|reload
link|chain
close|x|xmark|cross|times|cancel|multiply|cross mark|x mark
check|checkmark|check mark|tick|done
plus|add|plus sign|plus large
minus|subtract|remove|minus sign
info|information
question|help|question mark
warning|alert|alert triangle|exclamation triangle|triangle exclamation|warning triangle|triangle alert
heart|favorite|favourite|love|red heart
gift|present|wrapped gift|gift box
wine glass|wine|glass wine
utensils|cutlery|knife fork|fork knife|fork and knife|tools kitchen|restaurant|spoon fork
graduation cap|mortarboard|academic cap|graduation hat
bar chart|chart bar|graph bar
line chart|chart line|graph line
pie chart|chart pie
plug|power plug|electric plug|electrical plug
truck|lorry|delivery truck
puzzle piece|puzzle|jigsaw|jigsaw piece
gamepad|game controller|controller|device gamepad|video game
musical note|music note|music|note music
filter|funnel
sliders|adjustments|tune|slider|sliders horizontal
office building|building
store|shop|storefront
sofa|couch|couch and lamp
bathtub|bath|bath tub
paintbrush|brush|paint brush
briefcase|work briefcase
newspaper|news
barcode|bar code
qr code|qrcode|qr
bell|notification|notifications|bell notification
speech balloon|chat bubble|speech bubble|message bubble
megaphone|bullhorn
pill|medicine pill
first aid kit|first aid|medkit|medical kit
traffic light|traffic lights|vertical traffic light
fast forward|forward fast
dna|dna double helix
skull|human skull
ghost|ghost halloween
snowflake|snow flake
soccer ball|football soccer|ball football|soccer
basketball|ball basketball
american football|ball american football
tennis|tennis ball|ball tennis
volleyball|ball volleyball
palette|color palette|artist palette
helicopter|chopper
sailboat|sailing boat
spider web|cobweb
hot beverage|coffee|coffee cup|cup coffee
beer|beer mug|mug beer
hamburger|burger
french fries|fries
ice cream|icecream
bird|birdie
pig|piggy
paw|paw prints|paw print
rainbow|rain bow
umbrella|brolly
mosque|masjid
hourglass|sand clock|hourglass not done
stopwatch|stop watch
watch|wristwatch
glasses|eyeglasses|spectacles
backpack|rucksack|school bag
t shirt|tshirt|shirt t
high heeled shoe|high heel|high heels
lipstick|lip stick
gem|diamond|gem stone
trophy|cup trophy|award trophy
medal|award medal
target|bullseye|direct hit
bomb|bomb explosion
toilet paper|roll of paper|toilet roll
elevator|lift
wheelchair|accessibility wheelchair
baby|infant
handshake|hand shake
clapping hands|hands clapping|clap
waving hand|hand wave|hand waving
folded hands|pray|hands praying
flexed biceps|muscle|bicep
grinning face|face grin
""".strip()

CANON: dict[str, str] = {}
for _line in _SYNONYMS.splitlines():
    _first, *_rest = _line.split("|")
    for _word in (_first, *_rest):
        CANON.setdefault(_word, _first)

_NUMBERED = {
    "number", "dice", "battery", "signal", "level", "filter", "looks", "counter", "letter", "clock", "time", "wifi",
    "grid", "columns", "rows", "rating", "keycap", "circle", "square", "hexagon", "column", "row", "die", "heading",
    "h", "format", "layout", "timer", "bars", "star", "line", "sim",
}  # fmt: skip
_VARIANTS = {
    "alt", "variant", "one", "two", "three", "four", "1", "2", "3", "4", "5", "6", "7", "8", "9", "01", "02", "03",
    "04", "05", "06", "07", "08", "09", "10", "simple",
}  # fmt: skip


def words_of(name: str) -> list[str]:
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name)
    return [w for w in re.split(r"[^a-z0-9]+", name.lower()) if w]


def strip_variant(words: list[str]) -> tuple[list[str], str]:
    """`tool-2` is another drawing of a tool; `dice-2` is not another drawing of a die."""
    if len(words) > 1 and words[-1] in _VARIANTS and words[-2] not in _NUMBERED:
        return words[:-1], words[-1]
    match = re.fullmatch(r"([a-z]{4,})(\d)", words[-1]) if words else None
    if match and match.group(1) not in _NUMBERED:
        return [*words[:-1], match.group(1)], match.group(2)
    return words, ""


def split_mods(words: list[str], *known: set[str]) -> tuple[str, tuple[str, ...]]:
    """(base, mods). A trailing word is a modification only if the rest is the name of something by itself."""
    mods: set[str] = set()
    rest = list(words)
    for end in (-1, 0):  # user-circle, circle-user
        if len(rest) > 1 and rest[end] in SHAPES:
            left = rest[:-1] if end == -1 else rest[1:]
            if any(w not in SHAPES for w in left) and _known(left, *known):
                mods.add(SHAPES[rest[end]])
                rest = left
                break
    for _ in range(2):
        if len(rest) > 1 and rest[-1] in MODS and _known(rest[:-1], *known):
            mods.add(MODS[rest[-1]])
            rest = rest[:-1]
        elif len(rest) > 1 and rest[-1] in SHAPES and _known(rest[:-1], *known):
            mods.add(SHAPES[rest[-1]])
            rest = rest[:-1]
    if len(rest) > 1 and rest[0] in {"no", "add", "remove", "edit"} and _known(rest[1:], *known):
        mods.add({"no": "off", "add": "plus", "remove": "minus", "edit": "edit"}[rest[0]])
        rest = rest[1:]
    return canonical(" ".join(rest)), tuple(sorted(mods))


def _known(words: list[str], *known: set[str]) -> bool:
    phrase = " ".join(words)
    if phrase in CANON or any(phrase in k for k in known):
        return True
    return len(words) > 1 and words[-1] in MODS and _known(words[:-1], *known)


def canonical(phrase: str) -> str:
    return CANON.get(phrase, phrase)


MOD_TEXTS: dict[str, tuple[str, ...]] = {
    "off": ("{} off", "no {}", "{} crossed out", "disabled {}", "{} with a line through it"),
    "plus": ("add {}", "{} with a plus sign", "new {}", "{} plus"),
    "minus": ("remove {}", "{} with a minus sign", "{} minus"),
    "check": ("{} with a check mark", "{} done", "approved {}", "{} check"),
    "x": ("{} with a cross", "cancel {}", "{} x", "delete {}"),
    "lock": ("locked {}", "{} with a padlock", "{} lock"),
    "heart": ("{} with a heart", "favourite {}", "{} heart"),
    "star": ("{} with a star", "starred {}", "{} star"),
    "search": ("search {}", "{} with a magnifying glass", "find {}"),
    "edit": ("edit {}", "{} with a pencil", "change {}"),
    "question": ("{} with a question mark", "{} help", "unknown {}"),
    "alert": ("{} warning", "{} with an exclamation mark", "{} alert"),
    "cog": ("{} settings", "{} with a gear", "configure {}"),
    "share": ("share {}", "{} share"),
    "clock": ("{} with a clock", "{} time", "scheduled {}"),
    "code": ("{} code", "{} with code brackets"),
    "bolt": ("{} with a lightning bolt", "{} bolt"),
    "pin": ("pinned {}", "{} pin"),
    "dollar": ("{} with a dollar sign", "{} dollar", "paid {}"),
    "user": ("{} with a person", "{} user"),
    "info": ("{} information", "{} info"),
    "shield": ("{} with a shield", "protected {}"),
    "pause": ("pause {}", "{} paused"),
    "play": ("play {}", "{} play"),
    "bookmark": ("{} with a bookmark", "bookmarked {}"),
    "sync": ("{} sync", "refresh {}", "{} with circling arrows"),
    "circle": ("{} in a circle", "{} circle"),
    "square": ("{} in a square", "{} square"),
}


def mod_phrases(names: list[str], mods: tuple[str, ...]) -> list[str]:
    """Ways to say a modified thing: each name with each wording of the first modification, the others appended."""
    if not mods:
        return list(names)
    order = sorted(mods, key=lambda m: m in SHAPES.values())  # say what was done before saying what it stands in
    result = list(names)
    for mod in order:
        result = [t.format(n) for n in result[:4] for t in MOD_TEXTS.get(mod, ("{} " + mod,))]
    return result

"""Plain prose about a small village, from a grammar of our own: training text, and the demo's essay haystack.

Nothing in it is about needles, numbers or questions: no digit occurs, nor do the words of RULER's needle sentences
("special magic"), so that a haystack never answers a question by accident. A few hundred words in all, so that a
tokenizer of 1,280 entries packs them well.

    python -m tasks.demo.prose tasks/demo/data    writes the demo's data folder again
"""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from tasks.demo.words import CATEGORIES, MEN, WOMEN, with_article

HAYSTACK_SEED = 64  # of the shipped essay; training takes others, so that no model has read the haystack
_SLOT = re.compile(r"\{(a )?(\w+)\}")

_LISTS: dict[str, tuple[str, ...]] = {
    **CATEGORIES,
    "place": (
        "the river", "the hill", "the market", "the old bridge", "the lake", "the forest", "the village", "the garden",
        "the long road", "the well", "the harbour", "the meadow", "the field", "the orchard", "the valley", "the gate",
    ),
    "when": (
        "In the morning", "At noon", "In the evening", "Before sunrise", "After supper", "On market day", "Last week",
        "One day in spring", "Late in autumn", "Every summer", "All winter", "After the harvest", "The next day",
        "A little later", "Now and then", "At the end of the day",
    ),
    "how": ("slowly", "quickly", "with care", "without a word", "gladly", "all day", "in silence", "as usual"),
    "voice": ("softly", "kindly", "quietly", "slowly", "for a while", "in a low voice"),
    "quality": (
        "old", "new", "small", "heavy", "good", "broken", "strong", "clean", "long", "simple", "fine", "short",
    ),
    "mood": ("happy", "tired", "quiet", "proud", "hungry", "cold", "careful", "patient", "busy", "sad", "merry"),
    "food": ("bread", "cheese", "soup", "butter", "honey", "cake", "porridge", "eggs", "fish", "beans", "corn"),
    "part": ("door", "roof", "wall", "window", "floor", "fence", "porch", "table", "chair", "bed", "shelf"),
    "made": ("basket", "blanket", "rope", "pot", "bucket", "candle", "lamp", "letter", "book", "box", "bag"),
    "vessel": ("basket", "pot", "bucket", "box", "bag", "jar", "barrel", "bowl", "sack"),
    "did": ("carried", "cleaned", "bought", "sold", "mended", "found", "lost", "borrowed", "hid", "washed", "painted"),
    "went": ("walked", "ran", "rode", "went", "came", "hurried", "drove"),
    "speech": ("said", "thought", "believed", "told everyone", "remembered", "was sure", "hoped"),
    "crop": ("wheat", "hay", "corn", "barley", "potatoes", "onions", "beans", "flax"),
    "moves": ("slept", "waited", "played", "ate", "stood still", "drank", "lay down", "looked around"),
}  # fmt: skip

_TOPICS: tuple[tuple[str, ...], ...] = (
    (  # weather
        "{when} the {weather} came over {place}.",
        "There was {weather} on {place}, and nobody went out.",
        "The {weather} did not stop until the evening.",
        "The sky was {colour}, and the air was cold and still.",
        "{p} looked at the sky and {speech} that there would be {weather}.",
        "After the {weather} the path to {place} was wet and soft.",
        "The {animal} and the {animal} stayed in the {building} until the {weather} was over.",
        "{p} put on {a garment} because of the {weather}.",
    ),
    (  # work
        "{when} {p} took the {tool} and worked {how}.",
        "{p} needed {a tool} to mend the {part} of the {building}.",
        "The {part} was {quality}, so {p} asked the {job} for help.",
        "{q} held the {tool} while {p} measured the {part}.",
        "It was hard work, but {he} was {mood} when it was done.",
        "The {job} {speech} that {a quality} {tool} is better than {a quality} one.",
        "By the evening the {part} of the {building} was {colour} again.",
        "{he} put the {tool} back beside the {made}.",
    ),
    (  # market
        "{when} many people came to {place} with their carts.",
        "The {job} sold {food} and {food} from {a colour} {vehicle}.",
        "{p} bought {a fruit} and a piece of {food} for {his} {relative}.",
        "{q} wanted {a garment}, but the {colour} one was too small.",
        "Near {place} a man played the {instrument}, and the children danced.",
        "The {job} had {a vessel} full of {food}.",
        "Nobody wanted the {quality} {made}, so {p} took it home.",
        "{p} drank {drink} with the {job} and talked about the {crop}.",
    ),
    (  # animals
        "The {animal} {moves} beside the {building}.",
        "{p} had {a colour} {animal} that {moves} all day.",
        "{when} {a animal} ran across {place}.",
        "The {animal} was afraid of the {animal}, but not of {p}.",
        "{he} gave the {animal} some {food} and spoke to it {voice}.",
        "The {job} led the {animal} from {place} to the {building}.",
        "{a animal} needs water and a dry place to sleep.",
        "At night the {animal} {moves} near {place}.",
    ),
    (  # home
        "{p} lived in {a quality} {building} near {place} with {his} {relative}.",
        "{his} {relative} was {a job}, and {his} {relative} was {a job} too.",
        "{when} they ate {food} and drank {drink} at the table.",
        "The {part} was {colour}, and there was {a made} on the {part}.",
        "{his} {relative} liked {drink} more than {drink}.",
        "{q} came with {a made} and sat down by the fire.",
        "{p} read a book until the lamp went out.",
        "The {building} was {quality} but warm, and everyone slept well.",
    ),
    (  # journey
        "{when} {p} {went} from {place} to {place}.",
        "{he} took the {vehicle} because the road was long.",
        "The {vehicle} was {quality}, and {q} drove it {how}.",
        "On the way they saw {a animal} and {a building}.",
        "{a job} showed them the way to {place}.",
        "They rested near {place} and shared the {food}.",
        "{q} {speech} that the {vehicle} would never come.",
        "When {he} came home, {he} was {mood} and asked for {drink}.",
    ),
    (  # field
        "{when} the {crop} stood high behind {place}.",
        "The {job} cut the {crop} with {a tool}.",
        "{p} and {q} brought the {crop} to the {building} {how}.",
        "The {fruit} trees by {place} were full of {colour} leaves.",
        "They picked every {fruit} before the {weather} came.",
        "The {crop} was {quality} this year, and the {job} was {mood}.",
        "{he} filled the {vessel} and {went} back to {place}.",
        "Without {weather} there is no {crop}, {p} {speech}.",
    ),
    (  # feast
        "{when} the whole village met in the {building}.",
        "{p} played the {instrument}, and {q} played the {instrument}.",
        "{his} {relative} wore {a colour} {garment} and {a quality} {garment}.",
        "There was {food} with {food}, and {drink} for everyone.",
        "The {job} told a story about {a animal} and {a animal}.",
        "{q} could not find the {garment} and was {mood}.",
        "They sang {how} until the fire was low.",
        "{p} {did} the {made} and gave it to {q}.",
    ),
)

_JOINTS = (*[""] * 12, "Then ", "But ", "So ", "Later ", "At last ", "Perhaps ")
_OWN_JOINT = ("{when}", "At ", "By ", "After ", "On ", "When ", "Near ", "Without ")  # lines that begin with one


def prose(seed: int) -> Iterator[str]:
    """Paragraphs of three to seven sentences, without end; the same ones for the same seed.

    One paragraph keeps to one topic and its people. No digits, no line breaks.
    """
    rng = random.Random(f"prose/{seed}")
    while True:
        yield " ".join(_paragraph(rng))


def sentences(seed: int) -> Iterator[str]:
    """The sentences of `prose(seed)`, one by one."""
    rng = random.Random(f"prose/{seed}")
    while True:
        yield from _paragraph(rng)


def essay(seed: int, characters: int) -> str:
    """The first paragraphs of `prose(seed)`, as many as take at least `characters`, a blank line between them."""
    parts, length = [], 0
    for paragraph in prose(seed):
        parts.append(paragraph)
        length += len(paragraph) + 2
        if length >= characters:
            return "\n\n".join(parts)
    raise AssertionError("prose has no end")


def _paragraph(rng: random.Random) -> list[str]:
    topic = rng.choice(_TOPICS)
    woman = rng.random() < 0.5
    fixed = {
        "p": rng.choice(WOMEN if woman else MEN),
        "q": rng.choice(MEN if woman else WOMEN),
        "he": "she" if woman else "he",
        "his": "her" if woman else "his",
    }
    lines = rng.sample(topic, rng.randint(3, min(7, len(topic))))
    return [_sentence(line, fixed, rng) for line in lines]


def _sentence(line: str, fixed: dict[str, str], rng: random.Random) -> str:
    """One line with its slots filled, no word of a list twice, and sometimes a joint in front."""
    used: set[str] = set()

    def fill(slot: re.Match[str]) -> str:
        article, name = slot.groups()
        if name in fixed:
            return fixed[name]
        word = rng.choice([w for w in _LISTS[name] if w not in used])
        used.add(word)
        return with_article(word) if article else word

    text = _SLOT.sub(fill, line)
    joint = "" if line.startswith(_OWN_JOINT) else rng.choice(_JOINTS)
    if joint and not line.startswith(("{p}", "{q}")):
        text = text[0].lower() + text[1:]
    text = joint + text
    return text[0].upper() + text[1:]


# --- the data folder --------------------------------------------------------------------------------------------------

_ESSAY = "essays/gatedeval_demo_prose.json"
_ESSAY_CHARACTERS = 64_000  # twice what 8,192 tokens hold
_PUNKT = "nltk_data/tokenizers/punkt_tab/english"
_PUNKT_FILES = ("abbrev_types.txt", "collocations.tab", "sent_starters.txt", "ortho_context.tab")


def files() -> Iterator[tuple[str, str]]:
    """(path, content) of the demo's data folder (`harness.data`): the essay haystack and sentence-splitter parameters.

    The parameters are empty: there is no abbreviation in this prose, so every full stop ends a sentence.
    """
    yield _ESSAY, json.dumps({"text": essay(HAYSTACK_SEED, _ESSAY_CHARACTERS)}) + "\n"
    for name in _PUNKT_FILES:
        yield f"{_PUNKT}/{name}", ""


def main(target: Path) -> None:
    """Write the data folder `target`."""
    for name, content in files():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_text(content, encoding="utf-8")
        print(target / name)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "tasks/demo/data"))

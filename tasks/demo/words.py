"""The vocabulary of the demo's texts and questions: names of people, and twelve kinds of things."""

from __future__ import annotations

from collections.abc import Mapping

CATEGORIES: Mapping[str, tuple[str, ...]] = {
    "animal": ("horse", "cow", "sheep", "goat", "dog", "cat", "fox", "wolf", "bear", "mouse", "rabbit", "donkey"),
    "tool": (
        "hammer", "axe", "spade", "rake", "drill", "chisel", "shovel", "brush", "wrench", "sickle", "broom", "knife",
    ),
    "fruit": (
        "apple", "pear", "plum", "cherry", "grape", "lemon", "peach", "melon", "fig", "banana", "apricot", "raspberry",
    ),
    "colour": (
        "red", "blue", "green", "yellow", "black", "white", "brown", "grey", "pink", "purple", "violet", "scarlet",
    ),
    "garment": ("shirt", "coat", "hat", "shoe", "sock", "glove", "dress", "scarf", "skirt", "belt", "boot", "jacket"),
    "vehicle": (
        "cart", "wagon", "ship", "boat", "train", "bus", "car", "truck", "bicycle", "tram", "ferry", "sledge",
    ),
    "relative": (
        "mother", "father", "sister", "brother", "uncle", "aunt", "cousin", "son", "daughter", "grandmother",
        "nephew", "niece",
    ),
    "job": (
        "farmer", "baker", "miller", "smith", "tailor", "teacher", "doctor", "sailor", "hunter", "cook", "shepherd",
        "weaver",
    ),
    "drink": (
        "milk", "tea", "coffee", "juice", "wine", "beer", "water", "cider", "cocoa", "lemonade", "ale", "rum",
    ),
    "weather": (
        "rain", "snow", "wind", "storm", "fog", "frost", "hail", "thunder", "mist", "sleet", "drizzle", "lightning",
    ),
    "building": (
        "house", "barn", "mill", "church", "tower", "castle", "school", "shop", "inn", "hut", "palace", "cottage",
    ),
    "instrument": (
        "drum", "flute", "violin", "piano", "harp", "trumpet", "guitar", "organ", "cello", "fiddle", "whistle", "lute",
    ),
}  # fmt: skip
"""Category -> its twelve members, single common words. No word belongs to two: every question has one right answer."""

WOMEN = ("Anna", "Clara", "Emma", "Ida", "Julia", "Mary", "Nora", "Rosa", "Sara", "Vera")
MEN = ("Adam", "Ben", "David", "Jack", "Karl", "Leo", "Martin", "Oscar", "Peter", "Tom")
PEOPLE = WOMEN + MEN


def with_article(word: str) -> str:
    """`word` behind "a" or "an"."""
    return f"an {word}" if word[0].lower() in "aeiou" else f"a {word}"

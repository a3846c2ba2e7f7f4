"""Generates true English text about weekdays, months, hours and numbers.

Every fact is a triple (template, start, offset): "Three days after Monday is Thursday." has the
template "{K} after {A} is {B}.", the start Monday and the offset 3. A fixed tenth of the triples of
every template is held out: the part "train" never uses them, the part "held" uses nothing else.
Words that are free are drawn near each other on their cycle, with weights exp(kappa cos(angle)),
so that what follows from a word changes smoothly along the cycle.

    python text.py documents --part train --seed 1 --bytes 48000000 -o train.txt
    python text.py document --part held --seed 3 --bytes 50000 -o test.txt
    python text.py words -o words.json
"""

import argparse
import hashlib
import json
import math
import random
from dataclasses import dataclass

NUMBERS = ("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
           "fifteen sixteen seventeen eighteen nineteen twenty").split()
HELD_SHARE = 0.1  # of the triples of each template
KAPPA = 1.5  # sharpness of the nearness weights, as in a von Mises distribution


@dataclass(frozen=True)
class Scale:
    """Words in order, on a cycle or on a line."""
    name: str
    words: tuple
    unit: str  # what an offset counts; empty for plain numbers
    wraps: bool
    tail: str  # what follows a word of the scale, as in "two o'clock"
    now: str  # the start of a conditional sentence
    starts: range
    offsets: range

    def at(self, i):
        return self.words[i % len(self.words)]

    def count(self, n):
        """"three days", or "three" on the number line."""
        return f"{NUMBERS[n]} {self.unit}{'s' if n != 1 else ''}" if self.unit else NUMBERS[n]

    def distance(self, i, j):
        n = len(self.words)
        return min((i - j) % n, (j - i) % n) if self.wraps else abs(i - j)

    def near(self, rng, centre):
        """An index drawn with weight exp(kappa cos(angle to the centre))."""
        n = len(self.words) if self.wraps else 2 * len(self.words)
        weights = [math.exp(KAPPA * math.cos(2 * math.pi * (i - centre) / n)) for i in self.starts]
        return rng.choices(self.starts, weights)[0]


WEEKDAY = Scale("weekday", tuple("Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()),
                "day", True, "", "today is", range(7), range(1, 15))
MONTH = Scale("month", tuple("January February March April May June July August September October "
                             "November December".split()),
              "month", True, "", "this month is", range(12), range(1, 13))
HOUR = Scale("hour", tuple(NUMBERS[1:13]), "hour", True, " o'clock", "it is now", range(12), range(1, 12))
NUMBER = Scale("number", tuple(NUMBERS), "", False, "", "", range(21), range(1, 11))

# The sentences in which words.json measures the words: the word is the last token.
ANCHORS = {
    WEEKDAY: ["Today is {}", "The meeting is on {}", "She will arrive next {}", "It happened on a {}",
              "Let us meet on {}", "The shop is closed every {}", "The day after tomorrow is {}",
              "I was born on a {}"],
    MONTH: ["It was a cold day in {}", "The month after that is {}", "She will arrive in {}",
            "The festival is held every {}", "It happened in {}", "The conference is in {}",
            "He was born in {}", "Sales rose in {}"],
    HOUR: ["The train leaves at {}", "The bell rang at {}", "Lunch is at {}", "She woke up at {}"],
    NUMBER: [],
}

# {A} start, {k} "three days", {K} "Three days", {B} end, {n} the offset alone; the last field is asked.
FORWARD = ["{K} after {A} is {B}.", "If {now} {A}, then in {k} it will be {B}.", "{A} plus {k} is {B}.",
           "Start at {A} and go forward {k} to reach {B}.", "Counting forward {k} from {A} gives {B}.",
           "It was {A}, and {k} later it was {B}."]
BACKWARD = ["{K} before {A} is {B}.", "If {now} {A}, then {k} ago it was {B}.", "{A} minus {k} is {B}.",
            "Start at {A} and go back {k} to reach {B}.", "Counting back {k} from {A} gives {B}."]
GAPS = ["The number of {unit}s from {A} forward to {B} is {n}.", "Count the {unit}s from {A} forward to {B}: {n}."]
SUMS = ["{A} plus {k} is {B}.", "{K} more than {A} is {B}.", "The sum of {A} and {k} is {B}.",
        "Add {k} to {A} to get {B}."]
DIFFERENCES = ["{A} minus {k} is {B}.", "{K} less than {A} is {B}.", "Take {k} from {A} to get {B}."]


@dataclass(frozen=True)
class Template:
    scale: Scale
    text: str
    step: int  # +1 forward, -1 backward

    def triples(self):
        """All (start, offset) whose end exists."""
        last = len(self.scale.words) - 1
        return [(a, k) for a in self.scale.starts for k in self.scale.offsets
                if self.scale.wraps or 0 <= a + self.step * k <= last]

    def render(self, start, offset):
        """The text up to the answer, the answer with its leading space, the rest."""
        s, count = self.scale, self.scale.count(offset)
        before, _, rest = self.text.rpartition("{")
        field, _, after = rest.partition("}")
        values = {"A": s.at(start) + s.tail, "B": s.at(start + self.step * offset), "k": count,
                  "K": capital(count), "n": NUMBERS[offset], "now": s.now}
        if field == "B":
            after = s.tail + after  # the answer is the word alone
        else:
            values["B"] += s.tail
        return capital(before.rstrip().format(**values)), " " + values[field], after


def templates(scale):
    if scale is NUMBER:
        return [Template(scale, t, 1) for t in SUMS] + [Template(scale, t, -1) for t in DIFFERENCES]
    found = [Template(scale, t, 1) for t in FORWARD] + [Template(scale, t, -1) for t in BACKWARD]
    for anchor in ANCHORS[scale]:
        found.append(Template(scale, anchor.format("{A}") + ". {K} later it is {B}.", 1))
        found.append(Template(scale, anchor.format("{A}") + ". {K} earlier it was {B}.", -1))
    for gap in GAPS:
        found.append(Template(scale, gap.replace("{unit}", scale.unit), 1))
    return found


def split(template):
    """The template's triples as (train, held): the tenth with the smallest hashes is held out."""
    def key(triple):
        return hashlib.sha256(f"{template.scale.name}|{template.text}|{triple}".encode()).digest()
    turn = len(template.scale.words)
    asks_offset = template.text.endswith("{n}.")  # then offsets a whole turn apart would both be right
    ordered = sorted((t for t in template.triples() if t[1] < turn or not asks_offset), key=key)
    held = math.ceil(HELD_SHARE * len(ordered))
    return ordered[held:], ordered[:held]


SCALES = (WEEKDAY, MONTH, HOUR, NUMBER)
TEMPLATES = {scale: templates(scale) for scale in SCALES}
PARTS = {(part, t): split(t)[i] for ts in TEMPLATES.values() for t in ts for i, part in enumerate(("train", "held"))}


def capital(text):
    return text[:1].upper() + text[1:]


# Free sentences: {A} and {C} are drawn near the paragraph's centre.
PAIRS = {
    WEEKDAY: ["It rained on {A} and again on {C}.", "{name} works on {A} and rests on {C}.",
              "The market is open on {A} and on {C}.", "{name} called on {A}, and {other} called on {C}.",
              "The letter was sent on {A} and came on {C}."],
    MONTH: ["It snowed in {A} and again in {C}.", "{name} was born in {A}, and {other} was born in {C}.",
            "The garden is open in {A} and in {C}.", "Prices fell in {A} and rose in {C}.",
            "{name} moved to {place} in {A} and left in {C}."],
    HOUR: ["The bus leaves at {A} and at {C}.", "{name} came at {A}, and {other} came at {C}.",
           "The shop opens at {A} and closes at {C}.", "The bell rings at {A} and at {C}."],
    NUMBER: ["{name} has {A} apples, and {other} has {C}.", "There are {A} books on the table and {C} on the floor.",
             "{name} saw {A} birds and {other} saw {C}."],
}
FILL = {
    "name": "Anna Ben Clara David Emma Frank Grace Henry".split(),
    "place": ["Paris", "London", "Rome", "the city", "the village", "the old harbour"],
    "thing": ["a book", "a letter", "a small boat", "some bread", "a new coat", "an old clock"],
    "act": ["read", "sing", "swim", "cook", "paint", "walk in the park"],
    "quality": ["quiet", "warm", "busy", "bright", "long", "lovely"],
}
STORIES = ["{name} bought {thing} in {place}.", "{name} went to {place} with {other}.",
           "{name} likes to {act}, but {other} likes to {act2}.", "The morning was {quality} and {quality2}.",
           "{name} gave {thing} to {other}.", "In {place} the evening was {quality}.",
           "{name} asked {other} about {thing}.", "They wanted to {act} in {place}."]
SEASONS = ["winter", "spring", "summer", "autumn"]


def story(rng, text):
    values = {key: rng.choice(options) for key, options in FILL.items()}
    values["other"] = rng.choice([n for n in FILL["name"] if n != values["name"]])
    values["act2"] = rng.choice([a for a in FILL["act"] if a != values["act"]])
    values["quality2"] = rng.choice([q for q in FILL["quality"] if q != values["quality"]])
    return text, values


def fact(rng, scale, centre, part):
    """A sentence of one triple of the part; near starts and small offsets come more often."""
    template = rng.choice(TEMPLATES[scale])
    options = PARTS[part, template]
    far = 20 if not scale.wraps else len(scale.words)
    weights = [math.exp(KAPPA * math.cos(2 * math.pi * (a - centre) / far)) / (k + 1) + 0.05 for a, k in options]
    return "".join(template.render(*rng.choices(options, weights)[0]))


def pair(rng, scale, centre, _):
    a = c = 1
    while a == c or (scale is NUMBER and 1 in (a, c)):  # "one apples"
        a, c = scale.near(rng, centre), scale.near(rng, centre)
    text, values = story(rng, rng.choice(PAIRS[scale]))
    return capital(text.format(A=scale.at(a) + scale.tail, C=scale.at(c) + scale.tail, **values))


def nearness(rng, scale, centre, _):
    """Two words within a third of the cycle, or a near and a far word."""
    reach = len(scale.words) // 3
    a = scale.near(rng, centre)
    close = scale.near(rng, a)
    while not 0 < scale.distance(a, close) <= reach:
        close = scale.near(rng, a)
    A, C = scale.at(a) + scale.tail, scale.at(close) + scale.tail
    if rng.random() < 0.6:
        return capital(rng.choice(["{} is close to {}.", "{} is not far from {}.", "Near {} we find {}."]).format(A, C))
    far = rng.choice([d for d in scale.starts if scale.distance(a, d) > scale.distance(a, close)])
    return capital(f"{A} is nearer to {C} than to {scale.at(far)}{scale.tail}.")


def run(rng, scale, centre, _):
    """Words in order, forward or backward."""
    length, start = rng.randint(3, 7), scale.near(rng, centre)
    step = rng.choice([1, 1, 1, -1])
    indices = [start + step * i for i in range(length)]
    if not scale.wraps:
        indices = [i for i in indices if 0 <= i < len(scale.words)]
    lead = "" if step == 1 else "Backward: "
    return capital(lead + ", ".join(scale.at(i) + scale.tail for i in indices) + ".")


def statement(rng, scale, centre, _):
    """One word in one of its anchor sentences, or a month and its season."""
    a = scale.near(rng, centre)
    if scale is NUMBER:
        return f"{capital(NUMBERS[min(a, 19)])} comes before {NUMBERS[min(a, 19) + 1]}."
    if scale is MONTH and rng.random() < 0.4:
        return f"{scale.at(a)} is a month of {SEASONS[(a + 1) % 12 // 3]}."
    return rng.choice(ANCHORS[scale]).format(scale.at(a) + scale.tail) + "."


def filler(rng, *_):
    text, values = story(rng, rng.choice(STORIES))
    return text.format(**values)


KINDS = ((fact, 0.50), (pair, 0.14), (nearness, 0.10), (run, 0.07), (statement, 0.09), (filler, 0.10))


def paragraph(rng, part):
    scale = rng.choices(SCALES, (0.38, 0.30, 0.18, 0.14))[0]
    centre = rng.choice(scale.starts)
    kinds = rng.choices([k for k, _ in KINDS], [w for _, w in KINDS], k=rng.randint(3, 7))
    return " ".join(kind(rng, scale, centre, part) for kind in kinds)


def document(rng, part, size):
    """Paragraphs, one a line, until the text has `size` bytes."""
    lines, length = [], 0
    while length < size:
        lines.append(paragraph(rng, part))
        length += len(lines[-1]) + 1
    return "\n".join(lines) + "\n"


def documents(rng, part, size):
    """Documents of 200 to 6,000 bytes, with a blank line between them."""
    found, length = [], 0
    while length < size:
        found.append(document(rng, part, 200 * 30 ** rng.random()))
        length += len(found[-1]) + 1
    return "\n".join(found)


def words():
    return {s.name: {"words": s.words, "templates": ANCHORS[s]} for s in (WEEKDAY, MONTH)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["documents", "document", "words"])
    parser.add_argument("--part", choices=["train", "held"], default="train")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--bytes", type=int, default=1_000_000)
    parser.add_argument("-o", "--output", required=True)
    args = parser.parse_args()
    if args.what == "words":
        text = json.dumps(words(), indent=1) + "\n"
    else:
        make = documents if args.what == "documents" else document
        text = make(random.Random(args.seed), args.part, args.bytes)
    with open(args.output, "w", encoding="utf-8", newline="\n") as file:
        file.write(text)


if __name__ == "__main__":
    main()
